"""The copy of a shard's log at a node: the spool, opened, followed, and begun again at a live file or for another stream.

A base of `ClusterShard`, which adds the cell that serves the shard while this node owns it.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.core.clock import Now
from penstock.core.cluster.ownership import ShardOwnership
from penstock.core.cluster.reader import LogEnd, ShardReader
from penstock.core.cluster.status import ShardReport, ShardState
from penstock.core.cluster.stream_space import StreamSpace
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import read_identity
from penstock.journal.replicated.jetstream import JetStreamLiveStore, JetStreamLog, stream_name
from penstock.journal.replicated.membership import ShardSettings
from penstock.journal.replicated.replicated_journal import ReplicatedJournal
from penstock.journal.replicated.shard_log import StoredLive
from penstock.journal.replicated.spool import Spool, begin_again, enter_generation, generation_of
from penstock.journal.replicated.worker import Worker
from penstock.server.journal.seal_process import shard_dir
from penstock.server.logging import logs

if TYPE_CHECKING:
    from penstock.server.cluster.node import ClusterNode

REOPEN_S = 1.0
"""Pause before a shard is opened again that could not go on."""
T = TypeVar("T")


def boot_us() -> int:
    """A clock that goes on while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1000


def _whole(spool: Spool) -> Spool:
    """The spool, read to its end."""
    for _ in spool.rows():
        pass
    return spool


@contextmanager
def unsealed(directory: Path) -> Iterator[None]:
    """No sealer changes the directory meanwhile."""
    disk = RealDisk(directory)
    disk.lock("sealing", waits=True)
    try:
        yield
    finally:
        disk.unlock()


