"""`penstock bench pipeline`: the Spark side, compared with Spark's own file sources and with a server without it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.bench.harness.plot import require_matplotlib, save_plot
from penstock.bench.harness.processes import ProcessGroup
from penstock.bench.harness.result import BenchCell, BenchResult, find_versions, parse_names, refuse
from penstock.bench.pipeline.live import BATCH, PipelineRounds
from penstock.bench.pipeline.spark_loads import ALL, QUERIES, SparkJob
from penstock.bench.queue.commands import Rounds
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_note

PARTS = ("source", "freshness", "idle", "busy", "growth")
ALL_PARTS, ALL_QUERIES = ",".join(PARTS), ",".join(QUERIES)
LARGE = 10_000_000
SPARK_S = 4 * 3600.0  # how long a load inside Spark may be silent
RATIO_GOALS = {"JSON files": 1.5, "Parquet files": 0.45}
FRESH_MOST_MS = 2_000.0
IDLE_CPU_MOST, IDLE_MIB_MOST = 0.05, 1_500.0
BUSY_LEAST = 0.8
GOAL_QUERY = "source, window aggregation"


def pipeline(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of each live part, divided among its rounds.")] = 30.0,
    rounds: Rounds = 3,
    rows: Annotated[int, Parameter(help="Journal rows that the sources read.")] = 1_000_000,
    queries: Annotated[str, Parameter(help="Queries on the sources, with commas.")] = ALL_QUERIES,
    rate: Annotated[int, Parameter(help="Envelopes per second while freshness is measured.")] = 200,
    sizes: Annotated[str, Parameter(help="Journal rows of `growth`, with commas.")] = "100000,1000000",
    large: Annotated[
        bool, Parameter(negative="", show_default=False, help=f"Also {LARGE:,} rows, which takes long.")
    ] = False,
    only: Annotated[str, Parameter(help="Parts to run, with commas.")] = ALL_PARTS,
    master: Annotated[str, Parameter(help="Spark master of `source` and `growth`.")] = "local[2]",
    plot: Annotated[Path | None, Parameter(help="Draw the growth into this SVG file.")] = None,
    output: Output = PLAIN,
) -> int:
    """Measure the pipeline: its source and JSON and Parquet files, the freshness of its tables, and its cost.

    A plot needs `pip install 'penstock[bench]'`. For example:

      penstock bench pipeline
      penstock bench pipeline --only source --rows 4000000 --rounds 5 --json
      penstock bench pipeline --only growth --large --plot growth.svg
    """
    parts, asked = parse_names("part", only, PARTS), parse_names("query", queries, tuple(QUERIES))
    if find_spec("pyspark") is None:
        refuse("pyspark is not installed", "run `pip install 'penstock[spark]'`")
    if plot is not None:
        require_matplotlib()
    counts = sorted({int(word) for word in sizes.split(",")} | ({LARGE} if large else set()))
    options = {"seconds": seconds, "rounds": rounds, "rows": rows, "rate": rate, "sizes": counts}
    result = BenchResult.begin("pipeline", **options, only=parts, queries=asked, master=master)
    result.versions |= find_versions("pyspark", "pyarrow", "deltalake")

    def run(group: ProcessGroup) -> None:
        folder = str(group.folder)
        job = SparkJob(seconds=SPARK_S, folder=folder, rows=[rows], rounds=rounds, master=master, queries=asked)
        if "source" in parts:
            _judge_source(result, _run_spark(group, "source", job))
        _measure_live(result, PipelineRounds(group), parts, seconds, rounds, rate)
        if "growth" in parts:
            job.rows = counts
            found = _run_spark(group, "growth", job)
            _note_shares(result, found)
            if plot is not None:
                title = "Filling every table from the journal"
                save_plot(plot, title, "journal rows", "seconds", growth_lines(found))

    return ProcessGroup(result, durable=True).run(run, output)


def _run_spark(group: ProcessGroup, role: str, job: SparkJob) -> list[BenchCell]:
    """The cells of a load inside Spark; Spark's own log goes to a file."""
    found: list[BenchCell] = []

    def add(cell: BenchCell) -> None:
        found.append(group.result.add(cell.workload, cell.batched, cell.rounds, cell.target, cell.client))

    group.load(f"pipeline.spark_loads:{role}", job, log=group.folder / f"{role}.log").report(add)
    return found


