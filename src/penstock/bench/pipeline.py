"""`penstock bench pipeline`: the Spark side, beside Spark's own file sources and beside a server without it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.bench import commands, result
from penstock.bench.pipeline_growth import ALL
from penstock.bench.pipeline_live import BATCH, Live
from penstock.bench.pipeline_plot import plot as draw
from penstock.bench.pipeline_processes import FedStage, Found, SparkJob, TimedRound
from penstock.bench.pipeline_source import QUERIES
from penstock.bench.processes import BenchError
from penstock.bench.result import Cell, Outcome, Round
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_note
from penstock.core.errors import PenstockError, Refusal

PARTS = ("source", "freshness", "idle", "busy", "growth")
LIBRARIES = ("pyspark", "pyarrow", "deltalake")
SIZES = "100000,1000000"
LARGE = 10_000_000
JSON_LEAST, PARQUET_LEAST = 1.5, 0.45
FRESH_MOST_MS = 2_000.0
IDLE_CPU_MOST, IDLE_MIB_MOST = 0.05, 1_500.0
BUSY_LEAST = 0.8
GOAL_QUERY = "source, window aggregation"


def pipeline(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of each live part; rounds share them.")] = 30.0,
    rounds: Annotated[int, Parameter(help="Rounds a cell; peers take turns, medians are shown.")] = 3,
    rows: Annotated[int, Parameter(help="Journal rows that the sources read.")] = 1_000_000,
    queries: Annotated[str, Parameter(help="What they are asked, with commas.")] = ",".join(QUERIES),
    rate: Annotated[int, Parameter(help="Envelopes a second while freshness is measured.")] = 200,
    sizes: Annotated[str, Parameter(help="Journal rows of the growth part, with commas.")] = SIZES,
    large: Annotated[
        bool, Parameter(negative="", show_default=False, help=f"Also {LARGE:,} rows; takes a good while.")
    ] = False,
    only: Annotated[str, Parameter(help="Parts to run, with commas.")] = ",".join(PARTS),
    master: Annotated[str, Parameter(help="Where Spark runs for source and growth.")] = "local[2]",
    plot: Annotated[Path | None, Parameter(help="Write the growth as an SVG file.")] = None,
    output: Output = PLAIN,
) -> int:
    """Measure the pipeline: its source beside JSON and Parquet files, how fresh its tables are, and what it costs.

    For example:

      penstock bench pipeline
      penstock bench pipeline --only source --rows 4000000 --rounds 5 --json
      penstock bench pipeline --only growth --large --plot growth.svg
    """
    parts, asked = _chosen("part", only, PARTS), _chosen("query", queries, tuple(QUERIES))
    if find_spec("pyspark") is None:
        hint = "`pip install 'penstock[spark]'`"
        raise PenstockError(Refusal("InvalidRequest", "pyspark is not installed", hint=hint))
    counts = sorted({int(word) for word in sizes.split(",")} | ({LARGE} if large else set()))
    options: dict[str, object] = {
        "seconds": seconds, "rounds": rounds, "rows": rows, "rate": rate, "sizes": counts, "only": parts, "queries": asked, "master": master,
    }  # fmt: skip
    outcome = result.begin("pipeline", options)
    outcome.versions.update({name: metadata.version(name) for name in LIBRARIES})
    with FedStage() as stage:
        bench = _Bench(outcome, stage)
        try:
            if "source" in parts:
                bench.source(rows, rounds, asked, master)
            bench.live(parts, seconds, rounds, rate)
            if "growth" in parts:
                bench.growth(counts, master, plot)
        except BenchError as error:
            outcome.failures.append(str(error))
    return commands.show(outcome, output)


class _Bench:
    """Runs the parts and keeps what they find."""

    def __init__(self, outcome: Outcome, stage: FedStage) -> None:
        self._outcome = outcome
        self._stage = stage

    def source(self, rows: int, rounds: int, queries: list[str], master: str) -> None:
        """The source beside Spark's own."""
        found = self._spark(SparkJob("source", str(self._stage.folder), [rows], rounds, master, queries))
        for workload in dict.fromkeys(cell.workload for cell in found):
            ours, *others = [cell for cell in found if cell.workload == workload]
            for other in others:
                if other.target != "penstock":
                    other.ratio = _ratio(ours, other)
        goals = {"JSON files": JSON_LEAST, "Parquet files": PARQUET_LEAST}
        for cell in found:
            if cell.workload == GOAL_QUERY and cell.target in goals:
                least = goals[cell.target]
                words = f"the source with `columns` does {cell.ratio} of the rows a second of {cell.target}"
                self._judge((cell.ratio or 0.0) >= least, f"{words}, at least {least} are wanted")
                ours = next(one for one in found if one.workload == GOAL_QUERY)
                share = (cell.middle(_wall_s) or 0.0) / (ours.middle(_wall_s) or 1.0)
                whole = f"with the start of the query counted it does {share:.3f} of those of {cell.target}"
                self._outcome.notes.append(whole)

    def live(self, parts: list[str], seconds: float, rounds: int, rate: int) -> None:
        """What needs a server and a pipeline behind it."""
        live = Live(self._stage)
        if "freshness" in parts:
            print_note(f"freshness: a server, its pipeline, and {rate} envelopes a second")
            done = live.freshness(seconds, rate)
            self._add(f"freshness, {rate} a second", "penstock", "probes", "one envelope a line", [done])
            p95_ms = (done.latency_ms or {}).get("p95", 0.0)
            words = f"an envelope is counted in gold after {p95_ms:,.0f} ms at p95"
            self._judge(p95_ms < FRESH_MOST_MS, f"{words}, under {FRESH_MOST_MS:,.0f} ms are wanted")
        if "idle" in parts:
            print_note("idle: waiting until the journal is at rest")
            rest = live.idle(seconds, rate)
            self._add(f"idle, {rest.count} processes", "pipeline", "at rest", "nothing is sent", [rest])
            share, rss = rest.server_cpu_share or 0.0, rest.server_rss_mib or 0.0
            self._judge(
                share < IDLE_CPU_MOST, f"at rest it takes {share:.2%} of a core, under 5 % are wanted"
            )
            self._judge(rss < IDLE_MIB_MOST, f"and {rss:,.0f} MiB, under {IDLE_MIB_MOST:,.0f} are wanted")
            each = ", ".join(f"{name}: {words}" for name, words in (rest.by_program or {}).items())
            note = f"without counting shared pages twice that is {rest.pss_mib:,.0f} MiB; processes: {each}"
            self._outcome.notes.append(note)
        live.end()
        if "busy" in parts:
            print_note("busy: a server with a pipeline and one without take turns")
            self._busy(*live.busy(seconds, rounds))
        if live.command:
            self._outcome.commands["penstock"] = live.command

    def _busy(self, fed: list[Round], plain: list[Round], speeds: list[float]) -> None:
        words = f"{BATCH} envelopes a line, both ways; synced before they are confirmed"
        workload = f"busy, closed loop, {BATCH} a frame"
        ours = self._add(workload, "with a pipeline", "lean", words, fed)
        theirs = self._add(workload, "without", "lean", words, plain)
        theirs.ratio = _ratio(ours, theirs)
        wanted = f"with a pipeline the doors do {theirs.ratio} of what they do without"
        self._judge((theirs.ratio or 0.0) >= BUSY_LEAST, f"{wanted}, at least {BUSY_LEAST} are wanted")
        each = ", ".join(f"{speed:,.0f}" for speed in speeds)
        self._outcome.notes.append(
            f"under that load and until it had caught up, the pipeline took {each} rows a second"
        )

    def growth(self, sizes: list[int], master: str, file: Path | None) -> None:
        """Filling all tables from journals of several sizes."""
        found = self._spark(SparkJob("growth", str(self._stage.folder), sizes, master=master))
        for cell in found:
            if cell.target == ALL:
                same = [one for one in found if one.workload == cell.workload and one is not cell]
                shares = {one.target: one.rounds[0].seconds / cell.rounds[0].seconds for one in same}
                words = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
                self._outcome.notes.append(f"{cell.workload}: of the time, {words}")
        if file is not None:
            lines: dict[str, list[tuple[float, float]]] = {ALL: []}
            for cell in found:
                lines.setdefault(cell.target, []).append((cell.rounds[0].count, cell.rounds[0].seconds))
            file.write_text(draw("Filling every table from the journal", "journal rows", "seconds", lines))

    def _spark(self, job: SparkJob) -> list[Cell]:
        """The cells of a process with a Spark session of its own."""
        cells = []
        for said in self._stage.spark(job).said():
            if said.note is not None:
                print_note(f"{job.role}: {said.note}")
            if said.found is not None:
                cells.append(self._take(said.found))
        return cells

    def _take(self, found: Found) -> Cell:
        return self._add(found.workload, found.target, found.client, found.words, [*found.rounds])

    def _add(self, workload: str, target: str, client: str, words: str, rounds: list[Round]) -> Cell:
        cell = Cell(workload, target, client, words, rounds)
        self._outcome.cells.append(cell)
        pick: Callable[[Round], float | None] = lambda one: one.per_second or None  # noqa: E731 - said twice
        middle = cell.middle(pick)
        if middle:
            best = max(one.per_second for one in rounds)
            print_note(f"{workload}: {target} {client}: {middle:,.0f} a second, {best:,.0f} at best")
        return cell

    def _judge(self, is_met: bool, words: str) -> None:
        self._outcome.notes.append(f"goal {'met' if is_met else 'missed'}: {words}")


def _chosen(what: str, text: str, known: tuple[str, ...]) -> list[str]:
    """Names with commas between them, each of which must be known."""
    names = text.split(",")
    for name in names:
        if name not in known:
            hint = f"one or more of {', '.join(known)}, with commas"
            raise PenstockError(Refusal("InvalidRequest", f"there is no {what} `{name}`", hint=hint))
    return names


def _wall_s(one: Round) -> float | None:
    return one.wall_s if isinstance(one, TimedRound) else None


def _ratio(ours: Cell, theirs: Cell) -> float | None:
    speeds = [cell.middle(lambda one: one.per_second) or 0.0 for cell in (ours, theirs)]
    return round(speeds[0] / speeds[1], 3) if speeds[1] else None
