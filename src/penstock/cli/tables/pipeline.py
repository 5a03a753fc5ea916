"""`penstock pipeline run|status|wait|reset|rebuild|backfill`: the Spark pipeline that fills the tables."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption, endpoints_file, reading, seal_now
from penstock.cli.output import print_fields, print_json, print_line, print_note, print_table
from penstock.core.errors import PenstockError, Refusal
from penstock.ipc.pipeline import STATUS_FILE, PipelineSection, PipelineStatus, PipelineTask
from penstock.journal.plain_values import iso

if TYPE_CHECKING:
    from penstock.spark.pipeline.ingest import Ingest

POLL_S = 0.2
WAIT_S = 120.0
"""How long `wait` waits when it is not told."""

pipeline = App(name="pipeline", help="Run and look after the Spark pipeline that fills the tables.")

ConfigFile = Annotated[Path | None, Parameter(name="--config", help="The server's config file.")]
Names = Annotated[list[str] | None, Parameter(help="Tables; left out, all of them.")]


@pipeline.command
def run(
    *,
    once: Annotated[
        bool, Parameter(negative="", help="Bring every table up to now, then end.", show_default=False)
    ] = False,
    master: Annotated[
        str | None, Parameter(help="Where Spark runs: local[N], spark://…, yarn, k8s://….")
    ] = None,
    url: Annotated[
        str | None,
        Parameter(help="Read the journal from this server, http://host:port, for executors elsewhere."),
    ] = None,
    token: Annotated[
        str | None, Parameter(env_var="PENSTOCK_TOKEN", show_env_var=True, help="Its operator token.")
    ] = None,
    conf: Annotated[
        list[str] | None, Parameter(help="A setting for Spark, as KEY=VALUE; may be repeated.")
    ] = None,
    config: ConfigFile = None,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Run the pipeline here until Ctrl-C, or once.

    With --once the journal is sealed first, by the server that runs on the directory or by this command; then every table is
    brought up to that point. When the server runs a pipeline of its own, that one is waited for.

    For example:

      penstock pipeline run --once
      penstock pipeline run --master spark://cluster:7077 --url http://broker:8787
    """
    settings = _settings(config)
    if master is not None:
        settings = msgspec.structs.replace(settings, master=master)
    sealed: dict[str, Any] = seal_now(place.data, config) if once and url is None else {}
    running = _running(place.data)
    if running is not None:
        if not once:
            raise _refused(
                f"process {running.pid} runs the pipeline of `{place.data}` already", "stop it first"
            )
        print_note("a pipeline runs already; waiting for it")
        return wait(offset=sealed.get("sealedEnd"), place=place)
    _need_spark()
    door = url or _door(place.data)
    task = PipelineTask(
        str(place.data.absolute()),
        settings,
        door,
        once=once,
        read_url=url,
        token=token,
        conf=dict(_setting(text) for text in conf or ()),
    )
    code = _in_process(task)
    status = _read(place.data)
    assert status is not None
    if code != 0:
        raise _refused(status.message or "the pipeline failed", status.hint)
    if place.as_json:
        print_json({"state": status.state, "offset": status.offset, "end": status.end, "sealed": sealed})
    elif once:
        print_line(f"every table holds the journal up to offset {status.offset}")
    return code


