"""Pulls in a cluster: spare connections to nodes that are gone, and waits that are cut off.

A home and its connections are scripted, on a clock of their own: what they do takes up to a minute.
"""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace

import pytest

from penstock.client.control.owner_links import MOVE_MAX_S
from penstock.client.queue.pulls import WAIT_GRACE_S, Pulls
from penstock.core.errors import PenstockError, Refusal
from tests.client.control.test_owner_links import opened, owners
from tests.client.scripted_peer import peer, run, until

BODY = b'{"type":"pull","stream":"jobs"'


def gone() -> PenstockError:
    return PenstockError(Refusal("Unreachable", "the node is gone"))


class Nodes:
    """Scripted nodes: each waiting pull takes its next step, the seconds that it lasts and whether it ends with an answer."""

    def __init__(self, *steps: tuple[float, bool], is_cluster: bool = True) -> None:
        self.now = 1000.0
        self.steps = [*steps]
        self.dialed: list[str] = []
        self.waits: list[int] = []
        self.at_once = 0
        self.map = object() if is_cluster else None
        self.home = SimpleNamespace(loop=SimpleNamespace(time=lambda: self.now), address="new")
        self.pulls = Pulls(self.home, self, self.dial)

    def may_have_moved(self, error: PenstockError, until_s: float) -> bool:
        return self.map is not None and error.code == "Unreachable" and self.now < until_s

    async def request(self, stream: str, body: bytes, *, is_repeatable: bool) -> bytes:
        assert body.endswith(b'"waitMs":0') and not is_repeatable
        self.at_once += 1
        return self.step(10.0)

    async def dial(self, address: str) -> Connection:
        self.dialed.append(address)
        return Connection(self, address)

    def step(self, timeout_s: float) -> bytes:
        takes_s, is_answered = self.steps.pop(0)
        assert takes_s <= timeout_s
        self.now += takes_s
        if not is_answered:
            raise gone()
        return b"{}"


class Connection:
    """A connection to one of them."""

    def __init__(self, nodes: Nodes, address: str, *, is_ready: bool = True) -> None:
        self.nodes = nodes
        self.address = address
        self.is_ready = is_ready
        self.is_closed = False

    async def request(self, body: bytes, *, is_repeatable: bool, timeout_s: float) -> bytes:
        found = re.fullmatch(rb'\{"type":"pull","stream":"jobs","waitMs":(\d+)', body)
        assert found and not is_repeatable
        self.nodes.waits.append(int(found[1]))
        assert timeout_s == self.nodes.waits[-1] / 1000 + WAIT_GRACE_S
        assert not self.is_closed and self.is_ready, "this one has no node"
        return self.nodes.step(timeout_s)

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.promise("Cluster", "a move costs an SDK client a pause and no error")
@pytest.mark.parametrize(("address", "is_ready"), [("new", False), ("old", True), ("old", False)])
def test_spare_connections_to_a_node_that_is_gone_are_closed(address, is_ready):
    nodes = Nodes((0.1, True))
    spares = [Connection(nodes, address, is_ready=is_ready) for _ in range(2)]
    nodes.pulls._idle += spares
    assert asyncio.run(nodes.pulls.take("jobs", BODY, 25_000)) == b"{}"
    assert all(spare.is_closed for spare in spares)
    assert nodes.dialed == ["new"] and nodes.waits == [25_000]


def test_a_spare_connection_to_the_home_is_used_again():
    nodes = Nodes((0.1, True), (0.1, True))
    for _ in range(2):
        asyncio.run(nodes.pulls.take("jobs", BODY, 1_000))
    assert nodes.dialed == ["new"]


def test_without_a_cluster_a_spare_connection_waits_for_its_server():
    nodes = Nodes((0.1, True), is_cluster=False)
    nodes.pulls._idle.append(Connection(nodes, "old"))
    asyncio.run(nodes.pulls.take("jobs", BODY, 1_000))
    assert nodes.dialed == []


@pytest.mark.promise("Cluster", "a move costs an SDK client a pause and no error")
def test_a_long_pull_that_is_cut_off_late_waits_for_the_rest_of_its_time():
    nodes = Nodes((31.0, False), (29.0, True))
    assert asyncio.run(nodes.pulls.take("jobs", BODY, 60_000)) == b"{}"
    assert nodes.waits == [60_000, 29_000]


def test_each_move_during_a_long_pull_has_its_own_time():
    nodes = Nodes((31.0, False), (MOVE_MAX_S + 1, False), (5.0, False), (10.0, True))
    assert asyncio.run(nodes.pulls.take("jobs", BODY, 100_000)) == b"{}"
    assert nodes.waits == [100_000, 69_000, 38_000, 33_000]


def test_a_pull_whose_time_is_over_is_repeated_without_a_wait():
    nodes = Nodes((1.5, False), (0.1, True))
    assert asyncio.run(nodes.pulls.take("jobs", BODY, 1_000)) == b"{}"
    assert nodes.waits == [1_000] and nodes.at_once == 1


@pytest.mark.parametrize("wait_ms", [0, 25_000, 100_000])
def test_pulls_are_repeated_for_a_bounded_time(wait_ms):
    nodes = Nodes(*[(9.0, False)] * 20)
    with pytest.raises(PenstockError, match="gone"):
        asyncio.run(nodes.pulls.take("jobs", BODY, wait_ms))
    assert len(nodes.steps) >= 20 - 5


def test_a_refusal_that_no_move_explains_is_raised_at_once():
    nodes = Nodes((0.1, False), is_cluster=False)
    with pytest.raises(PenstockError, match="gone"):
        asyncio.run(nodes.pulls.take("jobs", BODY, 1_000))
    assert nodes.waits == [1_000]


def test_a_waiting_pull_leaves_the_connection_to_a_node_that_died():
    async def go():
        async with peer() as a, peer() as b:
            client, home = await opened(a, owners({"a": a, "b": b}, {"jobs": "a"}))
            pulling = asyncio.ensure_future(client.pull("jobs", wait_ms=25_000))
            spare = await a.accept()
            frame = await spare.read("pull")
            assert frame["waitMs"] == 25_000
            spare.ok(frame, deliveries=[])
            assert await pulling == []
            a.close()
            await spare.cut()
            await home.cut()
            await b.accept()
            await until(lambda: client.url == b.url and client._connection.is_ready)
            pulling = asyncio.ensure_future(client.pull("jobs", wait_ms=25_000))
            again = await b.accept()
            again.ok(await again.read("pull"), deliveries=[])
            assert await pulling == []
            await client.close()

    run(go())
