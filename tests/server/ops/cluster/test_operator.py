"""An operator's access to a cluster: patience with servers that elect a leader, and what cannot be decided."""

from __future__ import annotations

import asyncio

import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import APIError

from penstock.core.cluster.status import ClusterStatus, NodeStatus
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.journal.replicated.cluster_keys import create
from penstock.journal.replicated.connection import NatsServersAddress, connect_servers
from penstock.journal.replicated.membership import NODE
from penstock.server.ops.cluster.operator import ClusterOperator, find_buckets, operated, patiently, refuse_node
from tests.cluster_node import until
from tests.nats_servers import NatsServers

WAIT_S = 60.0


def test_a_question_is_repeated_until_the_servers_answer() -> None:
    answers = iter([NatsTimeout(), OSError(), "yes"])

    async def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert asyncio.run(patiently(ask)) == "yes"


def test_servers_without_room_are_reported_at_once() -> None:
    async def ask() -> None:
        raise APIError(500, err_code=10047, description="insufficient storage resources available")

    with pytest.raises(PenstockError) as raised:
        asyncio.run(patiently(ask))
    assert "max_file_store" in raised.value.hint


def test_the_hint_names_the_nodes_that_can() -> None:
    nodes = [NodeStatus(name, "up", "1", "", None, [], True, 1, 1) for name in "ab"]
    with pytest.raises(InvalidRequest) as raised:
        refuse_node("c", None, ClusterStatus("x", [], nodes))
    assert "`a`, `b`" in raised.value.hint
    with pytest.raises(InvalidRequest, match="the node `c` is draining"):
        refuse_node("c", "draining", ClusterStatus("x", [], []))


def test_only_create_makes_a_cluster(servers: NatsServers) -> None:
    async def act() -> None:
        address = NatsServersAddress(tuple(servers.urls))

        async def refused() -> str:
            try:
                async with operated(address, "none"):
                    return "opened"
            except InvalidRequest as error:
                return error.message
            except PenstockError as error:  # they are still starting
                raise OSError from error

        assert "there is no cluster `none`" in await until(refused)
        client = await connect_servers(address, "test")
        js = client.jetstream(timeout=5)
        names = await until(js.streams_info)
        assert [one for one in names if "none" in one.config.name] == [], "the question made nothing"
        await until(lambda: create(client, "some", bytes_max=1_000_000))
        found = ClusterOperator(client, "some", await find_buckets(client, "some"))
        assert (await found.status()).unowned == list(range(16))
        await found.forget("gone")  # its key has ended by its age
        watch = await found.buckets.live.watch(NODE + "gone")
        entry = await watch.updates(timeout=WAIT_S)
        assert (entry.key, entry.operation) == (NODE + "gone", "DEL"), "nodes that run learn it"
        assert await found.until(lambda status: not status.unowned, 0.2) is None
        await client.close()

    asyncio.run(asyncio.wait_for(act(), WAIT_S))
