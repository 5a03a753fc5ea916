"""`penstock bench pipeline`: the Spark side, compared with Spark's own file sources and with a server without it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

from cyclopts import Parameter

from penstock.bench.harness.load import BENCHES
from penstock.bench.harness.processes import ProcessGroup
from penstock.bench.harness.result import (
    BenchCell,
    BenchResult,
    Lines,
    Plot,
    check_plot,
    find_versions,
    refuse,
    save_plot,
)
from penstock.bench.pipeline.live import BATCH, PipelineRounds
from penstock.bench.pipeline.spark_loads import ALL, CATCH_UP, ONE_BATCH, SparkJob
from penstock.bench.queue.commands import Rounds
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_note

PARTS, ALL_QUERIES = "source,freshness,idle,busy,growth", "scan,count,window"
SPARK_S = 4 * 3600.0  # how long a load inside Spark may be silent


def pipeline(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of each live part, divided among its rounds.")] = 30.0,
    rounds: Rounds = 3,
    rows: Annotated[int, Parameter(help="Journal rows that the sources read.")] = 1_000_000,
    queries: Annotated[str, Parameter(help="Queries on the sources, with commas.")] = ALL_QUERIES,
    rate: Annotated[int, Parameter(help="Envelopes per second while freshness is measured.")] = 200,
    sizes: Annotated[str, Parameter(help="Journal rows of `growth`, with commas.")] = "10000,100000",
    only: Annotated[str, Parameter(help="Parts to run, with commas.")] = PARTS,
    master: Annotated[str, Parameter(help="Spark master of `source` and `growth`.")] = "local[2]",
    plot: Plot = None,
    output: Output = PLAIN,
) -> int:
    """Measure the pipeline: its source and JSON and Parquet files, the freshness of its tables, and its cost.

    A plot needs `pip install 'penstock[bench]'`. For example:

      penstock bench pipeline --only source --rows 4000000 --rounds 5 --json
      penstock bench pipeline --only growth --sizes 10000,100000,1000000,10000000 --plot growth.svg
    """
    result = BenchResult.begin("pipeline", locals())
    parts, asked = result.parse_names("only", "part", PARTS), result.parse_names("queries", "query", ALL_QUERIES)
    if find_spec("pyspark") is None:
        refuse("pyspark is not installed", "run `pip install 'penstock[spark]'`")
    check_plot(plot)
    counts = sorted(set(result.parse_numbers("sizes")))
    result.versions |= find_versions("pyspark", "pyarrow", "deltalake")

    def measure_live(live: PipelineRounds) -> None:
        """The parts that need a server with a pipeline."""
        if "freshness" in parts:
            print_note(f"freshness: a server, its pipeline, and {rate} envelopes a second")
            done = live.freshness(seconds, rate)
            result.add(f"freshness, {rate} a second", "one envelope a line", [done], client="probes")
        if "idle" in parts:
            print_note("idle: waiting until the journal is at rest")
            rest = live.idle(seconds, rate)
            result.add(f"idle, {rest.count} processes", "nothing is sent", [rest], "pipeline", "at rest")
            each = ", ".join(f"{name}: {words}" for name, words in (rest.by_program or {}).items())
            result.notes.append(f"with shared pages counted once, {rest.pss_mib:,.0f} MiB; processes: {each}")
        live.end()
        if "busy" in parts:
            print_note("busy: a server with a pipeline and one without alternate")
            fed, plain, speeds = live.busy(seconds, rounds)
            words = f"{BATCH} envelopes a line, both ways; synced before they are confirmed"
            workload = f"busy, closed loop, {BATCH} a frame"
            ours = result.add(workload, words, fed, "with a pipeline")
            result.add(workload, words, plain, "without").compare(ours)
            each = ", ".join(f"{speed:,.0f}" for speed in speeds)
            result.notes.append(f"until it had caught up, the pipeline took {each} rows a second")

    def run(group: ProcessGroup) -> None:
        job = SparkJob(
            seconds=SPARK_S, rows=[rows], rounds=rounds, master=master, queries=asked, folder=str(group.folder)
        )
        if "source" in parts:
            if (BENCHES / "spark_sources.py").is_file():
                compare_sources(_run_spark(group, "spark_sources:source", job))
            else:
                result.notes.append("no part `source`: its queries are in the source repository only")
        measure_live(PipelineRounds(group))
        if "growth" in parts:
            job.rows = counts
            found = _run_spark(group, "pipeline.spark_loads:growth", job)
            if plot is not None:
                save_plot(plot, "Growth of the tables", "journal rows", {"seconds": growth_lines(found)})

    return ProcessGroup(result, durable=True).run(run, output)


def _run_spark(group: ProcessGroup, role: str, job: SparkJob) -> list[BenchCell]:
    """The cells of a load inside Spark; Spark's own log goes to a file."""
    found: list[BenchCell] = []

    def add(cell: BenchCell) -> None:
        found.append(group.result.add(cell.workload, cell.batched, cell.rounds, cell.target, cell.client))

    group.load(role, job, log=group.folder / f"{role.partition(':')[2]}.log").report(add)
    return found


def growth_lines(found: list[BenchCell]) -> Lines:
    """Seconds by the number of rows: to fill all tables and each, and of one small batch."""
    lines: Lines = {ALL: []}
    rows = 0.0
    for cell in found:
        if cell.target == ONE_BATCH:  # comes after the tables of the same size
            lines.setdefault(ONE_BATCH, []).append((rows, (cell.middle("p50") or 0.0) / 1000))
        elif cell.workload != CATCH_UP:
            rows = cell.rounds[0].count
            lines.setdefault(cell.target, []).append((rows, cell.rounds[0].seconds))
    return lines


def compare_sources(found: list[BenchCell]) -> None:
    """Set the ratio of our first source of a query to each of Spark's."""
    ours: dict[str, BenchCell] = {}
    for cell in found:
        mine = ours.setdefault(cell.workload, cell)
        if cell.target != "penstock":
            cell.compare(mine)
