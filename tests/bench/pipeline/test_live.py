"""Freshness is from the send of a probe to its count in a table; a process tree has the cost of a pipeline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, date, datetime

import pyarrow as pa

from penstock.bench.harness.processes import ProcessGroup, cpu_s
from penstock.bench.harness.result import BenchResult
from penstock.bench.pipeline.live import (
    POLL_S,
    PROBE_EVERY_S,
    PROBE_STREAM,
    FreshnessProbes,
    ProcessTree,
    start_server,
)
from penstock.spark.lake.schemas import QUEUE_MINUTES
from penstock.spark.lake.table import LakeTable, Progress


def test_a_probe_is_seen_when_its_table_counts_it():
    with ProcessGroup(BenchResult.begin("test", {}), durable=True) as group:
        server = start_server(group, has_pipeline=False)
        table = LakeTable(server.data / "lake", QUEUE_MINUTES)
        counted = threading.Event()

        ended = threading.Event()

        def count():
            while server.counts(PROBE_STREAM).get("q.in", 0) < 2:
                if ended.wait(POLL_S):
                    return
            counted.set()
            row = {"journal": "j", "date": date(2026, 1, 1), "minute": datetime(2026, 1, 1, tzinfo=UTC)}
            row |= {"channel": PROBE_STREAM, "enqueued": 2, "final": False}
            table.merge(pa.Table.from_pylist([row], QUEUE_MINUTES.schema), {"j/0": Progress(0, 2)})

        writer = threading.Thread(target=count)
        writer.start()
        probes = FreshnessProbes(server)
        try:
            took = probes.run(PROBE_EVERY_S * 1.5)
        finally:
            ended.set()
            writer.join()
            probes.socket.close()
    assert counted.is_set() and len(took) == 2
    assert took[0] > took[1] > 0 and took[0] - took[1] >= PROBE_EVERY_S * 0.9e9


def test_a_tree_has_the_processes_that_a_process_started():
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    try:
        tree = ProcessTree(process.pid)
        assert tree.pids() == [process.pid, child]
        spent = tree.cpu_s()
        assert spent >= cpu_s(process.pid) > 0
        assert tree.rss_bytes() > tree.pss_bytes() > 0
        assert tree.names()["sleep"] == [child]
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()
    assert tree.pids() == [process.pid] and tree.cpu_s() >= spent
