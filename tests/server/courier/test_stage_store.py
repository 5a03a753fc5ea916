"""Staged frames for spaces: sent once, when their batch is durable, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.stage import Draft
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal, require
from penstock.core.steps import STEP_COST
from penstock.dialects.courier.operations.outcomes import Outcome, Result
from penstock.dialects.courier.wire.staged_envelopes import BatchSource, StageCommit, StagedFrame, read
from penstock.server.courier.stage_store import Staging
from tests.dialects.courier.talking import Broker, HandJournal

ADMIN_OF_TENANT = Principal("t", scopes=require(["admin:*"]), tenant="t")
NOW = Now(1, 1_760_000_000_000_000)


def encoded(*lines: dict[str, Any]) -> bytes:
    return b"\n".join(msgspec.json.encode(line) for line in lines)


def frame(payload: Any, to: str = "space:demo/averages", **more: Any) -> dict[str, Any]:
    return {"to": to, "payload": payload, **more}


def queued(payload: Any) -> dict[str, Any]:
    return {"to": "jobs", "type": "t", "payload": payload}


class FakeSpaces:
    """Spaces of which some streams may be written to."""

    def __init__(self, *streams: str) -> None:
        self.open = set(streams)
        self.heard: list[tuple[str, list[bytes]]] = []

    def writable(self, space: str, stream: str) -> Refusal | None:
        place = f"{space}/{stream}"
        return None if place in self.open else Refusal("UnknownStream", f"there is no `{place}`")

    def write(self, space: str, stream: str, frames: list[bytes]) -> Refusal | None:
        refusal = self.writable(space, stream)
        if refusal is None:
            self.heard.append((f"{space}/{stream}", frames))
        return refusal


class StageDriver:
    """A broker whose journal answers by hand, and an application that stages."""

    def __init__(self, *streams: str, who: Principal = OPERATOR) -> None:
        self.journal = HandJournal()
        self.broker = Broker(journal=self.journal)
        self.spaces = FakeSpaces(*streams)
        self.staging = Staging(self.broker.runtime, self.spaces)
        self.who = who

    def source(self, batch: int) -> BatchSource:
        return BatchSource("app", batch, self.who)

    def part(self, batch: int, name: str, *lines: dict[str, Any]) -> Outcome:
        return self.staging.part(self.broker.now, self.source(batch), name, "", encoded(*lines))

    def commit(self, batch: int, *parts: str) -> Outcome:
        outcome = self.staging.commit(self.broker.now, self.source(batch), StageCommit(list(parts)))
        self.broker.run()
        return outcome

    def last(self) -> int | None:
        return self.broker.machine.last_batch("app")


def value(outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome, Result), outcome
    return outcome.value()


def refused(outcome: Outcome) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    return outcome


@pytest.mark.promise(
    "Spark: pipeline",
    "a staged batch of frames is sent once, when it is durable; a wrong name rejects the whole batch",
)
def test_frames_go_out_by_stream_and_in_order_once_their_batch_is_durable() -> None:
    driver = StageDriver("demo/averages", "demo/other")
    driver.part(0, "a", frame(1), queued("x"), frame({"b": [1.50, "ä"]}))
    driver.part(0, "b", frame(2, "space:demo/other"), frame("t", payloadAs="text"), frame("t", type="ignored"))
    done = driver.commit(0, "b", "a")
    assert driver.spaces.heard == []
    driver.journal.commit()
    assert driver.spaces.heard == [
        ("demo/other", [b"2"]),
        ("demo/averages", [b"t", b'"t"', b"1", '{"b":[1.5,"ä"]}'.encode()]),
    ]
    assert value(done) == {"app": "app", "batch": 0, "enqueued": 1, "duplicate": False, "frames": 5}
    assert [record.kind for record in driver.broker.machine.channels["jobs"].live.values()] == ["t"]


@pytest.mark.promise(
    "Spark: pipeline",
    "a staged batch of frames is sent once, when it is durable; a wrong name rejects the whole batch",
)
def test_a_batch_of_frames_alone_is_remembered_and_sent_once() -> None:
    driver = StageDriver("demo/averages")
    driver.part(7, "a", frame(1))
    driver.commit(7, "a")
    waiting = driver.commit(7, "a")  # repeated while it is being written
    driver.journal.commit()
    assert value(waiting)["duplicate"]
    assert value(driver.commit(7, "a")) == {
        "app": "app",
        "batch": 7,
        "enqueued": 0,
        "duplicate": True,
        "last": 7,
    }
    assert driver.spaces.heard == [("demo/averages", [b"1"])]
    assert (driver.last(), driver.journal.waiting) == (7, [])


@pytest.mark.promise(
    "Spark: pipeline",
    "a staged batch of frames is sent once, when it is durable; a wrong name rejects the whole batch",
)
@pytest.mark.parametrize("is_short", [False, True])
def test_what_the_journal_refuses_is_not_heard_and_may_come_again(is_short: bool) -> None:
    driver = StageDriver("demo/averages")
    driver.part(0, "a", frame(1), queued("x"))
    driver.commit(0, "a")
    if is_short:
        driver.journal.commit(refused="the disk is nearly full")
    else:
        driver.journal.refuse()
    driver.broker.run()
    assert (driver.spaces.heard, driver.last()) == ([], None)
    while driver.journal.waiting:  # what it says about itself
        driver.journal.commit()
    driver.commit(0, "a")
    driver.journal.commit()
    assert (driver.spaces.heard, driver.last()) == ([("demo/averages", [b"1"])], 0)


@pytest.mark.promise(
    "Spark: pipeline",
    "a staged batch of frames is sent once, when it is durable; a wrong name rejects the whole batch",
)
def test_one_stream_that_cannot_be_written_to_refuses_the_whole_batch() -> None:
    driver = StageDriver("demo/averages")
    driver.part(0, "a", queued("x"), frame(1), frame(2, "space:demo/averagse"))
    assert refused(driver.commit(0, "a")).message == "there is no `demo/averagse`"
    assert (driver.journal.waiting, driver.spaces.heard, driver.last()) == ([], [], None)
    assert "jobs" not in driver.broker.machine.channels
    driver.spaces.open.add("demo/averagse")
    driver.commit(0, "a")
    driver.journal.commit()
    assert len(driver.spaces.heard) == 2


def test_a_server_without_spaces_says_so() -> None:
    driver = StageDriver()
    driver.staging = Staging(driver.broker.runtime)
    driver.part(0, "a", frame(1))
    refusal = refused(driver.commit(0, "a"))
    assert (refusal.code, refusal.ref) == ("InvalidRequest", "to")
    assert "`demo`" in refusal.message and "`spaces`" in (refusal.hint or "")


def test_a_stream_that_is_closed_meanwhile_costs_its_frames_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = StageDriver("demo/averages", "demo/other")
    driver.part(0, "a", frame(1), frame(2, "space:demo/other"))
    done = driver.commit(0, "a")
    driver.spaces.open.remove("demo/averages")
    driver.journal.commit()
    assert driver.spaces.heard == [("demo/other", [b"2"])]
    assert [record.msg for record in caplog.records] == ["stage.frames_lost"]
    assert (value(done)["frames"], driver.last()) == (2, 0)


@pytest.mark.promise("Spark: pipeline", "only the operator and administrators stage frames into spaces")
@pytest.mark.parametrize("who", [ANONYMOUS, ADMIN_OF_TENANT])
def test_only_the_operator_and_admins_write_into_spaces(who: Principal) -> None:
    driver = StageDriver("demo/averages", who=who)
    refusal = refused(driver.part(0, "a", frame(1)))
    assert (refusal.code, refusal.ref) == ("Forbidden", "lines[0].admin:*")
    driver.who = OPERATOR
    driver.part(0, "a", frame(1))
    driver.who = ANONYMOUS
    assert refused(driver.commit(0, "a")).code == "Forbidden"
    assert refused(driver.staging.abort(driver.source(0))).code == "Forbidden"
    driver.who = OPERATOR
    assert value(driver.staging.abort(driver.source(0)))["dropped"] == 1


@pytest.mark.parametrize(
    ("line", "ref"),
    [
        ({"to": "space:demo"}, "to"),
        ({"to": "space:/x"}, "to"),
        ({"to": "space:demo/"}, "to"),
        ({"to": "space:demo/x"}, "payload"),
        (frame(1, corr="c"), "corr"),
        (frame(1, id="i"), "id"),
        (frame(1, payloadAs="text"), "payloadAs"),
        (frame("x", payloadAs="xml"), "payloadAs"),
    ],
)
def test_a_line_that_is_no_frame_is_refused_with_its_place(line: dict[str, Any], ref: str) -> None:
    refusal = refused(StageDriver().part(0, "a", queued(1), line))
    assert (refusal.code, refusal.ref) == ("InvalidEnvelope", f"lines[1].{ref}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["", " ", "\t"]))
def test_a_frame_holds_the_very_value_on_one_line(value: Any, space: str) -> None:
    raw = msgspec.json.format(msgspec.json.encode(value), indent=len(space))
    line = b'{"payload":%b%b,"to":"space:a/b/c"}' % (space.encode(), raw.replace(b"\n", b" "))
    made = read(line, BatchSource("app", 0, OPERATOR), NOW, Limits())
    assert isinstance(made, StagedFrame) and not isinstance(made, Draft)
    assert (made.space, made.stream) == ("a/b", "c")
    assert made.data == msgspec.json.encode(value)


def test_the_lines_of_a_part_are_counted_before_they_are_split() -> None:
    driver = StageDriver()
    most = Limits().batch_max

    def staged(blank: int) -> Outcome:
        body = encoded(queued("x")) + b"\n" * blank
        return driver.staging.part(driver.broker.now, driver.source(0), "a", "", body)

    assert value(staged(2 * most))["staged"] == 1
    assert refused(staged(2 * most + 1)).message.endswith(f"one a line, not {2 * most + 1}")


class TestLargeBatches:
    """The records of a large batch are made a step a turn: no turn makes all of them."""

    PARTS = ("a", "b", "c")
    COUNT = 3 * STEP_COST

    def staged(self) -> StageDriver:
        driver = StageDriver()
        for part in self.PARTS:
            lines = [{"to": f"jobs/{n % 2}", "type": "t", "payload": 0, "id": f"{part}{n}"} for n in range(STEP_COST)]
            outcome = driver.part(0, part, *lines)
            if isinstance(outcome, Coroutine):
                self.finish(driver, outcome)
        return driver

    def finish(
        self, driver: StageDriver, work: Coroutine[Any, Any, Outcome], look: Callable[[], None] = lambda: None
    ) -> Outcome:
        async def go() -> Outcome:
            task = asyncio.ensure_future(work)
            await asyncio.sleep(0)
            while driver.broker.scheduler._soon:
                driver.broker.scheduler._soon.popleft()()
                look()
            return await asyncio.wait_for(task, 30)

        return asyncio.run(go())

    def commit(self, driver: StageDriver) -> Coroutine[Any, Any, Outcome]:
        outcome = driver.staging.commit(driver.broker.now, driver.source(0), StageCommit(list(self.PARTS)))
        assert isinstance(outcome, Coroutine)
        return outcome

    @pytest.mark.promise(
        "Hold under hostile conditions", "a large staged batch is made in steps, and admitted and visible at once"
    )
    def test_its_records_are_made_in_steps_and_admitted_at_once(self) -> None:
        driver = self.staged()
        channels, seen = driver.broker.machine.channels, list[int]()
        work = self.commit(driver)
        done = self.finish(driver, work, lambda: seen.append(sum(len(each.live) for each in channels.values())))
        assert seen.count(0) >= len(self.PARTS) and set(seen) == {0, self.COUNT}
        assert not any(each.ready for each in channels.values()), "nothing is visible before it is durable"
        driver.journal.commit()
        assert {len(each.ready) for each in channels.values()} == {self.COUNT // 2}
        assert value(done)["enqueued"] == self.COUNT
        assert driver.staging._batches == {} and driver.staging._cost == 0

    def test_parts_that_change_meanwhile_refuse_the_commit(self) -> None:
        driver = self.staged()
        work = self.commit(driver)
        (first, *_) = self.PARTS
        driver.part(0, first, queued("other"))
        assert refused(self.finish(driver, work)).code == "UnknownPart"
        assert not driver.broker.machine.channels and driver.last() is None

    def test_its_parts_go_when_it_is_durable_though_the_application_is_gone(self) -> None:
        driver = self.staged()

        async def go() -> None:
            task = asyncio.ensure_future(self.commit(driver))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(go())
        driver.broker.run()
        driver.journal.commit()
        assert driver.last() == 0 and driver.staging._batches == {}