def _in_process(task: PipelineTask) -> int:
    """Run a task in this process until it is done or Ctrl-C."""
    import signal

    from penstock.spark.pipeline.process import Runner
    from penstock.spark.pipeline.reporter import Reporter

    runner = Runner(task, Reporter(Path(task.data)))
    before = {
        number: signal.signal(number, lambda *_: runner.stop()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    with _progress(Path(task.data)):
        try:
            return runner.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@pipeline.command
def status(*, place: DataOption = DATA_DEFAULT) -> int:
    """Say whether the pipeline runs, how far each query is, and what to do when it does not.

    For example:

      penstock pipeline status
      penstock pipeline status --json
    """
    found = _read(place.data)
    if found is None:
        found = PipelineStatus("off")
    running = _running(place.data)
    if running is None and found.state in ("running", "starting"):
        found.state = "stopped"
    if not found.journal or _has_journal(place.data):  # one that reads from a URL has none beside it
        with reading():
            found.end = _end(place.data)
    if place.as_json:
        print_json(
            {**msgspec.to_builtins(found), "state": found.state, "offset": found.offset, "lag": found.lag}
        )
        return 0
    print_fields(
        {
            "state": found.state,
            **({"problem": f"{found.code}: {found.message}", "cure": found.hint} if found.code else {}),
            "journal": f"{found.end} rows, {found.lag} not in every table yet",
            **({"Spark": found.ui} if found.ui and running else {}),
        }
    )
    if found.queries:
        print_table(
            ["query", "offset", "batches", "rows", "ms", "at"],
            [
                [
                    name,
                    query.offset,
                    query.batches,
                    query.rows,
                    query.batch_ms,
                    iso(query.at_us) if query.at_us else None,
                ]
                for name, query in found.queries.items()
            ],
        )
    for name, offset in found.behind.items():
        print_line(f"behind: {name} is at {offset}")
    for name, state in found.own.items():
        print_line(f"{name}: {state if running else 'stopped'}")
    return 0


@pipeline.command
def wait(
    *,
    offset: Annotated[
        int | None, Parameter(help="Rows before this offset; left out, all that are there now.")
    ] = None,
    timeout: Annotated[float, Parameter(help="Seconds.")] = WAIT_S,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Wait until every table holds the journal up to an offset. Exit code 3 when time runs out.

    For example:

      penstock pipeline wait
      penstock pipeline wait --offset 100000 --timeout 300
    """
    with reading():
        goal = _end(place.data) if offset is None else offset
    deadline = time.monotonic() + timeout
    while True:
        found = _read(place.data)
        reached = found.offset if found is not None and found.queries else 0
        if reached >= goal:
            break
        if found is not None and found.state == "halted":
            raise _refused(found.message or "the pipeline has halted", found.hint)
        if time.monotonic() >= deadline:
            print_note(f"the tables are at {reached} of {goal}; see `penstock pipeline status`")
            if place.as_json:
                print_json({"reached": False, "offset": reached, "wanted": goal})
            return 3
        time.sleep(POLL_S)
    if place.as_json:
        print_json({"reached": True, "offset": reached, "wanted": goal})
    else:
        print_line(f"every table holds the journal up to offset {reached}")
    return 0


@pipeline.command
def reset(
    query: Annotated[
        str | None, Parameter(help="ingest, watch, or one of your own; left out, the first two.")
    ] = None,
    *,
    accept_loss: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Note rows that are gone as a gap, and go on behind them."
        ),
    ] = False,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Forget how far the queries have read. Tables keep their rows and know their own place, so nothing is lost or doubled.

    For example:

      penstock pipeline reset
      penstock pipeline reset ingest
      penstock pipeline reset --accept-loss
    """
    import shutil

    from penstock.spark.pipeline.queries import CHECKPOINTS, QUERIES
    from penstock.spark.pipeline.user_queries import OWN

    if not place.data.is_dir():
        raise _refused(f"there is no directory `{place.data}`", "name the data directory with --data")
    _not_running(place.data)
    names = QUERIES if query is None else (query,)
    checkpoints = place.data / "lake" / CHECKPOINTS
    own = sorted(one.name for one in checkpoints.glob(f"{OWN}*"))
    if query is not None and query not in (*QUERIES, *own):
        raise _refused(f"there is no query `{query}`", f"queries: {', '.join((*QUERIES, *own))}")
    skipped: dict[str, Any] = {}
    if accept_loss:
        from penstock.spark.pipeline.gaps import accept

        with _explaining():
            skipped = accept(place.data)
    for name in names:
        shutil.rmtree(checkpoints / name, ignore_errors=True)
    _mended(place.data)
    if place.as_json:
        print_json({"reset": list(names), "skipped": skipped})
    else:
        print_line(f"forgot the checkpoints of {' and '.join(names)}")
        for table, (first, end) in skipped.items():
            print_line(f"{table}: rows {first} to {end - 1} are noted as a gap")
    return 0


@pipeline.command
def backfill(tables: Names = None, *, config: ConfigFile = None, place: DataOption = DATA_DEFAULT) -> int:
    """Bring tables up to the end of the journal, beside a running pipeline or without one: a new table, say.

    For example:

      penstock pipeline backfill
      penstock pipeline backfill errors_by_sender --config penstock.yaml
    """
    with _session(place.data, config) as ingest, _bars() as show:
        end = ingest.backfill(tables, show)
    if place.as_json:
        print_json({"offset": end})
    else:
        print_line(f"up to offset {end}")
    return 0


@pipeline.command
def rebuild(
    tables: Annotated[list[str], Parameter(help="Tables to make anew.")],
    *,
    accept_loss: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Even when the oldest rows are no longer kept."),
    ] = False,
    config: ConfigFile = None,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Make tables anew from the whole journal, beside the old ones, and swap them in when they are done.

    For example:

      penstock pipeline rebuild queue_minutes
    """
    from penstock.spark.pipeline.rebuild import rebuild_table

    with _session(place.data, config) as ingest, _bars() as show:
        ends = {
            name: rebuild_table(ingest, name, accept_loss=accept_loss, on_progress=show) for name in tables
        }
    status = _read(place.data)
    if status is not None and status.state == "halted":
        _mended(place.data)
    if place.as_json:
        print_json({"rebuilt": ends})
    else:
        for name, end in ends.items():
            print_line(f"{name}: made anew up to offset {end}")
    return 0


# What the commands share


def _settings(config: Path | None) -> PipelineSection:
    from penstock.server.config.load import ConfigError, load

    try:
        return load(config, os.environ).pipeline
    except ConfigError as error:
        raise PenstockError(Refusal("InvalidRequest", "; ".join(error.errors))) from None


def _refused(message: str, hint: str | None = None) -> PenstockError:
    return PenstockError(Refusal("PipelineFailed", message, hint=hint))


def _need_spark() -> None:
    from penstock.server.ops.pipeline_supervisor import is_installed

    if not is_installed():
        raise _refused("Spark is not installed", "`pip install penstock[spark]` brings it")


def _setting(text: str) -> tuple[str, str]:
    key, mark, value = text.partition("=")
    if not mark:
        raise PenstockError(Refusal("InvalidRequest", f"`--conf {text}` is not KEY=VALUE"))
    return key, value


def _door(data: Path) -> str | None:
    from penstock.client.address import read_endpoints

    endpoints = read_endpoints(endpoints_file(data))
    return endpoints.http if endpoints is not None else None


def _has_journal(data: Path) -> bool:
    return (data / "journal").is_dir()


def _end(data: Path) -> int:
    from penstock.journal.reader import JournalReader

    return JournalReader(data).bounds().end


def _read(data: Path) -> PipelineStatus | None:
    try:
        return msgspec.json.decode((data / "run" / STATUS_FILE).read_bytes(), type=PipelineStatus)
    except (OSError, msgspec.DecodeError):
        return None


def _running(data: Path) -> PipelineStatus | None:
    """The state of a pipeline that is running now."""
    from penstock.spark.lake.locks import TableLock
    from penstock.spark.pipeline.process import LOCK

    found = _read(data)
    if found is None or not found.pid or found.state not in ("starting", "running"):
        return None
    # Not by its number: after a crash another process may have that, in a container even this very one.
    try:
        with TableLock(data / "lake", LOCK).held(waits=False) as is_free:
            return None if is_free else found
    except PermissionError:
        return found  # somebody else's


def _mended(data: Path) -> None:
    """Have a server that left a halted pipeline alone start it again."""
    file = data / "run" / STATUS_FILE
    if file.exists():
        draft = file.with_suffix(".mended")
        draft.write_bytes(msgspec.json.encode(PipelineStatus("starting", at_us=time.time_ns() // 1000)))
        draft.replace(file)


def _not_running(data: Path) -> None:
    running = _running(data)
    if running is not None:
        raise _refused(f"process {running.pid} runs the pipeline of `{data}`", "stop it first")


@contextmanager
def _session(data: Path, config: Path | None) -> Iterator[Ingest]:
    """Everything that bringing tables forward needs, without a query."""
    _need_spark()
    from penstock.spark.pipeline.rebuild import tables_only

    settings = _settings(config)
    with _explaining(), tables_only(data, settings) as ingest:
        yield ingest


@contextmanager
def _explaining() -> Iterator[None]:
    """What may go wrong with Spark, a journal or a table, in the words of the error table."""
    from penstock.spark.java import JavaError
    from penstock.spark.lake.data_files import SchemaError
    from penstock.spark.lake.snapshots import LakeError
    from penstock.spark.master import MasterError
    from penstock.spark.pipeline.gaps import LostRowsError
    from penstock.spark.pipeline.steps import StepError
    from penstock.spark.source.errors import SourceError

    try:
        with reading():
            yield
    except MasterError as error:
        raise _refused(str(error), error.hint) from None
    except (SourceError, LostRowsError, StepError, SchemaError, LakeError, JavaError) as error:
        message, _, hint = str(error).partition("; ")
        raise _refused(message, hint or None) from None


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar a table for people; nothing off a terminal."""
    if not sys.stderr.isatty():
        yield lambda _name, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    bars: dict[str, TaskID] = {}
    with Progress(console=Console(file=sys.stderr)) as progress:

        def show(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=total)
            progress.update(bars[name], completed=done, total=total)

        yield show


@contextmanager
def _progress(data: Path) -> Iterator[None]:
    """How far the tables are, as a bar for people; nothing off a terminal."""
    import threading

    done = threading.Event()

    def follow() -> None:
        with _bars() as show:
            while not done.wait(POLL_S):
                found = _read(data)
                for name, query in (found.queries if found is not None else {}).items():
                    show(name, query.offset, found.end if found is not None else 0)

    thread = threading.Thread(target=follow, daemon=True)
    if sys.stderr.isatty():
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.is_alive():
            thread.join()
