"""The status file of the pipeline, `run/pipeline.json`, and what it says when the pipeline fails.

A failure that a restart can fix is `failed`. One that needs a person is `halted`, with a code and a hint. The code is that of the
exception's class.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from pathlib import Path

import msgspec

from penstock.ipc.pipeline import EXIT_HALTED, HALT_HINTS, READ_LOG, STATUS_FILE, PipelineState, PipelineStatus
from penstock.spark.errors import TableFailedError
from penstock.spark.session import MasterError

MESSAGE_MAX = 1_000
"""Characters of a failure that the status keeps."""
# Spark reports an unusable checkpoint under several conditions, and in older code under none: then only its text names the checkpoint.
_CHECKPOINT_WORDS = ("STREAM_CHECKPOINT", "STATE_STORE", "checkpoint", "Checkpoint")

_RAISED = re.compile(r"\b(penstock\.spark[\w.]*)\.(\w+Error)\b")
"""One of our exceptions in a traceback."""


class Reporter:
    """Writes the status file."""

    def __init__(self, data: Path, before: PipelineStatus | None = None) -> None:
        """`before` is the status of a run that failed: a pipeline that crashes and restarts is not `starting`."""
        self._file = data / "run" / STATUS_FILE
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.status = PipelineStatus("starting", since_us=time.time_ns() // 1000)
        if before is not None and before.state == "failed":
            self.status = msgspec.structs.replace(before, queries={}, behind={}, own={}, own_queries={}, ui=None)
        elif before is not None:
            self.status.failed = before.failed
        self.status.pid = os.getpid()

    def write(self, state: PipelineState | None = None) -> None:
        """Write the status, in a new state if one is given."""
        self.status.at_us = time.time_ns() // 1000
        self.status.enter(state or self.status.state, self.status.at_us)
        draft = self._file.with_name(f".{STATUS_FILE}.{os.getpid()}")
        try:
            draft.write_bytes(msgspec.json.encode(self.status))
            os.replace(draft, self._file)
        except OSError as error:  # a full disk must not end the pipeline, whose exit code still says how it went
            print(f"cannot write `{self._file}`: {error}", file=sys.stderr)

    def fail(self, error: BaseException, query: str | None = None, step: str | None = None) -> int:
        """Report a failure, with the step of a batch that it comes from; returns the exit code."""
        text, at_us = describe(error), time.time_ns() // 1000
        code, hint = diagnose(error, query)
        if query is not None:
            self.status.fail_batch(at_us, query, step, text)
            text = f"query `{query}`{f', step `{step}`' if step else ''}: {text}"
        is_halted = code is not None
        self.status.fail(at_us, code or "PipelineFailed", text, hint or READ_LOG, is_halted=is_halted)
        self.write()
        return EXIT_HALTED if is_halted else 1


def describe(error: BaseException) -> str:
    """One line for a failure. Spark nests errors and prints them all: prefer the last line that has a code or names an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if code_in(line) or "Error: " in line]
    if named:
        return named[-1][:MESSAGE_MAX]
    # A bare `KeyError` says only its key, so its class goes first; a sentence of ours needs none.
    text = lines[0] if lines else ""
    name = type(error).__name__
    if type(error).__module__ == "builtins":
        text = f"{name}: {text}" if text else name
    return (text or name)[:MESSAGE_MAX]


def diagnose(error: BaseException, query: str | None) -> tuple[str | None, str | None]:
    """The code of a failure that needs a person, and a hint; no code for one that may pass."""
    code = getattr(error, "code", None) or code_in(str(error))
    if code in HALT_HINTS:
        return code, HALT_HINTS[code]
    if query is not None and any(word in describe(error) for word in _CHECKPOINT_WORDS):
        return "CheckpointUnusable", HALT_HINTS["CheckpointUnusable"].replace("QUERY", query)
    return None, error.hint if isinstance(error, (MasterError, TableFailedError)) else None


def code_in(text: str) -> str | None:
    """The code of an exception of ours in a text. Spark passes on only the traceback of what a source or a task raises."""
    for module, name in _RAISED.findall(text):
        try:
            found = importlib.import_module(module)
        except ImportError:  # a text may name anything; reporting a failure must not fail
            continue
        code: str | None = getattr(getattr(found, name, None), "code", None)
        if code is not None:
            return code
    return None
