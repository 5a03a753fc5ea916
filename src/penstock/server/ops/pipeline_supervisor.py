"""The parent of the pipeline's Spark process: starts it, restarts it after failures, and reads its status.

A failed pipeline is restarted with increasing pauses. A halted pipeline needs an operator: it stays down, with the reason and a hint in
its status, until `penstock pipeline reset`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.ipc.pipeline import EXIT_HALTED, STATUS_FILE, PipelineSection, PipelineStatus, PipelineTask
from penstock.server.engine.child_supervisor import AfterExit, Backoff, ChildSupervisor
from penstock.server.logging import logs

MODULE = "penstock.spark.pipeline.process"
BACKOFF = Backoff(first_s=1.0, max_s=60.0, stable_s=120.0)
STOP_S = 5.0
"""How long the pipeline may take to finish its batch when the server stops. Killing it repeats a batch and loses no rows."""
STOP_STARTING_S = 0.5
"""The same before the first batch: there is nothing to finish, and a starting Spark ignores the request for seconds."""
RESET_POLL_S = 2.0
"""How often the status of a halted pipeline is read."""


def is_installed() -> bool:
    """Whether the extra `penstock[spark]` is installed."""
    return importlib.util.find_spec("pyspark") is not None


class PipelineSupervisor:
    """Runs the pipeline of one data directory."""

    def __init__(self, data: Path, settings: PipelineSection, url: str) -> None:
        self._data = data
        self._settings = settings
        self._url = url
        self._file = data / "run" / STATUS_FILE
        self._log = data / "run" / "pipeline.log"
        # Spark's output is long and for experts: the log file holds the latest run only.
        self._child = ChildSupervisor(MODULE, log=self._log, stdout="log", environment={"PYTHONUNBUFFERED": "1"})
        self._task: asyncio.Task[None] | None = None
        self._unwritten: tuple[int, PipelineStatus] | None = None
        """A status that the disk refused, and the time of the file that it should have replaced."""

    def start(self) -> None:
        """Start the pipeline in the background."""
        self._write(PipelineStatus("starting"))
        self._task = asyncio.get_running_loop().create_task(self._child.keep_running(BACKOFF, self._run, self._exited))

    def status(self) -> PipelineStatus:
        """The status that the pipeline wrote last, or that could not be written since."""
        if self._unwritten is not None and self._unwritten[0] == self._written_ns():
            return self._unwritten[1]
        try:
            status = msgspec.json.decode(self._file.read_bytes(), type=PipelineStatus)
        except (OSError, msgspec.DecodeError):
            return PipelineStatus("starting")
        status.restarts = self._child.restarts
        return status

    async def stop(self) -> None:
        """Let the pipeline finish its batch, then end it."""
        is_starting = self.status().state == "starting"
        if not await self._child.stop(STOP_STARTING_S if is_starting else STOP_S):
            if is_starting:
                logs.event("pipeline.killed", note="Spark was still starting; no batch was running")
            else:
                logs.warning("pipeline.killed", note="it missed the deadline; its next run repeats the batch")
            status = self.status()  # a killed process cannot write its own
            status.state, status.pid = "stopped", 0
            self._write(status)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> int:
        return await self._child.run(PipelineTask(str(self._data), self._settings, self._url))

    async def _exited(self, code: int, pause_s: float) -> AfterExit:
        if code == 0:
            return "end"
        status = self.status()
        if code == EXIT_HALTED and status.state == "halted":  # else the disk refused the status
            logs.error("pipeline.halted", code=status.code, reason=status.message, hint=status.hint)
            await self._wait_for_reset()
            return "restart"
        if status.state not in ("failed", "halted"):  # it crashed before it could write a status
            reason = self._child.start_error
            message = (
                f"cannot start the pipeline's process: {reason}"
                if reason
                else f"the pipeline's process exited with code {code}"
            )
            status = PipelineStatus("failed", code="PipelineFailed", message=message, hint=f"see `{self._log}`")
            self._write(status)
        logs.warning("pipeline.failed", exit=code, reason=status.message, again_in_s=pause_s, output=str(self._log))
        return "back_off"

    async def _wait_for_reset(self) -> None:
        """Wait until `penstock pipeline reset` changes the status of a halted pipeline."""
        while self.status().state == "halted":  # noqa: ASYNC110 - another process changes the file
            await asyncio.sleep(RESET_POLL_S)
        logs.event("pipeline.reset", note="the pipeline starts again")

    def _write(self, status: PipelineStatus) -> None:
        draft = self._file.with_suffix(".new")
        try:
            draft.write_bytes(msgspec.json.encode(status))
            os.replace(draft, self._file)
        except OSError as error:
            self._unwritten = self._written_ns(), status
            logs.warning("pipeline.status_not_written", state=status.state, reason=str(error))

    def _written_ns(self) -> int:
        return self._file.stat().st_mtime_ns if self._file.exists() else 0
