"""`penstock bench live`: what followers of a view cost the server."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from penstock.bench import result
from penstock.bench.commands import EXIT_CHECK, show
from penstock.bench.jobs import Job
from penstock.bench.processes import BenchError, Penstock, Stage
from penstock.bench.result import Cell, Round
from penstock.bench.workloads import allow_files
from penstock.cli.options import PLAIN, Output


def live(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of changes a cell.")] = 10.0,
    watchers: Annotated[
        str, Parameter(help="Followers, several with commas; 0 is what the changes cost.")
    ] = "0,1000",
    rows: Annotated[int, Parameter(help="Rows of the view.")] = 1_000,
    changes: Annotated[int, Parameter(help="Changes a second, over all rows.")] = 1_000,
    size: Annotated[int, Parameter(help="Bytes of an envelope.")] = 300,
    output: Output = PLAIN,
) -> int:
    """Measure what followers of `latestPerAgent` on WebSockets cost: CPU of the server, and how late they hear.

    For example:

      penstock bench live
      penstock bench live --watchers 100,1000 --rows 100 --changes 5000 --json
    """
    counts = [int(word) for word in watchers.split(",")]
    allowed = allow_files(max(counts))
    options = {"seconds": seconds, "watchers": counts, "rows": rows, "changes": changes, "size": size}
    outcome = result.begin("live", {**options})
    with Stage() as stage:
        try:
            for count in counts:
                if count > allowed:
                    outcome.notes.append(f"{count} followers need more open files than are allowed here")
                    count = allowed
                done = _measure(stage, count, rows, changes, size, seconds)
                words = f"live, {count:,} followers of {rows:,} rows, {changes:,} changes a second"
                batched = "changes are gathered for 100 ms; one write a follower; per second counts what all are told"
                outcome.cells.append(Cell(words, "penstock", "lean", batched, [done]))
        except BenchError as error:
            outcome.failures.append(str(error))
    return show(outcome, output) if not outcome.failures else max(show(outcome, output), EXIT_CHECK)


def _measure(stage: Stage, watchers: int, rows: int, changes: int, size: int, seconds: float) -> Round:
    server: Penstock = stage.penstock()
    name = "bench"
    fill = Job("change", port=server.port, stream=name, count=rows, size=size, tag="fill")
    stage.load(fill).report()
    followers = None
    if watchers:
        job = Job("follow", port=server.http_port, count=watchers, seconds=seconds)
        followers = stage.load(job, is_announced=True)
    load = Job(
        "change", port=server.port, stream=name, count=rows, size=size, seconds=seconds, rate=changes, tag="c"
    )
    cpu_before, began = server.cpu_s(), time.monotonic()
    sent = stage.load(load).report()
    told = None if followers is None else followers.report()
    took_s = (sent.last_ns - sent.first_ns) / 1e9
    cpu_s, all_s = server.cpu_s() - cpu_before, time.monotonic() - began
    if told is not None and told.count < watchers * min(rows, sent.count):
        raise BenchError(
            f"{sent.count} changes of {rows} rows, and {watchers} followers heard only {told.count}"
        )
    heard = 0 if told is None else told.count
    server.stop()
    return Round(
        heard or sent.count,
        round(took_s, 3),
        round((heard or sent.count) / took_s, 1),
        server_cpu_us=round(cpu_s / max(heard or sent.count, 1) * 1e6, 3),
        server_rss_mib=None,
        latency_ms=None if told is None else told.latencies,
        server_cpu_share=round(cpu_s / min(took_s, all_s), 4),
    )
