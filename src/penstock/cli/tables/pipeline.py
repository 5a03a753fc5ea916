"""`penstock pipeline run|status|wait|reset|rebuild|backfill`: the Spark pipeline that fills the tables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption, reading, seal_now
from penstock.cli.options import flag, token_option
from penstock.cli.output import print_fields, print_json, print_line, print_note, print_result, print_table
from penstock.cli.tables import pipeline_session
from penstock.cli.tables.lake import lake_in
from penstock.ipc.pipeline import WORKSHOP, PipelineTask, QueryStatus
from penstock.journal.plain_values import iso

WAIT_S = 120.0
NOTE_S = 5.0
"""How often `wait` says how far the tables are."""

pipeline = App(name="pipeline", help="Run and manage the Spark pipeline that fills the tables.")

ConfigFile = Annotated[Path | None, Parameter(name="--config", help="The server's config file.")]
Journals = Annotated[
    list[Path] | None, Parameter(help="A further data directory whose journal fills the same tables; may be repeated.")
]
Cluster = Annotated[str | None, Parameter(help="The `cluster` of several journals; default: the id of the first.")]
Names = Annotated[list[str] | None, Parameter(help="Tables; default: all.")]


@pipeline.command
def run(
    *,
    once: Annotated[bool, flag("Bring every table up to date, then exit.")] = False,
    master: Annotated[str | None, Parameter(help="Spark master: local[N], spark://…, yarn, k8s://….")] = None,
    url: Annotated[
        str | None,
        Parameter(help="Read the journal from this server, http://host:port, for executors on other machines."),
    ] = None,
    token: Annotated[str | None, token_option("Operator token of that server.")] = None,
    journal: Journals = None,
    cluster: Cluster = None,
    conf: Annotated[list[str] | None, Parameter(help="A Spark setting, KEY=VALUE; may be repeated.")] = None,
    config: ConfigFile = None,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Run the pipeline here until Ctrl-C, or once.

    With --once the journal is sealed first, by the running server or by this command; then every table is brought up
    to that point. If the server runs a pipeline of its own, the command waits for that one.

    For example:

      penstock pipeline run --once
      penstock pipeline run --master spark://cluster:7077 --url http://broker:8787
    """
    settings = pipeline_session.load_settings(config)
    if master is not None:
        settings = msgspec.structs.replace(settings, master=master)
    sealed: dict[str, Any] = seal_now(place.data, config) if once and url is None else {}
    running = pipeline_session.find_running(place.data)
    if running is not None:
        if not once:
            raise pipeline_session.pipeline_error(
                f"process {running.pid} already runs the pipeline of `{place.data}`", "stop it first"
            )
        print_note("a pipeline is already running; waiting for it")
        return wait(offset=sealed.get("sealedEnd"), place=place)
    pipeline_session.require_spark()
    door = url or pipeline_session.find_http_url(place.data)
    task = PipelineTask(
        str(place.data.absolute()),
        settings,
        door,
        once=once,
        read_url=url,
        token=token,
        journals=tuple(map(str, journal or ())),
        cluster=cluster,
        conf=dict(pipeline_session.parse_setting(text) for text in conf or ()),
    )
    code = _in_process(task)
    status = pipeline_session.read_status(place.data)
    assert status is not None
    if code != 0:
        raise pipeline_session.pipeline_error(status.message or "the pipeline failed", status.hint)
    if place.as_json:
        print_json({"state": status.state, "offset": status.offset, "end": status.end, "sealed": sealed})
    elif once:
        print_line(f"every table holds the journal up to offset {status.offset}")
    return code


