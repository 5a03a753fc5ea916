"""The parent of the pipeline's Spark process: starts it, restarts it after failures, and reads its status.

A failed pipeline is restarted with increasing pauses. A halted pipeline needs an operator: it stays down, with the reason and a hint in
its status, until `penstock pipeline reset`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.ipc import pipeline
from penstock.journal.lake_figures import LakeFigures
from penstock.server.engine.child_supervisor import AfterExit, Backoff, ChildSupervisor
from penstock.server.logging import logs

MODULE = "penstock.spark.pipeline.process"
BACKOFF = Backoff(first_s=1.0, max_s=60.0, stable_s=120.0)
STOP_S = 5.0
"""How long the pipeline may take to finish its batch when the server stops. Killing it repeats a batch and loses no rows."""
STOP_STARTING_S = 0.5
"""The same before the first batch: there is nothing to finish, and a starting Spark ignores the request for seconds."""
LINE_MAX = 300
"""Bytes at the end of the log of a crashed process that its failure quotes."""
LOOK_S = 5.0
"""How often the tables are read for their figures; a table without a new version costs a listing of its log."""
RESET_POLL_S = 2.0
"""How often the status of a halted pipeline is read."""


def is_installed() -> bool:
    """Whether the extra `penstock[spark]` is installed."""
    return importlib.util.find_spec("pyspark") is not None


class PipelineSupervisor:
    """Runs the pipeline of one data directory."""

    def __init__(
        self, data: Path, settings: pipeline.PipelineSection, url: str, ends: Callable[[], dict[str, int]] = dict
    ) -> None:
        """`ends` returns the ends of the journals."""
        self._data = data
        self._settings = settings
        self._url = url
        self._ends = ends
        self._figures = LakeFigures(data)
        self._tables: dict[str, pipeline.TableStatus] = {}
        """The tables as of the last look."""
        self._file = data / "run" / pipeline.STATUS_FILE
        self._log = data / "run" / pipeline.LOG_FILE
        # Spark's output is long and for experts: it goes to a file.
        self._child = ChildSupervisor(MODULE, log=self._log, stdout="log", environment={"PYTHONUNBUFFERED": "1"})
        self._task: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._unwritten: tuple[int, pipeline.PipelineStatus] | None = None
        """A status that the disk refused, and the time of the file that it should have replaced."""
        self._began_us = 0
        """When the latest run began."""

    def start(self) -> None:
        """Start the pipeline in the background."""
        self._write(pipeline.PipelineStatus("starting", since_us=_now_us()))
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._child.keep_running(BACKOFF, self._run, self._exited))
        self._looking = loop.create_task(self._look())

    def status(self) -> pipeline.PipelineStatus:
        """The status that the pipeline wrote last, or that could not be written since."""
        if self._unwritten is not None and self._unwritten[0] == self._written_ns():
            return self._with_tables(self._unwritten[1])
        try:
            status = msgspec.json.decode(self._file.read_bytes(), type=pipeline.PipelineStatus)
        except (OSError, msgspec.DecodeError):
            return self._with_tables(pipeline.PipelineStatus("starting", since_us=self._began_us))
        status.restarts = self._child.restarts
        return self._with_tables(status)

    def _with_tables(self, status: pipeline.PipelineStatus) -> pipeline.PipelineStatus:
        """A status with the tables and the journals as they are."""
        status.reach(self._ends())
        status.show(self._tables)
        return status

    async def stop(self) -> None:
        """Let the pipeline finish its batch, then end it."""
        is_starting = self.status().state != "running"
        if not await self._child.stop(STOP_STARTING_S if is_starting else STOP_S):
            starting, late = "Spark was still starting; no batch was running", "its next run repeats the batch"
            logs.event("pipeline.killed", note=starting if is_starting else late)
            status = self.status()  # a killed process cannot write its own
            status.pid = 0
            status.enter("stopped", _now_us())
            self._write(status)
        for task in (self._task, self._looking):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _run(self) -> int:
        before = self.status()
        self._began_us = _now_us()
        return await self._child.run(pipeline.PipelineTask(str(self._data), self._settings, self._url, before=before))

    async def _look(self) -> None:
        """Read the tables again and again, in a thread."""
        while True:
            try:
                self._tables = await asyncio.to_thread(self._figures.read, self._ends(), _now_us())
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                logs.warning("pipeline.figures", reason=reason, note="looked at again later")
            await asyncio.sleep(LOOK_S)

    async def _exited(self, code: int, pause_s: float) -> AfterExit:
        if code == 0:
            return "end"
        status = self.status()
        is_reported = status.state in ("failed", "halted") and status.failed_us >= self._began_us
        # If it is not reported, the disk refused the status.
        if code == pipeline.EXIT_HALTED and status.state == "halted" and is_reported:
            logs.error("pipeline.halted", code=status.code, reason=status.message, hint=status.hint)
            await self._wait_for_reset()
            return "restart"
        if not is_reported:  # it crashed before it could write a status
            reason = self._child.start_error
            said = _last_line(self._log)
            message = f"the pipeline's process exited with code {code}{said and f': {said}'}"
            if reason:
                message = f"cannot start the pipeline's process: {reason}"
            status.fail(_now_us(), "PipelineFailed", message, pipeline.READ_LOG)
            self._write(status)
        logs.warning("pipeline.failed", exit=code, reason=status.message, again_in_s=pause_s, output=str(self._log))
        return "back_off"

    async def _wait_for_reset(self) -> None:
        """Wait until `penstock pipeline reset` changes the status of a halted pipeline."""
        while self.status().state == "halted":  # noqa: ASYNC110 - another process changes the file
            await asyncio.sleep(RESET_POLL_S)
        logs.event("pipeline.reset", note="the pipeline starts again")

    def _write(self, status: pipeline.PipelineStatus) -> None:
        draft = self._file.with_suffix(".new")
        try:
            draft.write_bytes(msgspec.json.encode(status))
            os.replace(draft, self._file)
        except OSError as error:
            self._unwritten = self._written_ns(), status
            logs.warning("pipeline.status_not_written", state=status.state, reason=str(error))

    def _written_ns(self) -> int:
        with suppress(OSError):
            return self._file.stat().st_mtime_ns
        return 0


def _last_line(log: Path) -> str:
    """The last line of a log, which for Python is the error."""
    try:
        with log.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LINE_MAX, 0))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _now_us() -> int:
    return time.time_ns() // 1000
