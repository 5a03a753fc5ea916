"""The test kit as users see it: a world that acts only on request."""

import subprocess
import sys
from typing import Any

import pytest

from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from tests.simulation.world import CheckedWorld


def env(id_: str, payload: Any = None) -> dict[str, Any]:
    return {"id": id_, "ts": "2026-01-01T00:00:00Z", "type": "job", "payload": payload}


def test_an_answer_comes_after_the_commit_and_a_delivery_too() -> None:
    world = CheckedWorld(seed=1)
    client = world.connect()
    client.request("subscribe", stream="s", credit=5)
    world.journal.mood = "slow"
    req = client.request("enqueue", to="s", env=env("e1"))
    world.advance(ms=10)
    assert req not in client.answers
    world.advance(ms=5_000)
    assert client.answers[req]["result"] == {"id": "e1", "seq": 1}
    assert [line["env"]["id"] for line in client.deliveries] == ["e1"]


def test_time_passes_only_on_request() -> None:
    world = CheckedWorld(seed=1, policy_for=lambda name: Policy(lease_us=30_000_000))
    client = world.connect()
    client.send_line({"type": "subscribe", "stream": "s", "credit": 2, "expired": True})
    client.request("enqueue", to="s", env=env("e1"))
    world.advance(ms=29_000)
    assert [line["attempt"] for line in client.deliveries] == [1]
    world.advance(ms=2_000)
    assert [line["attempt"] for line in client.deliveries] == [1, 2]
    assert "expired" in [line["type"] for line in client.lines]


@pytest.mark.promise("Invariants", "4: acknowledged envelopes survive, confirmed settles are not delivered again")
def test_what_was_acknowledged_survives_a_crash_and_what_was_confirmed_does_not_return() -> None:
    world = CheckedWorld(seed=1)
    client = world.connect()
    for n in range(3):
        client.request("enqueue", to="s", env=env(f"e{n}"))
    client.request("subscribe", stream="s", credit=1)
    world.advance(ms=50)
    ack = client.request("ack", id="e0")
    world.advance(ms=50)
    assert client.answers[ack]["type"] == "ok"
    world.crash()
    assert client.closed is not None
    again = world.connect()
    again.send_line({"type": "subscribe", "stream": "s", "credit": 10})
    world.advance(ms=50)
    assert [line["env"]["id"] for line in again.deliveries] == ["e1", "e2"]


def test_a_full_disk_refuses_records_and_takes_settles() -> None:
    world = CheckedWorld(seed=1)
    client = world.connect()
    client.request("enqueue", to="s", env=env("e1"))
    client.request("subscribe", stream="s", credit=1)
    world.advance(ms=50)
    world.journal.mood = "full"
    refused = client.request("enqueue", to="s", env=env("e2"))
    ack = client.request("ack", id="e1")
    world.advance(ms=50)
    assert client.answers[refused]["code"] == "JournalUnavailable"
    assert client.answers[ack]["type"] == "ok"


def test_a_reader_that_pauses_is_given_no_more_than_fits() -> None:
    world = CheckedWorld(seed=1, limits=Limits(outbox_max=2_000))
    socket = world.subscribe("s", credit=1_000)
    socket.pipe.pause()
    client = world.connect()
    for n in range(100):
        client.request("enqueue", to="s", env=env(f"e{n}", "x" * 200))
    world.advance(ms=500)
    assert socket.messages == []
    assert 0 < world.stats("s")["inflight"] < 30
    socket.pipe.resume()
    world.advance(ms=5_000)
    assert len(socket.messages) == 100


def test_a_cut_connection_gives_its_leases_back() -> None:
    world = CheckedWorld(seed=1)
    socket = world.subscribe("s", credit=1)
    client = world.connect()
    client.request("enqueue", to="s", env=env("e1"))
    world.advance(ms=50)
    assert world.stats("s")["inflight"] == 1
    socket.pipe.cut()
    world.advance(ms=50)
    assert world.stats("s")["inflight"] == 0
    assert world.stats("s")["depth"] == 1


def test_the_wall_clock_may_step_back() -> None:
    world = CheckedWorld(seed=1)
    client = world.connect()
    client.send_line({"type": "subscribe", "stream": "s", "credit": 1})
    client.request("enqueue", to="s", env=env("e1"), delayMs=1_000)
    world.advance(ms=100)
    world.clock.step_wall(-3_600_000_000)
    world.advance(ms=1_000)
    assert len(client.deliveries) == 1
    stamps = [row.recorded_at for row in world.journal.rows]
    assert stamps == sorted(stamps)


@pytest.mark.promise("Invariants", "a failing seed can be replayed")
@pytest.mark.parametrize(("seed", "code"), [(3, 0)])
def test_a_seed_can_be_replayed_from_the_command_line(seed: int, code: int) -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--steps", "300"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == code, told.stderr
    assert "every invariant held" in told.stdout.splitlines()[-1]
    assert len(told.stdout.splitlines()) > 100
