"""`penstock bench cluster`: pauses of a cluster in trouble. Exit code 3 if a confirmed envelope is lost or a settled one returns."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from penstock.bench.cluster.ledger import ClusterLedger, percentiles
from penstock.bench.harness.drive import HOST
from penstock.bench.harness.processes import ProcessGroup, ServerProcess, read_children, read_proc, wait_until
from penstock.bench.harness.result import BenchError, BenchResult, BenchRound, refuse
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_table
from penstock.client.address import ServerEndpoints
from penstock.client.admin import RemoteCluster
from penstock.core.cluster.assignment import assign
from penstock.core.errors import PenstockError
from penstock.core.placement import SHARDS
from penstock.journal.replicated.connection import connect_servers, parse_servers
from penstock.journal.replicated.jetstream import ANSWER_S, FAILURES, stream_name

EVENTS = "move,drain,kill,pause,leader"
NODES = ("a", "b", "c")
CLUSTER = "bench"
MOVES = 4  # shards of a `move`, one after the other
WAIT_S, LOOK_S, ASK_S = 120.0, 0.1, 10.0
ROUNDS_MAX = 10_000


class BenchNode(ServerProcess):
    """One start of a node. It ends at once, with the NATS servers that it started: a bench keeps no data."""

    start_s = WAIT_S  # the first one waits for an election of its NATS servers

    def __init__(self, folder: Path, name: str, first: Path, is_ended: Callable[[], bool]) -> None:
        """`first` is the data directory of node `a`."""
        self._data, self._is_ended = first.with_name(name), is_ended
        (self._data / "run/endpoints.json").unlink(missing_ok=True)  # of the process before
        join = ["--join", "local"]
        if name != NODES[0]:
            join = ["--join", (first / "nats/url").read_text().strip(), "--nats-creds", str(first / "nats/creds")]
        words = ["-m", "penstock", "up", *join, "--cluster", CLUSTER, "--node", name, "--data", str(self._data)]
        words += ["--http", f"{HOST}:0", "--control", f"{HOST}:0", "--no-relay", "--no-pipeline"]
        super().__init__(folder, [sys.executable, *words])

    def is_ready(self) -> bool:
        if self._is_ended():
            raise BenchError("interrupted")
        return (self._data / "run/endpoints.json").exists()

    def endpoints(self) -> ServerEndpoints:
        return msgspec.json.decode((self._data / "run/endpoints.json").read_bytes(), type=ServerEndpoints)

    def token(self) -> str:
        return (self._data / "run/operator.token").read_text().strip()

    def nats_pid(self, name: str) -> int | None:
        """The process of a NATS server of node `a`."""
        ends = f"nats/{name}.conf\0"
        return next((pid for pid in read_children(self.pid) if read_proc(pid, "cmdline").endswith(ends)), None)

    def stop(self) -> None:
        children = read_children(self.pid) if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            wait_until(lambda pid=pid: not read_proc(pid, "cmdline"), ASK_S, lambda: "a NATS server does not end")  # type: ignore[misc]


class BenchCluster:
    """Three nodes. `a` has the NATS servers and serves the clients, which send to every shard; the others are in trouble."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._ended = threading.Event()
        self._first = group.folder / NODES[0]
        self._nodes: dict[str, BenchNode] = {}
        for name in NODES:
            self._start(name)
        ends = self._nodes["a"].endpoints()
        self.url = str(ends.control)
        self._remote = RemoteCluster(
            ends.http, self._nodes["a"].token(), timeout_s=ASK_S, retry_s=WAIT_S, sleep=self._sleep
        )
        self._servers = parse_servers((self._first / "nats/url").read_text().strip(), self._first / "nats/creds")
        self._calm()

    def _start(self, name: str) -> None:
        make = partial(BenchNode, name=name, first=self._first, is_ended=self._ended.is_set)
        self._nodes[name] = self._group.start(make, f"node {name}")

    def abort(self) -> None:
        self._ended.set()

    def _sleep(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise BenchError("interrupted")

    def _until(self, what: str, is_done: Callable[[], object]) -> None:
        """A failure of a request means that it is not done yet."""

        def look() -> bool:
            self._sleep(LOOK_S)
            try:
                return bool(is_done())
            except PenstockError:
                return False

        wait_until(look, WAIT_S, lambda: f"{what} does not happen within {WAIT_S:.0f} s")

    def _owners(self) -> dict[int, str | None]:
        return {one.shard: one.owner for one in self._remote.status().shards if one.state == "owning"}

    def _calm(self, *without: str) -> None:
        """Until each shard is served by the node where it belongs, if these nodes own none."""
        wanted = dict(enumerate(assign([name for name in NODES if name not in without], SHARDS)))
        self._until(f"a balance without {list(without)}" if without else "a balance", lambda: self._owners() == wanted)

    def disturb(self, event: str, number: int) -> list[int]:
        """One event, until the cluster has dealt with it; returns the shards that it affects."""
        try:
            if event == "leader":
                return self._lose_leader()
            victim = NODES[1 + number % 2]
            owners = self._owners()
            shards = [shard for shard, owner in sorted(owners.items()) if (owner == victim) != (event == "move")]
            shards = shards[:MOVES] if event == "move" else shards
            {"move": self._move, "drain": self._drain, "kill": self._kill, "pause": self._pause}[event](victim, shards)
            self._calm()
        except PenstockError as error:
            raise BenchError(f"{event}: {error}") from None
        return shards

    def _move(self, victim: str, shards: list[int]) -> None:
        for shard in shards:
            self._remote.move(shard, victim)
            self._until(f"a move of shard {shard}", lambda shard=shard: self._owners().get(shard) == victim)  # type: ignore[misc]
        for shard in shards:
            self._remote.move(shard, None)

    def _drain(self, victim: str, _shards: list[int]) -> None:
        self._remote.drain(victim, on=True)
        self._calm(victim)
        self._remote.drain(victim, on=False)

    def _kill(self, victim: str, _shards: list[int]) -> None:
        self._nodes[victim].stop()
        self._calm(victim)
        self._start(victim)

    def _pause(self, victim: str, _shards: list[int]) -> None:
        self._nodes[victim].process.send_signal(signal.SIGSTOP)
        try:
            self._calm(victim)
        finally:
            self._nodes[victim].process.send_signal(signal.SIGCONT)

    def _lose_leader(self) -> list[int]:
        """Kill the NATS server that leads most logs; node `a` starts it again."""
        leaders = self._leaders()
        server, _ = Counter(leaders.values()).most_common(1)[0]
        first = self._nodes["a"]
        pid = first.nats_pid(server)
        if pid is None:
            raise BenchError(f"the process of the NATS server `{server}` is not there")
        os.kill(pid, signal.SIGKILL)
        self._until(f"a restart of the NATS server `{server}`", lambda: first.nats_pid(server) not in (None, pid))
        self._leaders()
        self._calm()
        return [shard for shard, leader in leaders.items() if leader == server]

    def _leaders(self) -> dict[int, str]:
        """The NATS server that leads the log of each shard, when every copy of every log is up to date."""
        found: dict[int, str] = {}

        def is_whole() -> bool:
            found.update(asyncio.run(self._read_leaders()))
            return len(found) == SHARDS and all(found.values())

        self._until("an election with all copies up to date", is_whole)
        return found

    async def _read_leaders(self) -> dict[int, str]:
        """An empty name where a copy is missing or behind."""
        client = await connect_servers(self._servers, "penstock bench")
        found = dict.fromkeys(range(SHARDS), "")
        try:
            for shard in found:
                info = await client.jetstream(timeout=ANSWER_S).stream_info(stream_name(CLUSTER, shard, 1))
                copies = (info.cluster and info.cluster.replicas) or []
                if info.cluster and len(copies) == len(NODES) - 1 and all(one.current for one in copies):
                    found[shard] = info.cluster.leader or ""
        except FAILURES:
            return dict.fromkeys(found, "")
        finally:
            await client.close()
        return found


def cluster(
    *,
    rounds: Annotated[int, Parameter(help="Rounds; each causes every event once.")] = 4,
    only: Annotated[str, Parameter(help=f"Events, with commas: {EVENTS}.")] = EVENTS,
    output: Output = PLAIN,
) -> int:
    """Start three nodes on three NATS servers, disturb them under load, and measure how long shards pause.

    `move` and `drain` are planned. `kill` kills a node, `pause` stops one until others have its shards, `leader` kills the NATS server
    that leads most logs. A pause is the longest time between two confirmed enqueues to an affected shard, for a client of the SDK whose
    node survives.

    For example:

      penstock bench cluster --rounds 1
      penstock bench cluster --only kill,pause,leader --rounds 34 --json
    """
    result = BenchResult.begin("cluster", locals())
    events = result.parse_names("only", "event", EVENTS)
    if not 1 <= rounds <= ROUNDS_MAX:
        refuse(f"--rounds is 1 to {ROUNDS_MAX:,}, not {rounds}")

    def run(group: ProcessGroup) -> None:
        disturbed = BenchCluster(group)
        ledger = ClusterLedger(disturbed.url)
        try:
            asyncio.run(ledger.run(disturbed, events, rounds))
            result.failures += ledger.failures()
        finally:
            rows = add_pauses(result, ledger)
            if not output.as_json:
                print_table(("event", "shards", "p50 s", "p99 s", "max s"), rows)

    return ProcessGroup(result, durable=True).run(run, output)


def add_pauses(result: BenchResult, ledger: ClusterLedger) -> list[list[object]]:
    """Add a cell for each event, and what was counted; returns the rows of the table of pauses."""
    rows: list[list[object]] = []
    for event, pauses in ledger.pauses.items():
        shards, p50_s, p99_s, max_s = percentiles(pauses)
        rows.append([event, *(figures := {"shards": shards, "p50S": p50_s, "p99S": p99_s, "maxS": max_s}).values()])
        done = BenchRound.timed(ledger.during[event], ledger.seconds[event])
        result.add(event, "nothing: one envelope a request, all shards", [done], client="sdk")
        result.notes.append(f"pauses, {event}: {msgspec.json.encode(figures).decode()}")
    counts = {"confirmed": ledger.confirmed, "lost": ledger.lost, "returned": ledger.returned, "stale": ledger.stale}
    counts |= {"settlesWithoutAnswer": ledger.unsure, "refused": sum(ledger.refused.values())}
    result.notes.append(f"envelopes: {msgspec.json.encode(counts).decode()}")
    if ledger.refused:
        result.notes.append(f"refused by code: {msgspec.json.encode(ledger.refused).decode()}")
    return rows
