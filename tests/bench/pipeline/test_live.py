"""Freshness is measured from the send of a probe to its count in a table."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime

import pyarrow as pa

from penstock.bench.harness.processes import ProcessGroup
from penstock.bench.harness.result import BenchResult
from penstock.bench.pipeline.live import PROBE_EVERY_S, PROBE_STREAM, FreshnessProbes
from penstock.bench.pipeline.processes import start_server
from penstock.spark.lake.schemas import QUEUE_MINUTES
from penstock.spark.lake.table import LakeTable, Progress


def test_a_probe_is_seen_when_its_table_counts_it():
    with ProcessGroup(BenchResult.begin("test"), durable=True) as group:
        server = start_server(group, has_pipeline=False)
        table = LakeTable(server.data / "lake", QUEUE_MINUTES)
        counted = threading.Event()

        def count():
            while server.counts(PROBE_STREAM).get("q.in", 0) < 2:
                pass
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
            writer.join()
            probes.close()
    assert counted.is_set() and len(took) == 2
    assert took[0] > took[1] > 0 and took[0] - took[1] >= PROBE_EVERY_S * 0.9e9
