"""What the commands of the pipeline share: its status file, a session for its tables, errors and progress bars."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.history.journal import reading, server_on
from penstock.core.errors import PenstockError, Refusal
from penstock.ipc.pipeline import STATUS_FILE, PipelineSection, PipelineStatus

if TYPE_CHECKING:
    from penstock.spark.pipeline.ingest import Ingest

POLL_S = 0.2
TABLES_POLL_S = 1.0
"""The same while no query reports, and the tables are read instead."""


def load_settings(config: Path | None) -> PipelineSection:
    from penstock.server.config.load import ConfigError, load

    try:
        return load(config, os.environ).pipeline
    except ConfigError as error:
        raise PenstockError(Refusal("InvalidRequest", "; ".join(error.errors))) from None


def pipeline_error(message: str, hint: str | None = None) -> PenstockError:
    return PenstockError(Refusal("PipelineFailed", message, hint=hint))


def require_spark() -> None:
    from penstock.server.ops.pipeline_supervisor import is_installed

    if not is_installed():
        raise pipeline_error("Spark is not installed", "run `pip install 'penstock[spark]'`")


def parse_setting(text: str) -> tuple[str, str]:
    key, mark, value = text.partition("=")
    if not mark:
        raise PenstockError(Refusal("InvalidRequest", f"`--conf {text}` is not KEY=VALUE"))
    return key, value


def find_http_url(data: Path) -> str | None:
    server = server_on(data)
    return server[0] if server is not None else None


def journal_end(data: Path) -> int:
    from penstock.journal.reader import JournalReader

    return JournalReader(data).bounds().end


def read_status(data: Path) -> PipelineStatus | None:
    try:
        return msgspec.json.decode((data / "run" / STATUS_FILE).read_bytes(), type=PipelineStatus)
    except (OSError, msgspec.DecodeError):
        return None


def current_status(data: Path) -> PipelineStatus:
    """What the pipeline wrote last, or that it does not run, with the present ends of the journal and of the tables."""
    from penstock.journal.lake_figures import LakeFigures
    from penstock.journal.reader import JournalReader

    found = read_status(data) or PipelineStatus("off")
    is_next = found.state == "starting" and not found.pid and find_http_url(data) is not None
    if found.state in ("running", "starting") and not is_next and find_running(data) is None:
        found.state = "stopped"
    if not found.journal or (data / "journal").is_dir():  # a pipeline that reads from a URL has no local journal
        reader = JournalReader(data)
        found.journal = found.journal or reader.identity().id
        found.reach({reader.identity().id: reader.bounds().end})
    found.show(LakeFigures(data).read(found.ends, time.time_ns() // 1000))
    return found


def find_running(data: Path) -> PipelineStatus | None:
    """The status of a pipeline that runs now."""
    from penstock.journal.lake_location import lake_of
    from penstock.spark.lake.locks import TableLock
    from penstock.spark.pipeline.process import LOCK

    found = read_status(data)
    if found is None or not found.pid or found.state not in ("starting", "running", "failed"):
        return None
    # By its lock, not by its pid: after a crash another process may have that pid, in a container even this one.
    try:
        with TableLock(lake_of(data), LOCK).held(waits=False) as is_free:
            return None if is_free else found
    except PermissionError:
        return found  # the lock belongs to another user


def clear_halt(data: Path) -> None:
    """Let the server start a pipeline again that it had stopped after a halt."""
    found = read_status(data)
    if found is not None:
        draft = data / "run" / f"{STATUS_FILE}.draft"
        status = PipelineStatus("starting", at_us=time.time_ns() // 1000, failed=found.failed)
        draft.write_bytes(msgspec.json.encode(status))
        draft.replace(data / "run" / STATUS_FILE)


def refuse_running(data: Path) -> None:
    running = find_running(data)
    if running is not None:
        raise pipeline_error(f"process {running.pid} runs the pipeline of `{data}`", "stop it first")


@contextmanager
def alone(data: Path, lock: str, what: str) -> Iterator[None]:
    """Hold a lock of the lake, or say what another process does."""
    from penstock.journal.lake_location import lake_of
    from penstock.spark.lake.locks import TableLock

    with TableLock(lake_of(data), lock).held(waits=False) as is_ours:
        if not is_ours:
            raise pipeline_error(f"another process {what} of `{data}`", "stop it first, or wait for its end")
        yield


@contextmanager
def open_tables(data: Sequence[Path], cluster: str | None, config: Path | None) -> Iterator[Ingest]:
    """A session that can fill tables, without a streaming query."""
    require_spark()
    from penstock.spark.pipeline.rebuild import tables_only

    settings = load_settings(config)
    with as_pipeline_errors(), tables_only(data, cluster, settings) as ingest:
        yield ingest


@contextmanager
def as_pipeline_errors() -> Iterator[None]:
    """Report errors of Spark, the journal and the tables as `PipelineFailed`."""
    from penstock.spark.errors import HintedError
    from penstock.spark.session import MasterError

    try:
        with reading():
            yield
    except MasterError as error:
        raise pipeline_error(str(error), error.hint) from None
    except HintedError as error:
        raise pipeline_error(error.message, error.hint) from None


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for each table on a terminal; nothing elsewhere."""
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
def follow_progress(data: Path) -> Iterator[None]:
    """Progress bars of the running queries on a terminal; nothing elsewhere."""
    import threading

    done = threading.Event()

    def follow() -> None:
        with progress_bars() as show:
            while not done.wait(POLL_S):
                found = read_status(data)
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
