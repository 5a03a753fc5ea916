"""The event log: every durable event once, with its time, without blocking the loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.queue.policy import Policy
from penstock.core.records import Settle
from penstock.server.files import line_writer
from penstock.server.logging import event_log
from penstock.server.logging.event_log import EventLog
from tests.dialects.courier.talking import Broker, HandJournal, envelope
from tests.server.logging.draining import drain

Event = dict[str, Any]


def lines(path: Path) -> list[Event]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


class Watched:
    """A broker with an event log."""

    def __init__(self, path: Path, policy: Policy | None = None, **more: Any) -> None:
        self.path = path
        self.journal = HandJournal()
        self.broker = Broker(policy, journal=self.journal)
        self.log = EventLog(path, **{"max_bytes": 1 << 30, "keep": 1, **more})
        self.broker.runtime.events = self.log
        self.peer = self.broker.control()

    def say(self, **frame: Any) -> None:
        self.peer.say(**frame)
        while self.journal.waiting:
            self.journal.commit()
            self.broker.run()

    def read(self) -> list[Event]:
        self.log.close()
        return lines(self.path)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(policy: Policy | None = None, **more: Any) -> Watched:
        made.append(Watched(tmp_path / f"events-{len(made)}.jsonl", policy, **more))
        return made[-1]

    yield make
    for one in made:
        one.log.close()


def told(found: list[Event]) -> list[tuple[str, str]]:
    return [(event["event"], event.get("id", "")) for event in found]


@pytest.mark.promise(
    "Schemas, skills and observability",
    "the event log has every durable event once, with ids and durations, and payloads only on request",
)
def test_the_life_of_an_envelope(watched: Callable[..., Watched]) -> None:
    one = watched()
    one.say(type_="enqueue", to="jobs", env=envelope("a", **{"from": "sam"}))
    one.broker.advance(1_500)
    one.say(type_="subscribe", stream="jobs", credit=1)
    one.broker.advance(250)
    one.say(type_="ack", id="a")
    one.broker.advance(2_000)
    one.peer.gone()
    found = one.read()
    opened, enqueued, delivered, acked, closed = found
    assert opened["event"] == "conn.open" and opened["who"] == "anonymous"
    size = len(one.broker.machine.channels["jobs"].settled) and enqueued.pop("bytes")
    assert size > 50
    assert enqueued == {
        "ts": opened["ts"], "event": "enqueue", "stream": "jobs", "id": "a", "seq": 1, "type": "note", "from": "sam"
    }  # fmt: skip
    assert (delivered["event"], delivered["attempt"], delivered["durMs"]) == ("deliver", 1, 1_500)
    assert (acked["event"], acked["seq"], acked["peer"], acked["durMs"]) == ("ack", 1, "anonymous", 250)
    assert (closed["event"], closed["delivered"], closed["settled"]) == ("conn.close", 1, 1)
    assert closed["durMs"] == 3_750
    assert (closed["code"], closed["reason"]) == (1000, "closed by the peer")
    assert closed["link"] == opened["link"] == delivered["link"]


def test_a_connection_that_the_server_ends_is_logged_with_the_cause(watched: Callable[..., Watched]) -> None:
    one = watched()
    for _ in range(21):
        one.peer.send(b"{]\n")
    one.broker.run()
    closed = one.read()[-1]
    assert (closed["event"], closed["code"]) == ("conn.close", 1007)
    assert closed["reason"].startswith("InvalidJSON: 21 strikes, the last: not a JSON object")


@pytest.mark.promise(
    "Schemas, skills and observability",
    "the event log has every durable event once, with ids and durations, and payloads only on request",
)
def test_every_outcome_is_logged_with_its_duration(watched: Callable[..., Watched]) -> None:
    one = watched(Policy(max_deliveries=3, lease_us=10_000_000, max_depth=2, overflow="drop-oldest"))
    one.say(type_="enqueue", to="jobs", env=envelope("a"))
    one.say(type_="subscribe", stream="jobs", credit=1, subId="s")
    one.broker.advance(100)
    one.say(type_="nack", id="a", reason="tired")
    one.say(type_="grant", n=1)
    one.broker.advance(10_000)  # its lease expires
    one.say(type_="grant", n=1)
    one.broker.advance(300)
    one.say(type_="term", id="a", reason="hopeless")
    for id_ in "bcd":
        one.say(type_="enqueue", to="jobs", env=envelope(id_))
    from penstock.core.scopes import OPERATOR
    from penstock.core.steps import Steps
    from penstock.dialects.courier.operations.redrive_and_purge import StreamRequest, purge_steps

    now = one.broker.now
    Steps(purge_steps(one.broker.machine, now, OPERATOR, StreamRequest("jobs"))).all(now)
    one.broker.runtime.apply(one.broker.now)
    one.say(type_="ping")
    found = [event for event in one.read() if event["event"] not in ("conn.open", "deliver")]
    assert told(found) == [
        ("enqueue", "a"), ("nack", "a"), ("timeout", "a"), ("enqueue", "a"), ("dead", "a"),
        ("enqueue", "b"), ("enqueue", "c"), ("drop", "b"), ("enqueue", "d"), ("purge", "c"), ("purge", "d"),
    ]  # fmt: skip
    durations = {event["event"]: event.get("durMs") for event in found}
    assert (durations["nack"], durations["timeout"], durations["dead"]) == (100, 10_000, 300)
    reasons = {event["event"]: event.get("reason") for event in found}
    assert (reasons["nack"], reasons["dead"]) == ("tired", "term")


@pytest.mark.promise("Delivery", "`redelivery.hot` names an envelope that fails again and again")
def test_an_envelope_that_fails_again_and_again_is_an_event(watched: Callable[..., Watched]) -> None:
    one = watched()
    one.say(type_="enqueue", to="jobs", env=envelope("a"))
    one.say(type_="subscribe", stream="jobs", auto=1)
    for _ in range(6):
        one.say(type_="nack", id="a", reason="boom")
    (hot,) = [event for event in one.read() if event["event"] == "redelivery.hot"]
    assert (hot["stream"], hot["id"], hot["attempt"], hot["envelopes"]) == ("jobs", "a", 6, 1)


@pytest.mark.promise(
    "Schemas, skills and observability",
    "the event log has every durable event once, with ids and durations, and payloads only on request",
)
def test_an_event_that_is_not_durable_is_not_logged(watched: Callable[..., Watched]) -> None:
    one = watched()
    one.peer.say(type_="enqueue", to="jobs", env=envelope("refused"))
    one.journal.refuse()
    one.peer.say(type_="enqueue", to="jobs", env=envelope("left-out"))
    one.journal.commit(refused="no space")
    one.peer.say(type_="enqueue", to="jobs", env=envelope("kept"))
    one.journal.commit()
    one.peer.say(type_="enqueue", to="jobs", env=envelope("waiting"))
    assert told(one.read())[1:] == [("enqueue", "kept")]


@pytest.mark.promise(
    "Schemas, skills and observability",
    "the event log has every durable event once, with ids and durations, and payloads only on request",
)
def test_a_payload_is_logged_only_on_request(watched: Callable[..., Watched]) -> None:
    shy, open_ = watched(), watched(payload=True)
    for one in (shy, open_):
        one.say(type_="enqueue", to="jobs", env=envelope("a", payload={"word": "private"}))
    assert "private" not in str(shy.read())
    assert open_.read()[-1]["payload"] == {"word": "private"}


@pytest.mark.parametrize(
    ("reason", "event"),
    [("fired", "trigger.run"), ("failed", "trigger.fail"), ("suppressed", "trigger.suppressed")],
)
def test_a_firing_is_logged_with_its_cause(watched: Callable[..., Watched], reason: str, event: str) -> None:
    one = watched()
    one.say(type_="enqueue", to="jobs", env=envelope("a"))
    machine = one.broker.machine
    machine.commit_log.observations.append(Settle(event="trigger", record=machine.channels["jobs"].live["a"], peer="rule-1",
                                       attempt=0, first_wall_us=0, reason=reason))  # fmt: skip
    machine.commit_log.observed += 1
    one.say(type_="ping")
    one.say(type_="enqueue", to="jobs", env=envelope("b"))
    found = next(line for line in one.read() if line["event"].startswith("trigger."))
    assert (found["event"], found["rule"], found["id"], found["stream"]) == (event, "rule-1", "a", "jobs")


def test_others_may_write_too(watched: Callable[..., Watched]) -> None:
    one = watched()
    one.log.write("trigger.run", now=one.broker.now, rule="r", id="e-1")
    one.log.write("trigger.fail", rule="r", cause=object())
    run, fail = one.read()[1:]
    assert (run["event"], run["rule"], run["id"]) == ("trigger.run", "r", "e-1")
    assert fail["event"] == "trigger.fail" and "unprintable" in fail, "one bad field must not end the log"


@pytest.mark.promise(
    "Schemas, skills and observability",
    "a slow or full disk costs the event log counted events and never blocks the loop; files rotate by size",
)
def test_files_are_put_aside_by_size_and_the_oldest_goes(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_writer, "LINGER_S", 0)
    one = watched(max_bytes=2_000, keep=2)
    for n in range(100):
        one.log.write("tick", n=n, pad="x" * 100)
        drain(one.log)  # one write each
    one.log.close()
    names = sorted(path.name for path in one.path.parent.iterdir())
    assert names == ["events-0.jsonl", "events-0.jsonl.1", "events-0.jsonl.2"]
    kept = [event["n"] for name in reversed(names) for event in lines(one.path.parent / name)]
    assert kept == list(range(kept[0], 100)) and kept[0] > 0
    assert all((one.path.parent / name).stat().st_size <= 2_000 for name in names)
    assert all((one.path.parent / name).stat().st_mode & 0o777 == 0o600 for name in names)


def test_an_old_file_is_continued(watched: Callable[..., Watched], tmp_path: Path) -> None:
    (tmp_path / "events-0.jsonl").write_text('{"event":"before"}\n')
    assert [event["event"] for event in watched().read()] == ["before", "conn.open"]


@pytest.mark.promise(
    "Schemas, skills and observability",
    "a slow or full disk costs the event log counted events and never blocks the loop; files rotate by size",
)
def test_what_does_not_fit_is_dropped_and_counted(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk stands still: the loop goes on, what waits is bounded, and the file says what is missing."""
    stuck = threading.Event()
    real = os.write

    def slow(file: int, data: Any) -> int:
        stuck.wait(10)
        return real(file, data)

    monkeypatch.setattr(event_log, "WAITING_MAX", 50)
    monkeypatch.setattr(os, "write", slow)
    one = watched()
    for n in range(500):
        one.log.write("tick", n=n)
    assert one.log.dropped >= 300
    stuck.set()
    found = one.read()
    report = found[-1]
    assert report["event"] == "log.dropped" and report["total"] == one.log.dropped
    assert len(found) - 1 + one.log.dropped == 501
    assert one.log.written == len(found) - 1


