"""Real nodes on real servers: an owner that is stopped and goes on, and the leader of a stream that is killed."""

import asyncio
import os
import signal
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Condition, Thread

import pytest

from penstock.core.cluster.reader import LogFrame, ShardReader
from penstock.core.cluster.writer import Found, Seek
from penstock.journal.columns import PACKED_FROM, SCHEMA, unpack_run
from penstock.journal.replicated.jetstream import JetStreamLog, stream_name
from penstock.journal.segments import payloads
from tests.cluster_node import BYTES_MAX, CLUSTER, until
from tests.journal.replicated.conftest import connected
from tests.journal.replicated.test_jetstream import call
from tests.nats_servers import NatsServers
from tests.paths import ROOT

WAIT_S = 60.0
SHARDS = 2
ID = SCHEMA.get_field_index("id") - PACKED_FROM


class Events:
    """What the nodes have printed, in the order in which it was read."""

    def __init__(self) -> None:
        self.all: list[tuple[str, ...]] = []
        """Node, event, shard, and what it is about."""
        self._news = Condition()

    def add(self, *event: str) -> None:
        with self._news:
            self.all.append(event)
            self._news.notify_all()

    def wait_for(self, what: str, shard: int, *, node: str = "", after: int = 0) -> str:
        """Wait for an event of a shard, behind so many events; returns whose it is."""

        def found() -> str:
            wanted = (what, str(shard))
            return next((event[0] for event in self.all[after:] if event[1:3] == wanted and node in event[0]), "")

        with self._news:
            whose = self._news.wait_for(found, WAIT_S)
            assert whose, f"no event `{what} {shard}` of `{node}` behind {after}; the last: {self.all[-3:]}"
            return whose


class NodeProcess:
    """A node, whose events go to a list."""

    def __init__(self, name: str, folder: Path, servers: NatsServers, events: Events) -> None:
        words = [sys.executable, "-m", "tests.cluster_node", name, str(folder / name), str(SHARDS), *servers.urls]
        self._process = Popen(words, stdout=PIPE, text=True, cwd=ROOT)
        self._thread = Thread(target=self._read, args=(name, events), daemon=True)
        self._thread.start()

    def _read(self, name: str, events: Events) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            events.add(name, *line.rstrip().split(maxsplit=2))

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill it, and read what it has printed to the end."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def make_streams(servers: NatsServers) -> None:
    async with connected(servers) as client:
        for shard in range(SHARDS):
            log = JetStreamLog(client, stream_name(CLUSTER, shard, 1))
            await until(partial(log.create, BYTES_MAX))


async def leader(servers: NatsServers, shard: int) -> str:
    async with connected(servers) as client:
        info = await until(lambda: client.jetstream().stream_info(stream_name(CLUSTER, shard, 1)))
        assert info.cluster is not None
        return info.cluster.leader or ""


async def rows_of(servers: NatsServers, shard: int) -> list[str]:
    """The ids in the log, read by the rule from its first message."""
    async with connected(servers) as client:
        log = JetStreamLog(client, stream_name(CLUSTER, shard, 1))
        reader = ShardReader(log.stream)
        found: list[str] = []
        while True:
            tail = await call(log.tail, Seek(reader.end.seq))
            if not isinstance(tail, Found):
                continue
            for seq, message in tail.messages:
                frame = reader.accept(seq, message)
                if isinstance(frame, LogFrame) and frame.kind == "rows":
                    for payload, _ in payloads(frame.payload, 0):
                        found += [row[ID] for row in unpack_run(payload, SCHEMA).rows]
                else:
                    assert frame is None or isinstance(frame, LogFrame), frame
            if tail.last <= reader.end.seq:
                assert reader.voids == 0
                return found


def check_promises(servers: NatsServers, events: Events) -> int:
    """What was kept is in the logs once, and what was refused is not."""
    total = 0
    for shard in range(SHARDS):
        rows = asyncio.run(rows_of(servers, shard))
        mine = [event for event in events.all if event[2] == str(shard)]
        kept = {event[3] for event in mine if event[1] == "kept"}
        refused = {event[3] for event in mine if event[1] == "refused"}
        assert len(rows) == len(set(rows))
        assert kept <= set(rows)
        assert not refused & set(rows)
        total += len(kept)
    return total


@pytest.mark.promise(
    "Cluster", "an owner that is stopped and goes on loses nothing and writes nothing; nor does a killed NATS leader"
)
@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.more)])
def test_a_stopped_owner_and_a_killed_leader_lose_nothing(tmp_path: Path, rounds: int) -> None:
    """The owner of one shard is stopped while the NATS leader of the other shard's stream is killed."""
    events = Events()
    with ExitStack() as stack:
        (tmp_path / "nats").mkdir()
        servers = NatsServers(tmp_path / "nats")
        stack.callback(servers.close)
        nodes = {name: NodeProcess(name, tmp_path, servers, events) for name in ("a", "b")}
        asyncio.run(make_streams(servers))
        for node in nodes.values():
            stack.callback(node.kill)
        for _ in range(rounds):
            after = len(events.all)
            events.wait_for("kept", 1, after=after)
            owner = events.wait_for("kept", 0, after=after)
            other = "b" if owner == "a" else "a"
            killed = asyncio.run(leader(servers, 1))
            nodes[owner].signal(signal.SIGSTOP)
            after = len(events.all)
            servers.kill(killed)
            events.wait_for("owned", 0, node=other, after=after)
            events.wait_for("kept", 0, node=other, after=after)
            after = len(events.all)
            nodes[owner].signal(signal.SIGCONT)
            events.wait_for("ended", 0, node=owner, after=after)
            servers.start(killed)
            events.wait_for("kept", 1, after=after)
        for node in nodes.values():
            node.kill()
        assert check_promises(servers, events) >= 3, "those that each round waits for"