def _in_process(task: PipelineTask) -> int:
    """Run a task in this process until it is done or interrupted."""
    import signal

    from penstock.spark.pipeline.process import Runner
    from penstock.spark.pipeline.reporter import Reporter

    runner = Runner(task, Reporter(Path(task.data)))
    before = {number: signal.signal(number, lambda *_: runner.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    with pipeline_session.follow_progress(Path(task.data)):
        try:
            return runner.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@pipeline.command
def status(
    *,
    batches: Annotated[bool, flag("Show the latest batches, and where their time went.")] = False,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """Show whether the pipeline runs, how far each query and table is, and what to do when it does not run.

    For example:

      penstock pipeline status
      penstock pipeline status --batches
      penstock pipeline status --json
    """
    with reading():
        found = pipeline_session.current_status(place.data)
    running = pipeline_session.find_running(place.data)
    finding = found.finding()
    if place.as_json:
        shown = {**msgspec.to_builtins(found), "state": found.state, "offset": found.offset, "lag": found.lag}
        print_json({**shown, "health": finding.to_json()})
        return
    since, failed = (iso(at_us) if at_us else None for at_us in (found.since_us, found.failed_us))
    print_fields(
        {
            "state": f"{found.state} since {since}" if since else found.state,
            "reason": finding.reason,
            **({"what to do": finding.action} if finding.action else {}),
            **({"last failure": f"{failed}: {found.failure}"} if failed else {}),
            "journal": f"{found.end} rows, {found.lag} not in every table yet",
            **({"Spark": found.ui} if found.ui and running else {}),
        }
    )
    queries = found.queries | found.own_queries
    if queries:
        rows = []
        for name, one in queries.items():
            offset, at = None if name in found.own_queries else one.offset, iso(one.at_us) if one.at_us else None
            rows.append([name, offset, one.batches, one.rows, one.input_rate, one.batch_ms, at])
        print_table(["query", "offset", "batches", "rows", "rows/s", "ms", "at"], rows)
    if found.tables and not batches:
        columns = ("rows", "version", "lag_rows", "lag_seconds", "batch_ms", "batch_rows", "files", "bytes")
        rows = [[name, *(getattr(one, column) for column in columns)] for name, one in found.tables.items()]
        print_table(["table", *(column.replace("_", " ") for column in columns)], rows)
    for name, query in queries.items() if batches else ():
        _print_batches(name, query)
    if found.failed:
        lines = [[one.query, one.table, one.step, one.count, iso(one.at_us), one.cause] for one in found.failed]
        print_table(["failed in query", "table", "step", "batches", "last at", "cause"], lines)
    if found.expectations:
        expected = [[one.table, one.name, one.on_fail, one.failed, one.sample] for one in found.expectations]
        print_table(["table", "expectation", "on fail", "rows", "such as"], expected)
    for reason in found.stopped.values():
        print_line(f"stopped: {reason}")
    for name, offset in found.behind.items():
        print_line(f"behind: {name} is at {offset}")
    for name, state in found.own.items():
        print_line(f"{name}: {state if running else 'stopped'}")


def _print_batches(name: str, query: QueryStatus) -> None:
    """The latest batches of a query, with their steps, longest first."""
    rows = [[iso(batch.at_us), batch.rows, batch.ms, _longest(batch.steps)] for batch in query.recent]
    print_table([name, "rows", "ms", "ms by step"], rows)
    if query.trigger:
        print_line(f"{name}: {query.input_rate:g} rows a second; Spark's last trigger in ms: {_longest(query.trigger)}")


def _longest(steps: Mapping[str, int]) -> str:
    order = sorted(steps, key=lambda step: -steps[step])
    return ", ".join(f"{step} {steps[step]}" for step in order if steps[step])


@pipeline.command
def wait(
    *,
    offset: Annotated[int | None, Parameter(help="Wait for rows before this offset; default: all rows of now.")] = None,
    timeout: Annotated[float, Parameter(help="Seconds to wait.")] = WAIT_S,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Wait until every table holds the journal up to an offset, and show the progress. The exit code is 3 on a timeout.

    For example:

      penstock pipeline wait
      penstock pipeline wait --offset 100000 --timeout 300
    """
    with reading():
        goal = pipeline_session.journal_end(place.data) if offset is None else offset
    deadline = time.monotonic() + timeout
    shown = ("", "")
    next_s = 0.0
    while True:
        with reading():
            found = pipeline_session.current_status(place.data)
        reached, finding = found.offset, found.finding()
        if reached >= goal:
            break
        if found.state == "halted":
            raise pipeline_session.pipeline_error(found.message or "the pipeline has halted", found.hint)
        is_over = time.monotonic() >= deadline
        # At once when the state or the failure changes, else at intervals when there is progress.
        news = (found.state, found.failure)
        if is_over or news != shown or time.monotonic() >= next_s:
            shown, next_s = news, time.monotonic() + NOTE_S
            said = [f"the tables are at {reached} of {goal}", finding.reason, finding.action]
            print_note("; ".join(filter(None, said)))
        if is_over:
            if place.as_json:
                print_json({"reached": False, "offset": reached, "wanted": goal, "health": finding.to_json()})
            return 3
        time.sleep(pipeline_session.POLL_S if found.state == "running" else pipeline_session.TABLES_POLL_S)
    result = {"reached": True, "offset": reached, "wanted": goal}
    print_result(result, f"every table holds the journal up to offset {reached}", as_json=place.as_json)
    return 0


@pipeline.command
def reset(
    query: Annotated[
        str | None, Parameter(help="ingest, watch, or a query of your own; default: the first two.")
    ] = None,
    *,
    accept_loss: Annotated[bool, flag("Record missing rows as a gap, and continue after them.")] = False,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """Delete the checkpoints of queries. Tables keep their rows and their positions, so no row is lost or doubled.

    For example:

      penstock pipeline reset
      penstock pipeline reset ingest
      penstock pipeline reset --accept-loss
    """
    import shutil

    from penstock.journal.lake_location import side_of
    from penstock.spark.pipeline.queries import CHECKPOINTS, OWN, QUERIES

    checkpoints = side_of(lake_in(place.data)) / CHECKPOINTS
    pipeline_session.refuse_running(place.data)
    names = QUERIES if query is None else (query,)
    own = sorted(one.name for one in checkpoints.glob(f"{OWN}*"))
    if query is not None and query not in (*QUERIES, *own):
        raise pipeline_session.pipeline_error(f"there is no query `{query}`", f"queries: {', '.join((*QUERIES, *own))}")
    skipped: dict[str, Any] = {}
    if accept_loss:
        from penstock.spark.pipeline.ingest import accept

        with pipeline_session.as_pipeline_errors():
            skipped = accept(place.data)
    for name in names:
        shutil.rmtree(checkpoints / name, ignore_errors=True)
    pipeline_session.clear_halt(place.data)
    gaps = [f"{name}: rows {first} to {end - 1} are recorded as a gap" for name, (first, end) in skipped.items()]
    lines = [f"deleted the checkpoints of {' and '.join(names)}", *gaps]
    print_result({"reset": list(names), "skipped": skipped}, lines, as_json=place.as_json)


@pipeline.command
def backfill(
    tables: Names = None,
    *,
    journal: Journals = None,
    cluster: Cluster = None,
    config: ConfigFile = None,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """Fill tables up to the end of the journal, for example a new table. A pipeline may be running.

    For example:

      penstock pipeline backfill
      penstock pipeline backfill errors_by_sender --config penstock.yaml
    """
    with (
        pipeline_session.open_tables([place.data, *(journal or ())], cluster, config) as ingest,
        pipeline_session.alone(place.data, WORKSHOP, "fills or erases tables"),
        pipeline_session.progress_bars() as show,
    ):
        end = ingest.backfill(tables, show)
    print_result({"offset": end}, f"up to offset {end}", as_json=place.as_json)


@pipeline.command
def rebuild(
    tables: Annotated[list[str], Parameter(help="Tables to rebuild.")],
    *,
    accept_loss: Annotated[bool, flag("Rebuild even if the oldest rows are no longer in the journal.")] = False,
    journal: Journals = None,
    cluster: Cluster = None,
    config: ConfigFile = None,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """Rebuild tables from the whole journal, and swap each in when it is complete.

    For example:

      penstock pipeline rebuild queue_minutes
    """
    from penstock.spark.pipeline.rebuild import rebuild_table

    with (
        pipeline_session.open_tables([place.data, *(journal or ())], cluster, config) as ingest,
        pipeline_session.alone(place.data, WORKSHOP, "fills or erases tables"),
        pipeline_session.progress_bars() as show,
    ):
        ends = {name: rebuild_table(ingest, name, accept_loss=accept_loss, on_progress=show) for name in tables}
    status = pipeline_session.read_status(place.data)
    if status is not None and status.state == "halted":
        pipeline_session.clear_halt(place.data)
    lines = [f"{name}: rebuilt up to offset {end}" for name, end in ends.items()]
    print_result({"rebuilt": ends}, lines, as_json=place.as_json)
