"""A cluster of three nodes on three NATS servers, all of them processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any, Self

import msgspec
import pytest

from penstock.core.placement import SHARDS
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from tests.cluster_processes import AGAIN, WAIT_S, ClusterProcesses, Node, answered, eventually
from tests.integration.serving import Answer, Http, connected, envelope
from tests.nats_servers import NAMES as SERVERS

STREAMS = [f"jobs/{number}" for number in range(40)]
NODES = ("a", "b", "c")
ENDED = {"NotLeaseHolder", "LeaseExpired", "UnknownEnvelope", "AlreadyAcked"}
"""How a settle is refused whose lease has ended."""
REFUSED = {*ENDED, *AGAIN}
"""How a request may be refused while shards move; each may be repeated, or is about a lease that has ended."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as found:
        yield found


class Ledger:
    """Clients that enqueue, pull and settle at any node, and know what was promised to them."""

    def __init__(self, cluster: ClusterProcesses, streams: list[str]) -> None:
        self._cluster = cluster
        self._streams = streams
        self._prefix = os.urandom(4).hex()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.kept: set[str] = set()
        self.settled: set[str] = set()
        self.unknown: set[str] = set()
        """Settles without an answer, or with one that does not say what became of them."""
        self.seen: Counter[str] = Counter()
        self.returned: list[str] = []
        """Envelopes that came back after their settle was confirmed."""
        self.refused: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(3)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            for name in NODES:
                count += 1
                stream = self._streams[(count + number) % len(self._streams)]
                try:
                    http = self._cluster.nodes[name].http
                    self._enqueue(http, stream, f"{self._prefix}-{number}-{count}")
                    self.drain(http, stream)
                except (
                    OSError,
                    HTTPException,
                    msgspec.DecodeError,
                    ValueError,
                ):  # a node that is gone: nothing was promised
                    self._stop.wait(0.05)

    def _enqueue(self, http: Http, stream: str, name: str) -> None:
        answer = http.post("/v1/enqueue", {"to": stream, "envelope": envelope(name, stream)})
        with self._lock:
            if answer.status == 200:
                self.kept.add(name)
            else:
                self.refused[answer.code] += 1

    def drain(self, http: Http, stream: str) -> int:
        """Take and settle what is there."""
        answer = http.post("/v1/pull", {"stream": stream, "max": 10, "wait_ms": 0, "lease_ms": 2_000})
        if answer.status != 200:
            with self._lock:
                self.refused[answer.code] += 1
            return 0
        for delivery in answer.json["deliveries"]:
            name = delivery["deliver"]["id"]
            with self._lock:
                self.seen[name] += 1
                if name in self.settled:
                    self.returned.append(name)
                self.unknown.add(name)
            settle = http.settle(name, "ack", leaseId=delivery["leaseId"])
            with self._lock:
                if settle.status == 200:
                    self.settled.add(name)
                else:
                    self.refused[settle.code] += 1
        return len(answer.json["deliveries"])

    def check(self, node: Node) -> None:
        """When all is calm: everything that was kept has been delivered, and nothing settled has come back."""
        missing = self.kept - self.settled - self.unknown

        def found() -> bool:
            for stream in self._streams:
                while self.drain(node.http, stream):
                    pass
            return not self.kept - self.settled - self.unknown

        eventually(f"delivery of {len(missing)} envelopes", found)
        assert self.returned == []
        assert set(self.refused) <= REFUSED
        assert self.kept <= set(self.seen)

    def progress(self, count: int = 20) -> None:
        """Until so many more were settled."""
        goal = len(self.settled) + count
        try:
            eventually(f"{count} more settles", lambda: len(self.settled) >= goal)
        except AssertionError:
            raise AssertionError(f"{count} more settles do not come: {self.refused}") from None


def keep(node: Node, stream: str, name: str) -> None:
    body = {"to": stream, "envelope": envelope(name)}
    assert answered(lambda: node.http.post("/v1/enqueue", body)).status == 200


def settle(node: Node, name: str, lease: str) -> Answer:
    return node.http.settle(name, "ack", leaseId=lease)


