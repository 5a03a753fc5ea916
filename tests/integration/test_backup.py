"""Backup and restore of a loaded server."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.cli import main
from penstock.journal.audit import audit
from tests.integration.serving import Http, until
from tests.server_process import ServerProcess

CONFIG = """
journal: {seal_every_ms: 200}
spaces:
  - space: {id: workshop}
    participants: {ada: {capabilities: [{kind: chat}]}}
"""
"""It seals all the time, so that copying meets it."""
BALANCE = ("q.ack", "q.dead", "q.drop", "q.purged", "q.moved", "q.depth", "q.if", "q.delayed")


class Load:
    """Enqueues, and acks half of it, until it is stopped; records the answers."""

    def __init__(self, server: ServerProcess) -> None:
        self._http = Http(server.http)
        self._stop = threading.Event()
        self.sent: list[str] = []
        self.acked: list[str] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._stop.is_set():
            ids = [f"e{number + step}" for step in range(20)]
            number += 20
            self._http.enqueue("jobs", *ids)
            self.sent += ids
            for one in self._http.pull("jobs", max=10):
                id_ = one["deliver"]["id"]
                assert self._http.settle(id_, "ack", leaseId=one["leaseId"]).status == 200
                self.acked.append(id_)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def states(data: Path) -> dict[str, list[str]]:
    """All journal events of each envelope."""
    from penstock.journal.reader import JournalReader

    reader = JournalReader(data)
    bounds = reader.bounds()
    found: dict[str, list[str]] = {}
    for batch in reader.batches(bounds.first, bounds.end, ["event", "id", "channel"]):
        for row in batch.to_pylist():
            if row["channel"] == "jobs" and row["id"]:
                found.setdefault(row["id"], []).append(row["event"])
    return found


@pytest.mark.promise(
    "Operations",
    "a backup of a server under load has everything acknowledged before it began, and balances",
)
def test_a_copy_made_under_load_has_everything_that_was_answered_before(tmp_path, capsys):
    folder = tmp_path / "server"
    folder.mkdir()
    server = ServerProcess(folder, config=CONFIG)
    load = Load(server)
    copies = []
    try:
        until(lambda: len(load.acked) > 100 and DeltaTable.is_deltatable(str(server.data / "lake/events")))
        for name in ("copy", "copy.tar"):
            sent, acked = list(load.sent), list(load.acked)
            assert main(["backup", str(tmp_path / name), "--data", str(server.data), "--json"]) == 0
            copies.append((name, sent, acked, json.loads(capsys.readouterr().out)))
            until(lambda sent=sent: len(load.sent) > len(sent))  # the server goes on
    finally:
        load.stop()
        server.kill()
    for name, sent, acked, made in copies:
        data = tmp_path / f"restored-{name}/penstock-data"
        assert main(["restore", str(tmp_path / name), "--data", str(data), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["end"] == made["end"] and told["journal"] == made["journal"]
        report = audit(data)
        assert report.is_sound and report.notes == [] and report.end == made["end"]
        found = states(data)
        assert set(sent) <= set(found), "an answered envelope is missing"
        assert all("ack" in found[one] for one in acked)
        assert not (data / "run").exists()
        assert (data / "spaces/workshop/tokens/ada.token").is_file()

    again = ServerProcess(data.parent, config=CONFIG)
    try:
        http = Http(again.http)
        figures = http.counters()["jobs"]
        assert figures["q.in"] == len(found) == sum(figures[name] for name in BALANCE)
        assert figures["q.ack"] == sum("ack" in events for events in found.values())
        http.enqueue("jobs", "later")
    finally:
        again.kill()
    assert audit(data).is_sound
