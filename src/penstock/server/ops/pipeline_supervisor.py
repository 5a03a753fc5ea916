"""The pipeline beside the server: a Spark process of its own, started when the doors are open and watched over.

It is told what to do on its standard input and ends when that is closed, so it never outlives the server. When it fails it is started again,
later each time; when it says that only a person can help, it is left alone and the reason is kept where people look.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from penstock.ipc.pipeline import EXIT_HALTED, STATUS_FILE, Pipeline, Status, Task
from penstock.server.logging import logs

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
STABLE_S = 120.0
"""A run this long was a good one: the next failure is tried again soon."""
STOP_S = 5.0
"""How long it may take to finish its batch when the server stops. Then it is killed, which costs a repeated batch and no rows."""
STOP_STARTING_S = 0.5
"""Likewise before its first batch, when there is nothing to finish and Spark would not hear of it for many seconds."""
CURE_LOOK_S = 2.0
"""How often a halted pipeline is looked at again."""
_SHOWN = ("state", "lag", "end", "offset", "restarts", "behind", "own", "code", "message", "hint", "ui")


def is_installed() -> bool:
    """Whether the extra `penstock[spark]` is there."""
    return importlib.util.find_spec("pyspark") is not None


def pipeline_shown(status: Status | None) -> dict[str, Any]:
    """What `/v1/pipeline` answers; a server without a pipeline says that it is off."""
    told = status or Status("off")
    plain = {name: getattr(told, name) for name in _SHOWN}
    plain["queries"] = {name: msgspec.structs.asdict(query) for name, query in told.queries.items()}
    return plain


class PipelineProcess:
    """Runs the pipeline of one data directory."""

    def __init__(self, data: Path, settings: Pipeline, url: str) -> None:
        self._data = data
        self._settings = settings
        self._url = url
        self._file = data / "run" / STATUS_FILE
        self._log = data / "run" / "pipeline.log"
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.restarts = 0

    def start(self) -> None:
        """Begin, in the background."""
        self._write(Status("starting"))
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    def status(self) -> Status:
        """What it last said about itself."""
        try:
            status = msgspec.json.decode(self._file.read_bytes(), type=Status)
        except (OSError, msgspec.DecodeError):
            return Status("starting")
        status.restarts = self.restarts
        return status

    async def stop(self) -> None:
        """Let it finish its batch, then end it."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            if process.stdin is not None:
                process.stdin.close()
            is_starting = self.status().state == "starting"
            try:
                await asyncio.wait_for(process.wait(), STOP_STARTING_S if is_starting else STOP_S)
            except TimeoutError:
                if is_starting:
                    logs.event("pipeline.killed", note="Spark was still starting, and nothing was under way")
                else:
                    logs.warning(
                        "pipeline.killed", note="it did not stop in time; its next run repeats the batch"
                    )
                process.kill()
                await process.wait()
                status = self.status()  # it had no time to say so itself
                status.state, status.pid = "stopped", 0
                self._write(status)
        if self._task is not None:
            self._task.cancel()
            try:
                await self._task
            except asyncio.CancelledError:
                pass

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = BACKOFF_FIRST_S
        while not self._stopping:
            started = loop.time()
            code = await self._run()
            if self._stopping or code == 0:
                return
            status = self.status()
            if code == EXIT_HALTED:
                logs.error("pipeline.halted", code=status.code, reason=status.message, hint=status.hint)
                await self._wait_for_cure()
                pause_s = BACKOFF_FIRST_S
                continue
            if loop.time() - started >= STABLE_S:
                pause_s = BACKOFF_FIRST_S
            self.restarts += 1
            if status.state not in ("failed", "halted"):  # it had no time to say anything
                message = f"the pipeline's process ended with code {code}"
                self._write(
                    Status("failed", code="PipelineFailed", message=message, hint=f"see `{self._log}`")
                )
            logs.warning(
                "pipeline.failed",
                exit=code,
                reason=self.status().message,
                again_in_s=pause_s,
                output=str(self._log),
            )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_MAX_S)

    async def _wait_for_cure(self) -> None:
        """A halted pipeline is left alone until somebody reset it."""
        while self.status().state == "halted":  # noqa: ASYNC110 - another process changes a file
            await asyncio.sleep(CURE_LOOK_S)
        logs.event("pipeline.reset", note="somebody mended it; starting again")

    async def _run(self) -> int:
        task = Task(str(self._data), self._settings, self._url)
        # Its output is Spark's, which is long and for experts: one file of the latest run.
        with self._log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # what lies in the working directory is none of our modules
                "-m",
                "penstock.spark.pipeline.process",
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for the server, which tells it in its own time
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it ended at once; its exit code says so
        return await self._process.wait()

    def _write(self, status: Status) -> None:
        draft = self._file.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(status))
        os.replace(draft, self._file)
