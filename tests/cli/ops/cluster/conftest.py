"""A NATS cluster whose account is the one that `create --print-permissions` prints, and commands that sign in."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import TypeVar

import msgspec
import pytest
from nats.aio.client import Client

from penstock.core.cluster.status import NodeReport, ShardReport
from penstock.core.errors import PenstockError
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
REFRESH_S = 1.0


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


class ReportedNodes(threading.Thread):
    """Keys of nodes as nodes write them: each second, because they end by themselves."""

    def __init__(self, join: str, creds: Path) -> None:
        super().__init__(daemon=True)
        self._address = parse_servers(join, creds)
        self._reports: dict[str, NodeReport] = {}
        self._is_changed = threading.Event()
        self._is_written = threading.Event()
        self._is_over = threading.Event()
        self._is_due = False
        """Whether `report` waits for what is written next."""
        self._failure: Exception | None = None

    def run(self) -> None:
        until_s = time.monotonic() + COMMAND_S
        while not self._is_over.is_set():
            try:
                asyncio.run(self._write())
            except PenstockError as error:  # servers that are busy may elect a leader for long
                if time.monotonic() > until_s:
                    self._failure = error
                    return
            except Exception as error:
                self._failure = error
                return

    async def _write(self) -> None:
        client = await connect_servers(self._address, "penstock test")
        try:
            buckets = await find_buckets(client, CLUSTER)
            while not self._is_over.is_set():
                is_new = self._is_changed.is_set()
                self._is_changed.clear()
                if is_new:
                    self._is_due = True
                for name, node in dict(self._reports).items():
                    await patiently(
                        lambda name=name, node=node: buckets.live.put(NODE + name, msgspec.json.encode(node))
                    )
                if self._is_due:
                    self._is_due = False
                    self._is_written.set()
                await asyncio.to_thread(self._is_changed.wait, REFRESH_S)
            for name in self._reports:
                await patiently(lambda name=name: buckets.live.delete(NODE + name))
        finally:
            await client.close()

    def report(self, **nodes: NodeReport) -> None:
        """Have these nodes report this from now on; returns when they have."""
        self._is_written.clear()
        self._reports |= nodes
        self._is_changed.set()
        until_s = time.monotonic() + 2 * COMMAND_S
        while not self._is_written.wait(REFRESH_S):
            if self._failure is not None:
                raise self._failure
            assert time.monotonic() < until_s, "the keys of nodes are not written"

    def own(self, **owners: list[int]) -> None:
        """Have these nodes own these shards."""
        now_us = time.time_ns() // 1000
        nodes: dict[str, NodeReport] = {}
        for name, shards in owners.items():
            mine = {shard: ShardReport("owning", 3, 40 + shard, now_us) for shard in shards}
            rest = {shard: ShardReport("following", 3, 40) for shard in range(16) if shard not in mine}
            about = (
                "0" * 16,
                "0.1.0",
                f"http://127.0.0.1:1{name}",
                f"tcp://127.0.0.1:2{name}",
                7,
                now_us,
                now_us,
                True,
            )
            nodes[name] = NodeReport(*about, shards=mine | rest)
        self.report(**nodes)

    def remove(self, name: str) -> None:
        """A node is gone."""
        del self._reports[name]
        self.report()

    def end(self) -> None:
        """Remove them."""
        self._is_over.set()
        self._is_changed.set()
        self.join(COMMAND_S)
        if self._failure is not None:
            raise self._failure


@pytest.fixture
def nodes(created: None, join: str, creds: Path) -> Iterator[ReportedNodes]:
    found = ReportedNodes(join, creds)
    found.start()
    try:
        yield found
    finally:
        found.end()


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
