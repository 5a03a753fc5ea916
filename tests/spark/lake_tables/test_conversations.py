"""Conversations: trees of answers, put together from rows in order."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.lake.schemas import CONVERSATIONS
from penstock.spark.lake_tables import conversations
from penstock.spark.lake_tables.conversations import ConversationEvent, conversation
from penstock.spark.lake_tables.deliveries import deliveries
from penstock.spark.lake_tables.envelopes import envelopes
from tests.spark.journaled import Journaled, holder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def sent(
    offset: int, id_: str, *, to: str = "jobs", agent: str | None = None, refs: list[str] | None = None
) -> ConversationEvent:
    """An envelope that came at its offset, in milliseconds."""
    owner = to.split("/")[1] if to.startswith("agents/") else None
    return ConversationEvent("j", "c", offset * 1000, "j", offset, to, offset, id_, "courier", agent, owner, refs)


def ended(offset: int, of: ConversationEvent, outcome: str = "acked") -> ConversationEvent:
    return ConversationEvent("j", "c", offset * 1000, "j", offset, of.channel, of.seq, outcome=outcome)


def made(*members: ConversationEvent, members_max: int = 100) -> dict[str, Any]:
    row = conversation(members, members_max)
    assert row is not None
    return row


@pytest.mark.promise("Spark: pipeline", "`conversations` groups envelopes by correlation")
def test_a_question_its_parts_and_the_answer_are_a_tree_with_its_longest_path() -> None:
    ask = sent(0, "ask", to="agents/lead/inbox", agent="user")
    left = sent(2, "left", to="agents/left/inbox", agent="lead")
    right = sent(3, "right", to="agents/right/inbox", agent="lead", refs=["ask"])
    quick = sent(5, "quick", to="agents/lead/inbox", agent="left")
    slow = sent(9, "slow", to="agents/lead/inbox", agent="right", refs=["right", "ask", "unknown"])
    answer = sent(11, "answer", to="agents/user/inbox", agent="lead", refs=["slow"])
    row = made(
        ask,
        left,
        right,
        ended(4, ask),
        quick,
        ended(6, left),
        ended(7, quick, "dead"),
        slow,
        ended(10, slow),
        answer,
        ended(20, answer),
        ended(21, right),
    )
    assert row == {
        "journal": "j",
        "corr": "c",
        "root_id": "ask",
        "started_at": 0,
        "last_at": 21_000,
        "envelopes": 6,
        "agents_count": 4,
        "depth": 4,
        "settled": 6,
        "dead": 1,
        "unsettled": 0,
        "agents": ["lead", "left", "right", "user"],
        "doors": ["courier"],
        "duration_ms": 21.0,
        "critical_path": ["ask", "right"],
        "critical_path_ms": 21.0,
        "final": True,
        "cluster": "j",
    }


def test_what_is_not_settled_counts_by_when_it_came_and_keeps_the_conversation_open() -> None:
    first = sent(0, "a", to="agents/x/inbox")
    row = made(first, ended(1, first), sent(5, "b", agent="x"))
    assert (row["critical_path"], row["critical_path_ms"], row["depth"]) == (["a", "b"], 5.0, 2)
    assert (row["unsettled"], row["final"], row["settled"]) == (1, False, 1)


def test_references_come_before_inboxes_and_the_newest_before_older_ones() -> None:
    first, second = sent(0, "a", to="agents/x/inbox"), sent(1, "b", to="agents/x/inbox")
    assert made(first, second, sent(2, "c", agent="x"))["critical_path"] == ["b", "c"]
    assert made(first, second, sent(2, "c", agent="x", refs=["a"]))["critical_path"] == ["a", "c"]
    assert made(first, second, sent(2, "c", refs=["b", "a"]))["critical_path"] == ["b", "c"]
    assert made(first, second, sent(2, "c", agent="y"))["critical_path"] == ["c"]


def test_an_envelope_answers_neither_itself_nor_a_later_one() -> None:
    row = made(sent(0, "a", refs=["a", "b"], to="agents/x/inbox", agent="x"), sent(1, "b", refs=["b"]))
    assert (row["depth"], row["critical_path"]) == (1, ["b"])


def test_settles_alone_are_no_conversation() -> None:
    assert conversation([ended(1, sent(0, "a"))]) is None


def test_a_long_conversation_is_counted_whole_and_its_path_is_that_of_its_first() -> None:
    chain = [sent(n, str(n), refs=[str(n - 1)]) for n in range(6)]
    row = made(*chain, *(ended(10 + n, member) for n, member in enumerate(chain)), members_max=3)
    assert (row["envelopes"], row["settled"], row["unsettled"]) == (6, 6, 0)
    assert (row["depth"], row["critical_path"], row["critical_path_ms"]) == (3, ["0", "1", "2"], 12.0)
    assert row["duration_ms"] == 15.0


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("abc"), st.lists(st.integers(0, 12)), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_the_path_is_a_chain_of_answers_in_time(steps: list[tuple[str, str, list[int], bool]]) -> None:
    members: list[ConversationEvent] = []
    for number, (agent, owner, refs, settles) in enumerate(steps):
        member = sent(
            2 * number,
            str(number),
            to=f"agents/{owner}/inbox",
            agent=agent,
            refs=[str(ref) for ref in refs],
        )
        members.append(member)
        if settles:
            members.append(ended(2 * number + 1, member))
    row = made(*members)
    path = [int(id_) for id_ in row["critical_path"]]
    assert path == sorted(set(path))
    assert path[-1] == len(steps) - 1
    assert 1 <= len(path) <= row["depth"] <= len(steps)
    for parent, child in pairwise(path):
        assert parent in steps[child][2] or steps[parent][1] == steps[child][0]


@pytest.mark.promise("Spark: pipeline", "`conversations` groups envelopes by correlation")
def test_batches_of_any_size_give_the_same_rows() -> None:
    """A conversation may begin in one batch and end in a later one."""
    members = [sent(number, str(number))._replace(corr=corr) for corr in ("c", "d", "e") for number in range(5)]
    table = pa.Table.from_pylist([member._asdict() for member in members], SHAPE)
    whole, cut = (
        [row for batch in conversations.build_rows(iter(table.to_batches(size))) for row in batch.to_pylist()]
        for size in (100, 2)
    )
    assert whole == cut
    assert [(row["corr"], row["envelopes"]) for row in whole] == [("c", 5), ("d", 5), ("e", 5)]


SHAPE = pa.schema(
    [
        (name, pa.int64() if name in ("offset", "at_us", "seq") else pa.string())
        for name in ConversationEvent._fields
        if name != "refs"
    ]
).insert(ConversationEvent._fields.index("refs"), pa.field("refs", pa.list_(pa.string())))


def test_conversations_come_from_silver_rows(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bench = Journaled()
    user, lead = (bench.connect(holder(name)) for name in ("user", "lead"))
    for number in range(20):
        corr = f"talk-{number}"
        bench.send("agents/lead/inbox", f"ask-{number}", "agents/user", corr=corr)
        bench.advance(10)
        bench.ack(bench.subscribe("agents/lead/inbox", 1, link=lead), f"ask-{number}")
        bench.send("agents/user/inbox", f"answer-{number}", "lead", corr=corr)
        bench.advance(5)
        holding = bench.subscribe("agents/user/inbox", 1, link=user)
        if number % 2:
            bench.ack(holding, f"answer-{number}")
        else:
            bench.term(holding, f"answer-{number}")
    bench.send("jobs", "alone", "user")
    bench.send("jobs", "waits", "user", corr="open")
    events = spark.createDataFrame(bench.events).repartition(3)
    rows = conversations.conversations(envelopes(events), deliveries(events))
    assert rows.schema.simpleString() == from_arrow_schema(CONVERSATIONS.schema).simpleString()
    found = {row["corr"]: row for row in rows.toArrow().to_pylist()}
    assert len(found) == 21
    for number in range(20):
        row = found[f"talk-{number}"]
        assert (row["root_id"], row["envelopes"], row["depth"]) == (f"ask-{number}", 2, 2)
        assert (row["agents"], row["doors"]) == (["lead", "user"], ["courier"])
        assert (row["settled"], row["dead"], row["final"]) == (2, 1 - number % 2, True)
        assert row["critical_path"] == [f"ask-{number}", f"answer-{number}"]
        assert row["critical_path_ms"] == row["duration_ms"] == 15.0
        assert row["last_at"] - row["started_at"] == timedelta(milliseconds=15)
    assert (found["open"]["unsettled"], found["open"]["final"]) == (1, False)
