"""kill -9 of the real server under load, repeatedly on the same directory (invariants 2 and 4).

Producers and a consumer speak Control v1 and record the answers. After every restart the test compares them with the server's state:
every acknowledged envelope is live or settled, every confirmed settle stays settled, and no number is used twice.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.journal.reader import JournalReader
from tests.integration.serving import Bytes, Http, connected, encode, envelope, until
from tests.server_process import ServerProcess, environment

ROUNDS = 5
SEALED_ROUNDS = 3
STREAM = "jobs"
ACKED_A_ROUND = 1000
"""A server dies once it has confirmed so many settles more, or fewer."""
PATIENCE_S = 20.0
STREAMS = "streams: {maxDepth: 1000000, dedupWindow: 1000000}\n"
SEALING = "journal: {seal_every_ms: 1000, segment_max: 65536}\n"


class Ledger:
    """The answers that clients received, over all lives of the server."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.accepted: dict[str, int] = {}
        """Acknowledged envelopes and their numbers."""
        self.offered: set[str] = set()
        self.confirmed: set[str] = set()
        """Envelopes whose ack was answered."""
        self.tried: set[str] = set()
        """Envelopes whose ack was sent."""
        self.delivered: dict[str, int] = {}
        self.problems: list[str] = []
        self.enough = threading.Event()
        self.goal = 0

    def accept(self, id_: str, seq: int) -> None:
        with self.lock:
            known = self.accepted.get(id_)
            if known is not None and known != seq:
                self.problems.append(f"`{id_}` was number {known} and is number {seq}")
            self.accepted[id_] = seq

    def deliver(self, id_: str, seq: int) -> None:
        with self.lock:
            if id_ in self.confirmed:
                self.problems.append(f"`{id_}` came again though its ack was confirmed")
            if self.delivered.setdefault(id_, seq) != seq:
                self.problems.append(f"`{id_}` came as number {self.delivered[id_]} and as {seq}")
            if self.accepted.get(id_, seq) != seq:
                self.problems.append(f"`{id_}` was accepted as {self.accepted[id_]} and came as {seq}")

    def confirm(self, id_: str) -> None:
        with self.lock:
            self.confirmed.add(id_)
            if len(self.confirmed) >= self.goal:
                self.enough.set()


class Client(threading.Thread):
    """A client on a control connection until the server is gone."""

    def __init__(self, url: str, work: Callable[[Bytes], None]) -> None:
        super().__init__(daemon=True)
        self.peer = Bytes(url)
        self.work = work
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.work(self.peer)
        except (OSError, msgspec.DecodeError, AssertionError) as error:
            # The end of the connection, wherever it met us; anything else is a finding.
            is_end = isinstance(error, (OSError, msgspec.DecodeError)) or "ended within a line" in str(error)
            self.failure = None if is_end else error
        finally:
            self.peer.close()


def produce(ledger: Ledger, name: str) -> Callable[[Bytes], None]:
    """Sends in batches with several requests under way; after a crash the unanswered ids are sent again."""

    def work(peer: Bytes) -> None:
        dice = Random(name)
        with ledger.lock:
            mine = [id_ for id_ in ledger.offered if id_.startswith(f"{name}-")]
            again = sorted(set(mine) - set(ledger.accepted))
            number = len(mine)
        waiting: dict[int, list[str]] = {}
        request = 0
        while True:
            while len(waiting) < 4:
                ids = again[:3]
                del again[:3]
                for _ in range(dice.randint(1, 5)):
                    ids.append(f"{name}-{number}")
                    number += 1
                with ledger.lock:
                    ledger.offered.update(ids)
                request += 1
                waiting[request] = ids
                # A retry carries the same bytes, or its id would be used for other content.
                envelopes = [envelope(id_, id_ * (int(id_[2:]) % 60 + 1)) for id_ in ids]
                peer.say({"type": "enqueue", "to": STREAM, "env": envelopes, "reqId": request})
            frame = peer.frame()
            assert frame["type"] == "ok", frame
            ids = waiting.pop(frame["reqId"])
            for id_, seq in zip(ids, frame["result"]["seqs"], strict=True):
                ledger.accept(id_, seq)

    return work