def settled(puller: Node, settler: Node, stream: str, name: str) -> str:
    """Pull an envelope at one node and settle it at another; its lease. What a lost answer had returns when its lease ends."""

    def take() -> str | None:
        body = {"stream": stream, "max": 10, "wait_ms": 1_000, "lease_ms": 10_000}
        for delivery in answered(lambda: puller.http.post("/v1/pull", body)).json["deliveries"]:
            assert delivery["deliver"]["id"] == name
            lease = str(delivery["leaseId"])
            answer = answered(lambda lease=lease: settle(settler, name, lease))
            if answer.status == 200 or answer.code == "AlreadyAcked":
                return lease
            assert answer.code in ENDED
        return None

    return str(eventually(f"delivery of {name}", take))


@pytest.mark.promise("Cluster", "any node serves any stream, over HTTP and Control v1, with answers in order")
def test_every_node_serves_every_stream(cluster: ClusterProcesses) -> None:
    owners = cluster.balanced(*NODES)
    assert set(owners.values()) == set(NODES)
    for number, stream in enumerate(STREAMS[:10]):
        a, b, c = (cluster.nodes[NODES[(number + turn) % 3]] for turn in range(3))
        keep(a, stream, f"one-{number}")
        lease = settled(b, c, stream, f"one-{number}")
        assert answered(lambda a=a, number=number, lease=lease: settle(a, f"one-{number}", lease)).status == 409
    frames = [{"type": "enqueue", "to": STREAMS[n], "env": envelope(f"c{n}"), "reqId": n} for n in range(len(STREAMS))]

    def kept_in_order() -> bool:
        with connected(cluster.nodes["a"].control) as line:
            line.say(*frames, {"type": "metrics", "reqId": "all"})
            answers = [line.frame() for _ in range(len(frames) + 1)]
        assert [answer["reqId"] for answer in answers] == [*range(len(frames)), "all"]
        codes = {answer["code"] for answer in answers if answer["type"] == "error"}
        assert codes <= AGAIN
        return not codes

    eventually("an answer to each request", kept_in_order)
    for number, stream in enumerate(STREAMS):
        settled(cluster.nodes["b"], cluster.nodes["c"], stream, f"c{number}")

    def counts_all() -> bool:
        metrics = cluster.nodes["c"].http.get("/v1/metrics").json
        return "missing" not in metrics and {row["id"] for row in metrics["streams"]} >= set(STREAMS)

    eventually("metrics of every stream", counts_all)


@pytest.mark.promise("Cluster", "a client that asks learns the owners in the answer to `hello`")
def test_hello_tells_the_owners(cluster: ClusterProcesses) -> None:
    def told_all() -> bool:
        owners = cluster.balanced(*NODES)
        with connected(cluster.nodes["b"].control) as line:
            line.say({"type": "hello", "version": "v1", "owners": True, "reqId": 1})
            told = line.frame("ok")["result"]["owners"]
        assert told["shards"] == SHARDS
        if told["map"] != [owners[shard] for shard in range(SHARDS)]:
            return False
        assert told["nodes"] == {name: cluster.nodes[name].control for name in NODES}
        return True

    eventually("the map of a balanced cluster", told_all)
    with connected(cluster.nodes["b"].control) as line:
        line.say({"type": "hello", "version": "v1", "reqId": 2})
        assert "owners" not in line.frame("ok")["result"]


def health_of(node: Node) -> dict[str, Any]:
    return dict(node.operator.get("/health").json["parts"]["cluster"])


