"""Staged lines: defaults, generated ids, and rejections."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.stage import Draft, numbered
from penstock.core.scopes import OPERATOR, Principal
from penstock.dialects.courier.wire.staged_envelopes import (
    HOP_HEADER,
    BatchSource,
    part_problem,
    read,
    source_of,
)

LIMITS = Limits()
SAM = Principal("token 1", agent="sam")
NOW, LATER = Now(1, 1_760_000_000_123_000), Now(2, 1_770_000_000_456_000)


def draft(line: Any, app: str = "x", batch: int = 0, *, who: Principal = OPERATOR, now: Now = NOW) -> Draft:
    found = refusal_or_draft(line, app, batch, who=who, now=now)
    assert isinstance(found, Draft), found
    return found


def refusal_or_draft(line: Any, app: str, batch: int, *, who: Principal, now: Now = NOW) -> Draft | Refusal:
    data = line if isinstance(line, bytes) else msgspec.json.encode(line)
    return read(data, BatchSource(app, batch, who), now, LIMITS)


def line_of(payload: Any = 1, **more: Any) -> dict[str, Any]:
    return {"to": "q", "type": "t", "payload": payload, **more}


def test_the_envelope_is_whole_and_what_was_given_stays_as_it_was():
    made = draft(b'{"payload": {"a":  1.50}, "type":"t","to":"q","corr":"c","extra":[ 1 ]}')
    body = msgspec.json.decode(made.body)
    assert list(body)[:3] == ["id", "ts", "from"]
    assert (body["ts"], body["from"], body["corr"], body["extra"]) == (
        rfc3339(NOW.wall_us), "pipeline/x", "c", [1],
    )  # fmt: skip
    assert b'{"a":  1.50}' in made.body
    assert (made.stream, made.id, made.kind, made.sender, made.corr) == (
        "q",
        body["id"],
        "t",
        "pipeline/x",
        "c",
    )


@pytest.mark.promise("Spark: source and sinks", "generated ids depend on application, batch and content")
def test_ids_depend_on_application_batch_and_content_and_not_on_time_or_order_of_members():
    ids = [
        draft(line_of()).id,
        draft(line_of(2)).id,
        draft(line_of(), batch=1).id,
        draft(line_of(), app="y").id,
        draft(line_of(), who=SAM).id,
        draft(line_of(to="p")).id,
    ]
    assert len(set(ids)) == len(ids)
    same = draft(dict(reversed(line_of(ts="2026-01-01T00:00:00Z").items())), now=LATER).id
    assert same == ids[0]
    assert draft(line_of(id="mine")).id == "mine"


@given(st.one_of(st.none(), st.text(min_size=1, max_size=20)), st.integers(0, 3))
def test_the_stamp_is_where_the_time_stands_however_the_id_looks(id_, number):
    line = line_of("ts") if id_ is None else line_of("ts", id=id_)
    one, two = draft(line), draft(line, now=LATER)
    if id_ is None and number:
        one, two = numbered(one, number), numbered(two, number)
    for each, now in ((one, NOW), (two, LATER)):
        start, end = each.stamp
        assert msgspec.json.decode(each.body[start:end]) == rfc3339(now.wall_us)
        assert msgspec.json.decode(each.body)["id"] == each.id
    assert one.body[: one.stamp[0]] == two.body[: two.stamp[0]]
    assert one.body[one.stamp[1] :] == two.body[two.stamp[1] :]
    assert draft({**line, "ts": "2026-01-01T00:00:00Z"}).stamp == (0, 0)


@pytest.mark.parametrize(("before", "after"), [({}, 1), (None, 1), ({HOP_HEADER: 4}, 5), ({HOP_HEADER: "4"}, 5)])
def test_every_hop_is_counted(before, after):
    headers = msgspec.json.decode(draft(line_of(headers=before)).body)["headers"]
    assert headers == {HOP_HEADER: after}


@pytest.mark.parametrize("hop", [-1, 1.5, True, "x", "", None, [1], 2**31])
def test_a_hop_that_is_no_count_is_refused(hop):
    found = refusal_or_draft(line_of(headers={HOP_HEADER: hop}), "x", 0, who=OPERATOR)
    assert isinstance(found, Refusal) and found.code == "InvalidEnvelope"


@pytest.mark.parametrize(
    ("who", "said", "sender"),
    [
        (OPERATOR, None, "pipeline/x"),
        (OPERATOR, "pipeline/x", "pipeline/x"),
        (OPERATOR, "pipeline/y", None),
        (OPERATOR, "sam", None),
        (SAM, None, "sam"),
        (SAM, "agents/sam/desk", "sam"),
        (SAM, "pipeline/x", None),
        (SAM, "agents/kim/inbox", None),
    ],
)
def test_from_is_who_it_is(who, said, sender):
    found = refusal_or_draft(line_of(**({"from": said} if said else {})), "x", 0, who=who)
    if sender is None:
        assert isinstance(found, Refusal) and found.code == "Forbidden"
    else:
        assert isinstance(found, Draft) and found.sender == sender


@pytest.mark.parametrize(
    ("app", "batch"),
    [("", "0"), ("a b", "0"), ("a" * 65, "0"), ("ä", "0"), ("a", ""), ("a", "-1"), ("a", "1.0"), ("a", "٣"), ("a", "9" * 19)],
)  # fmt: skip
def test_names_and_numbers_that_are_none(app, batch):
    assert isinstance(source_of(app, batch, OPERATOR), Refusal)
    assert isinstance(source_of("a.B_9-", "0", OPERATOR), BatchSource)
    assert part_problem("p" * 129) is not None and part_problem("0.1-x_y") is None
