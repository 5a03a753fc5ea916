"""A NATS cluster whose account is the one that `create --print-permissions` prints, and commands that sign in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import TypeVar

import msgspec
import pytest
from nats.aio.client import Client

from penstock.core.cluster.status import NodeReport, ShardReport
from penstock.journal.replicated.connection import connect_servers, parse_servers
from penstock.journal.replicated.membership import NODE
from penstock.server.ops.cluster.operator import find_buckets, patiently
from penstock.server.ops.cluster.permissions import account_config
from tests.nats_servers import NatsServers
from tests.server_process import environment
from tests.server_template import run_command

CLUSTER = "prod"
R = TypeVar("R")
COMMAND_S = 120


def accounts_of(cluster: str) -> str:
    """The printed account, with passwords in place of variables and without its line about JetStream."""
    text = account_config(cluster).replace("$PENSTOCK_NATS_PASSWORD", "secret").replace("$SYSTEM_NATS_PASSWORD", "sys")
    return "\n".join(line for line in text.splitlines() if not line.startswith("jetstream"))


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    found = NatsServers(tmp_path_factory.mktemp("guarded"), accounts=accounts_of(CLUSTER))
    yield found
    found.close()


@pytest.fixture(scope="package")
def join(guarded: NatsServers) -> str:
    """What `--join` gets."""
    return ",".join(guarded.urls)


@pytest.fixture(scope="package")
def creds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("creds") / "penstock.creds"
    file.write_text("penstock:secret\n")
    return file


Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def command(join: str, creds: Path, tmp_path: Path) -> Command:
    """A command about the cluster, as an operator runs it."""

    def run(*words: str, **more: str) -> CompletedProcess[str]:
        where = {"PENSTOCK_JOIN": join, "PENSTOCK_NATS_CREDS": str(creds), "PENSTOCK_CLUSTER": CLUSTER} | more
        return run_command(["cluster", *words], tmp_path, environment(**where), None, timeout=COMMAND_S)

    return run


@pytest.fixture(scope="package")
def created(join: str, creds: Path) -> None:
    """The cluster, made once."""
    words = ["cluster", "create", "--shard-mib", "16"]
    where = environment(PENSTOCK_JOIN=join, PENSTOCK_NATS_CREDS=str(creds), PENSTOCK_CLUSTER=CLUSTER)
    end = time.monotonic() + COMMAND_S
    while True:  # the servers are still starting
        done = run_command(words, creds.parent, where, None, timeout=COMMAND_S)
        if done.returncode == 0:
            return
        assert "Unreachable" in done.stderr or "answer" in done.stderr, done.stderr
        assert time.monotonic() < end, done.stderr


@pytest.fixture
def with_client(join: str, creds: Path) -> Callable[[Callable[[Client], Awaitable[R]]], R]:
    """Do something with a connection that may do what a node may."""

    def run(work: Callable[[Client], Awaitable[R]]) -> R:
        async def go() -> R:
            client = await connect_servers(parse_servers(join, creds), "penstock test")
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(go())

    return run


async def report(client: Client, **owners: list[int]) -> None:
    """Write the keys of nodes that own these shards."""
    buckets = await find_buckets(client, CLUSTER)
    now_us = time.time_ns() // 1000
    for name, shards in owners.items():
        mine = {shard: ShardReport("owning", 3, 40 + shard, now_us) for shard in shards}
        rest = {shard: ShardReport("following", 3, 40) for shard in range(16) if shard not in mine}
        about = ("0" * 16, "0.1.0", f"http://127.0.0.1:1{name}", f"tcp://127.0.0.1:2{name}", 7, now_us, now_us, True)
        node = NodeReport(*about, shards=mine | rest)
        await patiently(lambda name=name, node=node: buckets.live.put(NODE + name, msgspec.json.encode(node)))


async def clear(client: Client) -> None:
    """Remove every node and decision."""
    buckets = await find_buckets(client, CLUSTER)
    for bucket, prefixes in ((buckets.live, ("node.",)), (buckets.config, ("move.", "drain.", "repair."))):
        for key in await patiently(lambda bucket=bucket: keys_of(bucket)):
            if key.startswith(prefixes):
                await bucket.delete(key)


async def keys_of(bucket) -> list[str]:
    from penstock.journal.replicated.cluster_keys import entries

    return [entry.key for entry in await entries(bucket)]