@pytest.mark.more  # a machine that is too busy for a lease moves shards by itself
@pytest.mark.promise("Cluster", "a planned move under load costs a request a pause, never an error")
def test_a_move_under_load_refuses_nothing(cluster: ClusterProcesses) -> None:
    owners = cluster.calm(*NODES)
    shard = shard_of_stream(STREAMS[0])
    mine = [stream for stream in STREAMS if shard_of_stream(stream) == shard]
    with Ledger(cluster, mine) as ledger:
        for name in (*(node for node in NODES if node != owners[shard]), owners[shard]):
            ledger.progress()
            answer = cluster.nodes["a"].operator.post("/v1/cluster/move", {"shard": shard, "node": name})
            assert answer.status == 200, answer
            eventually(f"a move to {name}", lambda name=name: cluster.owner(name, shard) == name)
        ledger.progress()
    # Leases end with the move, as with a restart: only settles of such leases are refused.
    assert set(ledger.refused) <= ENDED
    cluster.nodes["a"].operator.post("/v1/cluster/move", {"shard": shard, "node": None})
    ledger.check(cluster.nodes["a"])


@pytest.mark.promise(
    "Cluster", "an owner that is killed loses nothing that was acknowledged, and others take its shards"
)
def test_a_killed_owner_loses_nothing(cluster: ClusterProcesses) -> None:
    cluster.calm(*NODES)
    with Ledger(cluster, STREAMS) as ledger, cluster.disturbed():
        ledger.progress()
        victim = cluster.nodes["c"]
        victim.kill()
        ledger.progress()
        eventually("a take-over", lambda: set(cluster.calm("a", "b").values()) == {"a", "b"})
        eventually("a note", lambda: health_of(cluster.nodes["a"])["state"] == "degraded")
        victim.start()
        victim.wait()
        ledger.progress()
    cluster.calm(*NODES)
    ledger.check(cluster.nodes["c"])


@pytest.mark.more  # the second owner that is lost; its lease alone takes seconds
@pytest.mark.promise("Cluster", "an owner that is stopped beyond its lease delivers nothing when it goes on")
def test_a_stopped_owner_loses_nothing(cluster: ClusterProcesses) -> None:
    owners = cluster.calm(*NODES)
    name = owners[shard_of_stream(STREAMS[0])]
    stopped = cluster.nodes[name]
    others = [one for one in NODES if one != name]
    with Ledger(cluster, STREAMS) as ledger, cluster.disturbed():
        ledger.progress()
        stopped.signal(signal.SIGSTOP)
        eventually("a take-over", lambda: name not in cluster.calm(*others).values())
        stopped.signal(signal.SIGCONT)
        ledger.progress()
    cluster.calm(*NODES)
    ledger.check(stopped)


@pytest.mark.promise("Cluster", "a node that is stopped hands its shards over, and ends with code 0")
def test_a_node_hands_over_its_shards_when_it_ends(cluster: ClusterProcesses) -> None:
    cluster.calm(*NODES)
    with Ledger(cluster, STREAMS) as ledger, cluster.disturbed():
        ledger.progress()
        node = cluster.nodes["b"]
        node.signal(signal.SIGTERM)
        try:
            assert node.process.wait(WAIT_S) == 0
        finally:
            node.kill()
        eventually("a hand-over", lambda: set(cluster.calm("a", "c").values()) == {"a", "c"})
        assert '"kept":[]' in node.log()
        ledger.progress()
        node.start()
        node.wait()
    ledger.check(node)


@pytest.mark.more
@pytest.mark.promise("Cluster", "kills, pauses and lost NATS servers in turn lose nothing that was acknowledged")
def test_a_storm_loses_nothing(cluster: ClusterProcesses) -> None:
    cluster.calm(*NODES)
    with Ledger(cluster, STREAMS) as ledger, cluster.disturbed():
        for number in range(6):
            ledger.progress()
            node, server = cluster.nodes[NODES[number % 3]], SERVERS[number % 3]
            if number % 2:
                cluster.servers.kill(server)
            if number < 3:
                node.kill()
                node.start()
                node.wait()
            else:
                node.signal(signal.SIGSTOP)
                others = [one for one in NODES if one != node.name]
                eventually("a take-over", lambda others=others: set(cluster.calm(*others).values()) <= set(others))
                node.signal(signal.SIGCONT)
            if number % 2:
                cluster.servers.start(server)
            ledger.progress()
    cluster.calm(*NODES)
    ledger.check(cluster.nodes["a"])