class LogCopy(ABC):
    """The copy of one log."""

    def __init__(self, node: ClusterNode, shard: int, settings: ShardSettings) -> None:
        self._node = node
        self.shard = shard
        self.settings = settings
        self._dir = shard_dir(node.data, shard)
        self.disk = RealDisk(self._dir / "journal")
        self._loop = asyncio.get_running_loop()
        self._work = Worker(self._loop, f"spool-{shard}")
        self.journal: ReplicatedJournal | None = None
        self.log: JetStreamLog
        self.store = JetStreamLiveStore(node.objects, shard)
        self._life = 0
        """Counts openings and endings: what belongs to an earlier one is dropped."""
        self.report = ShardReport("following", since=time.time_ns() // 1000)
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closed = False

    @abstractmethod
    def _owned(self, life: int) -> None:
        """This node owns the shard."""

    @abstractmethod
    def _ended(self, life: int, reason: str) -> None:
        """This node does not own the shard any more, or cannot follow it."""

    @abstractmethod
    def _close_cell(self) -> None:
        """End what serves the shard."""

    def _note(self, state: ShardState, reason: str = "") -> None:
        """Report a change."""
        before = self.report.state, self.report.reason
        epoch, offset = self.report.epoch, self.report.offset
        if self.journal is not None:
            end = self.journal.ownership.reader.whole
            # After a restart the spool may have more than a log that has lost its end: a repair asks for the longest spool.
            epoch, offset = end.epoch, max(end.offset, self.journal.offset)
        since = self.report.since if before[0] == state else time.time_ns() // 1000
        self.report = ShardReport(state, epoch, offset, since, reason)
        if before != (state, reason):
            self._node.changed()

    async def on_thread(self, call: Callable[[], T]) -> T:
        """Do it on the thread of the spool, behind what it has to do."""
        done: asyncio.Future[T] = self._loop.create_future()

        def run() -> tuple[T | None, Exception | None]:
            try:
                return call(), None
            except Exception as error:
                return None, error

        def finish(outcome: tuple[T | None, Exception | None]) -> None:
            if done.cancelled():
                return
            result, error = outcome
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]  # the result of the call

        self._work(run, finish)
        return await done

    def _start(self, work: Callable[[], object]) -> None:
        """Run a coroutine of this shard; an error is logged, and the shard is opened again."""

        async def run() -> None:
            try:
                await work()  # type: ignore[misc]  # a coroutine function
            except asyncio.CancelledError:
                raise
            except Exception as error:
                logs.error("cluster.shard_failed", exc=error, shard=self.shard)
                self.reopen_later()

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def reopen_later(self) -> None:
        """Open the shard again after a pause, unless something else does so before."""
        life = self._life

        def reopen() -> None:
            if life == self._life and not self.is_closed:
                self._start(self.open)

        self._loop.call_later(REOPEN_S, reopen)

    async def prepare(self) -> None:
        """Check that the directory is of this shard, and take it."""

        def take() -> None:
            (self._dir / "journal").mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.disk.lock():
                raise PenstockError(
                    Refusal(
                        "InvalidRequest", f"another process writes `{self._dir}`", hint="stop it, or choose `--data`"
                    )
                )
            identity = read_identity(self.disk)
            if identity is not None and identity.id != self.settings.journal:
                hint = "use an empty directory, or `penstock cluster import`"
                raise PenstockError(Refusal("InvalidRequest", f"`{self._dir}` belongs to another journal", hint=hint))

        await self.on_thread(take)

    async def open(self) -> None:
        """Read the spool and begin to follow the log."""
        if self.is_closed:
            return
        life = await self.pause()  # after an error, what was opened before goes on until then
        if life != self._life:  # so two spools never have one directory
            return

        def read() -> tuple[Spool, bool]:
            settings = self.settings
            with unsealed(self.disk.directory):
                spool = _whole(Spool(self.disk, settings.journal))
                if generation_of(self.disk) != settings.generation:
                    spool.close()
                    enter_generation(self.disk, spool.offset, settings.generation, settings.base)
                    spool = _whole(Spool(self.disk, settings.journal))
            return spool, settings.base == 0 or spool.has_log_end

        spool, is_ready = await self.on_thread(read)
        if life != self._life:  # it was opened again meanwhile
            await self.on_thread(spool.close)
            return
        node = self._node
        self.store = JetStreamLiveStore(node.objects, self.shard, self.settings.generation)
        if not is_ready:
            await self.on_thread(spool.close)
            self._note("behind", "the log begins behind what this node has")
            await self._begin_again(life, spool.offset)
            return
        self.log = JetStreamLog(node.client, stream_name(node.cluster, self.shard, self.settings.generation))
        reader = ShardReader(self.log.stream, spool.log_end())
        ownership = ShardOwnership(node.name, reader, os.urandom, kept_offset=spool.offset)
        self.journal = ReplicatedJournal(
            self.settings.journal,
            ownership,
            self.log,
            spool,
            StreamSpace(node.settings.bytes_max),
            now=lambda: Now(boot_us(), time.time_ns() // 1000),
            at=lambda us, call: self._loop.call_later(max(us - boot_us(), 0) / 1e6, call),
            encode=node.encode,
            write=self._work,
            may_take=lambda ownership: node.may_take(self.shard, ownership.silent_owner),
            on_owned=lambda: self._owned(life),
            on_ended=lambda reason: self._ended(life, reason),
        )
        self._note("following")
        self.journal.pump()

    async def _open_again(self) -> None:
        assert self.journal is not None
        await self.on_thread(self.journal.close_spool)
        await asyncio.sleep(REOPEN_S)
        await self.open()

    async def _reach_live_file(self, life: int, journal: ReplicatedJournal) -> None:
        await self.on_thread(journal.close_spool)
        await self._begin_again(life, journal.offset)

    async def _begin_again(self, life: int, offset: int) -> None:
        """Go on at the newest live file; the spool is closed, and its next row is `offset`."""
        while life == self._life and not self.is_closed:
            found = await self.asked(self.store.newest)
            data = await self.asked(partial(self.store.get, found)) if isinstance(found, StoredLive) else None
            if life != self._life:  # it was opened for another stream meanwhile
                return
            if isinstance(found, StoredLive) and isinstance(data, bytes):
                await self._restart_at(found.end, data, offset)
                return
            await asyncio.sleep(REOPEN_S)

    async def _restart_at(self, end: LogEnd, live: bytes, offset: int) -> None:
        def begin() -> None:
            with unsealed(self.disk.directory):
                begin_again(self.disk, offset, live, end)

        await self.on_thread(begin)
        logs.event("cluster.began_again", shard=self.shard, offset=end.offset)
        await self.open()

    async def pause(self) -> int:
        """Follow the log no more, and close the spool: for a repair. Returns the life that this begins, which may be over by then."""
        self._life += 1
        life = self._life
        self._close_cell()
        if self.journal is not None:
            self.journal.close()
            await self.on_thread(self.journal.close_spool)
            self.journal = None
        return life

    def switch(self, settings: ShardSettings) -> None:
        """The shard has another stream."""
        if settings.generation > self.settings.generation and not self.is_closed:  # a watch may say again what was
            logs.warning("cluster.generation", shard=self.shard, generation=settings.generation)
            self.settings = settings
            self._start(self.open)

    async def asked(self, ask: Callable[[Callable[[T], None]], None]) -> T:
        """The answer of an operation that calls back."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def answered(said: T) -> None:
            if not answer.done():  # it is when this node ends
                answer.set_result(said)

        ask(answered)
        return await answer