def consume(ledger: Ledger) -> Callable[[Bytes], None]:
    """Takes what comes; acks most of it, sometimes without asking for an answer, sometimes gives it back."""

    def work(peer: Bytes) -> None:
        dice = Random(7)
        peer.say({"type": "subscribe", "stream": STREAM, "credit": 50, "reqId": "sub"})
        while True:
            frame = peer.frame()
            if frame["type"] == "ok":
                if frame["reqId"] != "sub":
                    ledger.confirm(frame["reqId"])
                continue
            assert frame["type"] == "deliver", frame
            id_ = frame["env"]["id"]
            ledger.deliver(id_, frame["seq"])
            draw = dice.random()
            lines: list[dict[str, Any]] = [{"type": "grant", "n": 1}]
            if draw < 0.8:
                with ledger.lock:
                    ledger.tried.add(id_)
                lines.append({"type": "ack", "id": id_, "reqId": id_})
            elif draw < 0.9:
                with ledger.lock:
                    ledger.tried.add(id_)
                lines.append({"type": "ack", "id": id_})
            else:
                lines.append({"type": "nack", "id": id_, "delayMs": dice.choice((0, 50, 600_000))})
            peer.say(*lines)

    return work


def check(server: ServerProcess, ledger: Ledger) -> None:
    """The server's books against the clients'."""
    assert ledger.problems == []
    if not ledger.accepted:
        return
    http = Http(server.http)
    stats = http.stats(STREAM)
    counters = http.counters()[STREAM]
    settled = sum(counters[f"q.{name}"] for name in ("ack", "dead", "drop", "purged", "moved"))
    here = stats["depth"] + stats["inflight"] + stats.get("delayed", 0)
    assert counters["q.in"] == settled + here, (counters, stats)
    with connected(server.control) as peer:
        ids = sorted(ledger.accepted)
        for start in range(0, len(ids), 500):
            part = ids[start : start + 500]
            peer.write(b"".join(encode({"type": "where", "id": id_, "reqId": id_}) + b"\n" for id_ in part))
            for id_ in part:
                places = [one for one in peer.result(id_)["places"] if one["stream"] == STREAM]
                assert len(places) == 1, f"`{id_}` was acknowledged and is in {places}"
                (place,) = places
                assert place["seq"] == ledger.accepted[id_], id_
                if id_ in ledger.confirmed:
                    assert place["state"] == "settled", f"`{id_}` was confirmed and is {place}"
                elif place["state"] == "settled":
                    assert id_ in ledger.tried, f"`{id_}` is settled and nobody asked for that"
    assert counters["q.in"] >= len(ledger.accepted)
    assert len(ledger.confirmed) <= counters["q.ack"] <= len(ledger.tried)
    numbers = list(ledger.accepted.values())
    assert len(set(numbers)) == len(numbers), "a number was used twice"


def loaded(server: ServerProcess, ledger: Ledger, goal: int) -> list[Client]:
    """Clients at work, once they have had so many settles confirmed."""
    ledger.enough.clear()
    ledger.goal = len(ledger.confirmed) + goal
    clients = [
        Client(server.control, produce(ledger, "p")),
        Client(server.control, produce(ledger, "q")),
        Client(server.control, consume(ledger)),
    ]
    assert ledger.enough.wait(PATIENCE_S), (ledger.problems, [client.failure for client in clients])
    return clients


def killed(server: ServerProcess, clients: list[Client]) -> None:
    server.kill()
    for client in clients:
        client.join(PATIENCE_S)
        assert not client.is_alive()
        assert client.failure is None, client.failure


