"""The life of a server's journal: recovery at the start, sealing at intervals, closing at the end; and offline sealing."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.core.clock import Now
from penstock.core.errors import PenstockError, Refusal
from penstock.core.records import Entry
from penstock.journal.disk import RealDisk
from penstock.journal.group_commit import DiskJournal
from penstock.journal.lake_location import LAKE, QUICK, StoreError, lake_of, parse_lake, record_lake
from penstock.journal.open_and_repair import Opened, Progress, read_identity
from penstock.journal.parquet_table import EventsTable
from penstock.journal.port import Outcome, Refused
from penstock.journal.reader import JournalReader
from penstock.journal.retention import Retention
from penstock.journal.seal import SealReport
from penstock.journal.segments import SHARD, DamageError
from penstock.server.config.load import Config, ConfigError, load, policy_for
from penstock.server.engine.child_supervisor import ChildError, run_child
from penstock.server.engine.machines import Machines, make_machine
from penstock.server.engine.schedulers import real_now
from penstock.server.journal.seal_process import SealTask
from penstock.server.logging import logs

T = TypeVar("T")
LOOK_S = 1.0
"""How often the size of the newest segment is checked."""


class LockedError(Exception):
    """Another process writes this journal."""


class JournalLifecycle:
    """The journal and lake of one data directory."""

    def __init__(self, data: Path, config: Config) -> None:
        self.data = data
        self._config = config
        self._disk = RealDisk(data / "journal")
        self._opened: Opened | None = None
        self.journal: DiskJournal
        self._task: asyncio.Task[None] | None = None
        self._sealing = asyncio.Lock()
        self._sealed_at = time.monotonic()
        self._sealed_offset = 0
        self.seals_failed = 0
        self._is_checked = False
        """Whether the table was compared with the journal."""
        self.lake_trouble: str | None = None
        """Why history cannot be moved to the table, while it cannot."""

    def adopt(self, config: Config) -> None:
        """Use the streams and limits of a reloaded config for sealing."""
        self._config = msgspec.structs.replace(self._config, streams=config.streams, limits=config.limits)

    def free_bytes(self) -> float:
        """Free bytes of the journal's disk; NaN when they cannot be read."""
        with suppress(OSError):
            return self._disk.free()
        return math.nan

    @property
    def news(self) -> Entry | None:
        """The row that began a new epoch at this start."""
        return None if self._opened is None else self._opened.news

    def health(self) -> dict[str, Any]:
        """The journal's part of `GET /health`, besides its disk: whether a recovery may have lost rows."""
        assert self._opened is not None
        notice = None if self.news is None else f"rows may have been lost: {self.news.reason}"
        return {"epoch": self._opened.identity.epoch, "notice": notice}

    def recover(
        self, machine: Machines, now: Now, progress: Progress | None = None, *, accepts_loss: bool = False
    ) -> int:
        """Lock the directory and rebuild the machine from it; returns the number of rows read."""
        if not self._disk.lock():
            raise LockedError(
                f"another process writes `{self.data}`\n"
                "hint: stop it, or choose another directory; if it is a server, `penstock top` and `penstock console` show it"
            )
        self.place_lake()
        # The sealer of a killed server may still run and delete the segments that are read below.
        sealing = RealDisk(self.data / "journal")
        sealing.lock("sealing", waits=True)
        try:
            floor = EventsTable(lake_of(self.data)).sealed_end(_id_of(self._disk), 0) if accepts_loss else None
            sync = self._config.journal.sync
            opened = Opened(self._disk, fresh_id=os.urandom(16).hex(), sync=sync, loss_floor=floor)
            rows = 0
            for row in opened.live_rows():
                machine.resume(now, row)
                rows += 1
            for row in opened.tail_rows(progress):
                machine.restore(now, row)
                rows += 1
            self._check_table(opened, QUICK)
        except BaseException:
            self._disk.unlock()
            raise
        finally:
            sealing.unlock()
        machine.recovered(now)
        self._opened = opened
        return rows

    def place_lake(self) -> None:
        """Record where the config places the lake. What was sealed before must be there: it may be nowhere else."""
        # The lake holds message bodies too, so only its owner may read it by default.
        (self.data / LAKE).mkdir(mode=0o700, exist_ok=True)
        now, journal = lake_of(self.data), _id_of(self._disk)
        if self._config.lake is None:
            return
        lake = parse_lake(self._config.lake, self._config.lake_credentials, self.data / LAKE)
        if str(lake) != str(now):
            held = EventsTable(now).sealed_end(journal, SHARD)
            if held and EventsTable(lake).sealed_end(journal, SHARD) < held:
                hint = f"copy the tables from `{now}` to `{lake}` first, or start with `--lake {now}`"
                raise PenstockError(Refusal("InvalidRequest", f"rows 0 to {held - 1} are not in `{lake}`", hint=hint))
        if lake != now:
            record_lake(self.data, lake)

    def _check_table(self, opened: Opened, bounds: dict[str, str] | None = None) -> None:
        """Rows of the table were committed. A table that cannot be read is announced and does not stop the start."""
        try:
            end = EventsTable(lake_of(self.data)).sealed_end(opened.identity.id, SHARD, bounds)
        except (DamageError, StoreError) as error:
            self._note_lake(f"{error.message}; {error.hint}" if isinstance(error, PenstockError) else str(error))
            self._is_checked = isinstance(error, DamageError)
            return
        self._is_checked = True
        if end > opened.position.offset:
            what = f"rows {opened.position.offset} to {end - 1} are in the table, and their segment is missing"
            raise DamageError("lake/events", None, what)

    def _note_lake(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self.lake_trouble:
            logs.warning("lake.damaged", reason=trouble, note="history stays in segments until the table is repaired")
        # `/health` answers everyone, who need not know where the data is.
        self.lake_trouble = None if trouble is None else trouble.replace(str(self.data), "DIR")

    def start(self, loop: asyncio.AbstractEventLoop) -> DiskJournal:
        """Start to write, and to seal at intervals."""
        assert self._opened is not None
        if self._opened.torn_bytes:
            logs.warning(
                "journal.torn", bytes=self._opened.torn_bytes, note="the torn tail was never acknowledged; truncated"
            )
        log = self._opened.log()
        if self.news is not None:
            logs.warning("journal.epoch", **self.health())
            log.commit([[self.news]], time.time_ns() // 1000)
            self._opened.publish()
        self.journal = DiskJournal(
            self._opened,
            log,
            loop.call_soon_threadsafe,
            linger_us=self._config.journal.linger_us,
            wall_us=lambda: time.time_ns() // 1000,
        )
        self._sealed_offset = self.journal.next_offset
        self._task = loop.create_task(self._seal_at_intervals())
        return self.journal

    async def _seal_at_intervals(self) -> None:
        settings = self._config.journal
        while True:
            await asyncio.sleep(LOOK_S)
            if self.journal.next_offset == self._sealed_offset and self._is_checked:
                continue
            due = time.monotonic() - self._sealed_at >= settings.seal_every_ms / 1000
            if due or self.journal.segment_size >= settings.segment_max:
                try:
                    await self.seal()
                except Exception:
                    self._sealed_at = time.monotonic()

    async def seal(self, *, wants_live: bool = False) -> SealReport:
        """Close the newest segment and seal everything before it."""
        async with self._sealing:
            offset = self.journal.next_offset
            rotated: asyncio.Future[str | Refused | None] = asyncio.get_running_loop().create_future()
            self.journal.rotate(rotated.set_result)
            outcome = await rotated
            try:
                if isinstance(outcome, Refused):
                    raise OSError(f"cannot begin a segment: {outcome.reason}")
                if not self._is_checked:  # the store did not answer at the start
                    assert self._opened is not None
                    await asyncio.to_thread(self._check_table, self._opened)
                config = self._config
                task = SealTask(str(self.data), config.streams, config.limits, config.journal.retention, wants_live)
                output = await run_child("penstock.server.journal.seal_process", task)
                report = msgspec.json.decode(output, type=SealReport)
            except Exception as error:
                self.seals_failed += 1
                logs.error("journal.seal_failed", exc=error)
                self._note_lake(error.cause if isinstance(error, ChildError) else str(error))
                raise
            self._note_lake("; ".join(report.damaged) or None)
            self._sealed_at = time.monotonic()
            self._sealed_offset = offset
            for name in report.ended_readers:
                logs.warning(
                    "journal.hold_ended", reader=name, note="the reader held back too much history, or for too long"
                )
            logs.detail("journal.sealed", **msgspec.to_builtins(report))
            return report

    async def close(self) -> None:
        """Write pending rows and unlock the directory."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self.journal.close()
        self._disk.unlock()


def _id_of(disk: RealDisk) -> str:
    identity = read_identity(disk)
    return "" if identity is None else identity.id


@contextmanager
def progress_bar(total_label: str, *, is_wanted: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal; None elsewhere."""
    if not is_wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(transient=True, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(total_label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


KEEP_ALL = Retention(age_ms=0, bytes_max=0)


def seal_directory(data: Path, config_path: Path | None, then: Callable[[RealDisk], Entry] | None = None) -> SealReport:
    """Seal a directory while no server runs: lock, recover, seal, close. `then` works on its files, and a row records it."""
    JournalReader(data).identity()  # raises when there is no journal: a typo must not create one
    try:
        config = load(config_path, os.environ)
    except ConfigError as error:
        raise PenstockError(Refusal("InvalidRequest", "; ".join(error.errors))) from None
    if config_path is None:
        # The retention of the server is unknown without its config, so nothing is deleted.
        config = replace(config, journal=replace(config.journal, retention=KEEP_ALL))
    return _run_offline(_seal(data.absolute(), config, then))


def repair_directory(data: Path, *, accepts_loss: bool) -> dict[str, Any]:
    """Open and close a journal while no server runs; returns what was lost. Raises DamageError unless the loss is accepted."""
    JournalReader(data).identity()
    return _run_offline(_repair(data.absolute(), load(None, {}), accepts_loss))


def _run_offline(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except LockedError as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise PenstockError(Refusal("JournalUnavailable", message, hint=hint or None)) from None


async def _repair(data: Path, config: Config, accepts_loss: bool) -> dict[str, Any]:
    archive = _recovered(data, config, accepts_loss=accepts_loss)
    journal = archive.start(asyncio.get_running_loop())
    await archive.close()
    meta = "{}" if archive.news is None else archive.news.meta
    return {**archive.health(), "end": journal.next_offset, **msgspec.json.decode(meta or "{}")}


def _recovered(data: Path, config: Config, *, accepts_loss: bool = False) -> JournalLifecycle:
    archive = JournalLifecycle(data, config)
    machine = make_machine(config.limits, lambda name: policy_for(config, name), os.urandom)
    archive.recover(Machines(machine), real_now(), accepts_loss=accepts_loss)
    return archive


async def _seal(data: Path, config: Config, then: Callable[[RealDisk], Entry] | None) -> SealReport:
    archive = _recovered(data, config)
    journal = archive.start(asyncio.get_running_loop())
    try:
        report = await archive.seal(wants_live=True)
        if then is not None:
            done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            journal.append(SHARD, 0, [then(RealDisk(data / "journal"))], done.set_result)
            if isinstance(outcome := await done, Refused):
                raise PenstockError(Refusal("JournalUnavailable", outcome.reason))
        return report
    finally:
        await archive.close()