def _judge_source(result: BenchResult, found: list[BenchCell]) -> None:
    ours: dict[str, BenchCell] = {}
    for cell in found:
        mine = ours.setdefault(cell.workload, cell)
        if cell.target == "penstock":
            continue
        ratio = cell.compare(mine) or 0.0
        if cell.workload == GOAL_QUERY:
            least = RATIO_GOALS[cell.target]
            words = f"the source with `columns` does {ratio} of the rows a second of {cell.target}"
            result.judge(f"{words}; the goal of {least}", ratio >= least)
            share = (cell.middle("wall_s") or 0.0) / (mine.middle("wall_s") or 1.0)
            result.notes.append(f"with the start of the query it does {share:.3f} of those of {cell.target}")


def _measure_live(
    result: BenchResult, live: PipelineRounds, parts: list[str], seconds: float, rounds: int, rate: int
) -> None:
    """The parts that need a server with a pipeline."""
    if "freshness" in parts:
        print_note(f"freshness: a server, its pipeline, and {rate} envelopes a second")
        done = live.freshness(seconds, rate)
        result.add(f"freshness, {rate} a second", "one envelope a line", [done], client="probes")
        p95_ms = (done.latency_ms or {}).get("p95", 0.0)
        words = f"an envelope is counted in a table after {p95_ms:,.0f} ms at p95"
        result.judge(f"{words}; the goal of {FRESH_MOST_MS:,.0f} ms", p95_ms < FRESH_MOST_MS)
    if "idle" in parts:
        print_note("idle: waiting until the journal is at rest")
        rest = live.idle(seconds, rate)
        result.add(f"idle, {rest.count} processes", "nothing is sent", [rest], "pipeline", "at rest")
        share, rss = rest.server_cpu_share or 0.0, rest.server_rss_mib or 0.0
        result.judge(f"idle CPU is {share:.2%} of a core; the goal of 5 %", share < IDLE_CPU_MOST)
        result.judge(f"idle memory is {rss:,.0f} MiB; the goal of {IDLE_MIB_MOST:,.0f}", rss < IDLE_MIB_MOST)
        each = ", ".join(f"{name}: {words}" for name, words in (rest.by_program or {}).items())
        note = f"with shared pages counted once that is {rest.pss_mib:,.0f} MiB; processes: {each}"
        result.notes.append(note)
    live.end()
    if "busy" in parts:
        print_note("busy: a server with a pipeline and one without alternate")
        fed, plain, speeds = live.busy(seconds, rounds)
        words = f"{BATCH} envelopes a line, both ways; synced before they are confirmed"
        workload = f"busy, closed loop, {BATCH} a frame"
        ours = result.add(workload, words, fed, "with a pipeline")
        ratio = result.add(workload, words, plain, "without").compare(ours) or 0.0
        goal = f"with a pipeline the server does {ratio} of its throughput without; the goal of {BUSY_LEAST}"
        result.judge(goal, ratio >= BUSY_LEAST)
        each = ", ".join(f"{speed:,.0f}" for speed in speeds)
        result.notes.append(f"under that load, and until it had caught up, the pipeline took {each} rows a second")
    if live.command:
        result.commands["penstock"] = live.command


def _note_shares(result: BenchResult, found: list[BenchCell]) -> None:
    """Note the share of each table in the time of a fill."""
    for cell in [cell for cell in found if cell.target == ALL]:
        tables = [one for one in found if one.workload == cell.workload and one is not cell]
        shares = [f"{one.target} {one.rounds[0].seconds / cell.rounds[0].seconds:.0%}" for one in tables]
        result.notes.append(f"{cell.workload}: of the time, {', '.join(shares)}")


def growth_lines(found: list[BenchCell]) -> dict[str, list[tuple[float, float]]]:
    """Seconds by the number of rows, for all tables and for each."""
    lines: dict[str, list[tuple[float, float]]] = {ALL: []}
    for cell in found:
        lines.setdefault(cell.target, []).append((cell.rounds[0].count, cell.rounds[0].seconds))
    return lines