def test_payloads_that_wait_are_bounded_in_bytes(
    watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_writer, "LINGER_S", 600.0)
    monkeypatch.setattr(line_writer, "WAITING_BYTES_MAX", 10_000)
    one = watched(payload=True)
    for n in range(20):
        one.say(type_="enqueue", to="jobs", env=envelope(f"e{n}", payload="x" * 2_000))
    assert one.log._put_bytes - one.log._taken_bytes <= 10_000
    assert one.log.dropped >= 15
    one.log._closing.set()  # the thread waits no longer for more
    drain(one.log)
    one.say(type_="enqueue", to="jobs", env=envelope("last", payload="x" * 2_000))
    assert one.read()[-1]["id"] == "last"


@pytest.mark.promise(
    "Schemas, skills and observability",
    "a slow or full disk costs the event log counted events and never blocks the loop; files rotate by size",
)
def test_a_full_disk_is_survived(watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "LINGER_S", 0)
    one = watched()
    drain(one.log)
    refusing = True
    real = os.write

    def full(file: int, data: Any) -> int:
        if refusing:
            raise OSError(28, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", full)
    one.log.write("lost")
    drain(one.log)
    assert one.log.dropped == 1
    refusing = False
    one.log.write("kept")
    assert [event["event"] for event in one.read()][1:] == ["kept", "log.dropped"]


def test_the_memory_of_leases_is_bounded(watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LEASES_MAX", 3)
    one = watched()
    for n in range(10):
        one.say(type_="enqueue", to="jobs", env=envelope(f"e{n}"))
    one.say(type_="subscribe", stream="jobs", credit=10)
    assert len(one.log._leases) == 3
    one.say(type_="ack", id=[f"e{n}" for n in range(10)])
    acks = [event for event in one.read() if event["event"] == "ack"]
    assert [("durMs" in event) for event in acks] == [False] * 7 + [True] * 3
    assert one.log._leases == {}
