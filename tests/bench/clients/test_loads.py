"""The loads of `bench clients` with a server of our own: each way to consume takes every envelope, once."""

from __future__ import annotations

import threading

import pytest

import penstock.testing
from penstock.bench.clients import loads
from penstock.bench.clients.loads import STYLES, ClientJob, Received
from penstock.bench.harness.load import Board

COUNT = 300


@pytest.mark.parametrize("style", STYLES)
def test_each_way_to_consume_takes_and_acks_everything(style, tmp_path, monkeypatch):
    monkeypatch.setattr(loads, "announce", lambda: None)
    Board.create(tmp_path / "board")
    with penstock.testing.serve() as server:
        job = ClientJob(count=COUNT, batch=7, tasks=3, style=style, board=str(tmp_path / "board"))
        job.port = int(server.url.rpartition(":")[2])
        reports = []
        consuming = threading.Thread(target=lambda: reports.append(loads.consume(job)))
        consuming.start()
        sent = loads.produce(job)
        consuming.join(30)
        assert sent.count == COUNT and [report.count for report in reports] == [COUNT]
        with server.connect_sync("ann") as client:
            found = client.stats(job.stream)
            assert (found.depth, found.inflight) == (0, 0)


def test_an_envelope_that_comes_twice_counts_once(tmp_path):
    Board.create(tmp_path / "board")
    received = Received(ClientJob(count=2, board=str(tmp_path / "board")))
    assert [received.note(f"b-{number:010d}") for number in (0, 0, 1)] == [False, False, True]
    assert received.count == 2