@pytest.mark.promise("Journal", "acknowledged envelopes survive kill -9 of a real server")
def test_killed_again_and_again_it_keeps_every_promise(start_server: Callable[..., ServerProcess]) -> None:
    dice = Random(11)
    ledger = Ledger()
    for _ in range(ROUNDS):
        server = start_server(config=STREAMS, fresh=True)
        check(server, ledger)
        killed(server, loaded(server, ledger, dice.randint(1, ACKED_A_ROUND)))
    server = start_server(config=STREAMS, fresh=True)
    check(server, ledger)
    assert len(ledger.confirmed) > ROUNDS * ACKED_A_ROUND // 8
    assert server.stop() == 0
    assert ledger.problems == []


@pytest.mark.promise("Journal", "acknowledged envelopes survive kill -9 of a real server")
def test_killed_while_it_seals_it_keeps_every_promise(start_server: Callable[..., ServerProcess]) -> None:
    """The sealer may outlive its server, and the next server meets what it left half done."""
    ledger = Ledger()
    versions = set()
    for turn in range(SEALED_ROUNDS):
        server = start_server(config=SEALING + STREAMS, fresh=True)
        check(server, ledger)
        before = sealed(server.data)
        clients = loaded(server, ledger, 100)
        # At the first sign of one of the steps of a seal, in turn.
        until(partial(is_sealing, server.data, before, turn % 4), "a seal")
        killed(server, clients)
        versions.update(sealed(server.data)[1])
    server = start_server(config=SEALING + STREAMS, fresh=True)
    check(server, ledger)
    assert len(versions) >= SEALED_ROUNDS - 1
    assert server.stop() == 0
    check_history(server.data, ledger)


def is_sealing(data: Path, before: tuple[list[str], ...], step: int) -> bool:
    return bool(set(sealed(data)[step]) - set(before[step]))


def sealed(data: Path) -> tuple[list[str], ...]:
    """What sealing leaves where, in the order in which it does."""
    places = (
        (data / "lake" / "events", "date=*/*.parquet"),
        (data / "lake" / "events" / "_delta_log", "*.json"),
        (data / "journal", "live-*"),
        (data / "journal", "live-*.seg"),
    )
    return tuple(sorted(str(path) for path in folder.glob(pattern)) for folder, pattern in places)


def check_history(data: Path, ledger: Ledger) -> None:
    """The whole history, from table and segments: dense, each envelope enqueued once and settled at most once."""
    reader = JournalReader(data)
    bounds = reader.bounds()
    names = ["offset", "event", "channel", "id", "seq"]
    table = pa.Table.from_batches(reader.batches(0, bounds.end, names))
    assert table.column("offset").to_pylist() == list(range(bounds.end))
    enqueued: dict[str, int] = {}
    acked: set[str] = set()
    for row in table.to_pylist():
        if row["channel"] != STREAM:
            continue
        if row["event"] == "enqueue":
            assert row["id"] not in enqueued
            enqueued[row["id"]] = row["seq"]
        elif row["event"] == "ack":
            assert row["id"] not in acked
            acked.add(row["id"])
    assert ledger.accepted.items() <= enqueued.items()
    assert ledger.confirmed <= acked <= ledger.tried
    assert sorted(enqueued.values()) == sorted(set(enqueued.values()))
    assert 0 < bounds.sealed_end <= bounds.end


def test_killed_while_it_starts_it_starts_again(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    server = start_server()
    Http(server.http).enqueue(STREAM, *(f"e{n}" for n in range(500)))
    server.kill()
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "up",
        "--no-pipeline",
        "--no-relay",
        "--data",
        str(server.data),
    ]
    command += ["--http", "127.0.0.1:0", "--control", "127.0.0.1:0"]
    with (tmp_path / "starts.log").open("wb") as log:
        for moment_ms in range(100, 600, 60):
            process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=log, stderr=log)
            try:
                process.wait(moment_ms / 1000)
            except subprocess.TimeoutExpired:
                process.kill()
            assert process.wait(PATIENCE_S) == -signal.SIGKILL, (tmp_path / "starts.log").read_text()
    server = start_server()
    assert Http(server.http).stats(STREAM)["depth"] == 500
