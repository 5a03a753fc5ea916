"""The entry of a process that measures inside Spark: `python -m penstock.bench.pipeline_work JOB`.

It prints one `Said` a line: what it is doing, what it has found, or why it cannot go on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback

import msgspec

from penstock.bench import pipeline_growth, pipeline_source
from penstock.bench.pipeline_processes import Said, SparkJob

ROLES = {"source": pipeline_source.measure, "growth": pipeline_growth.measure}


def run(text: str) -> int:
    job = msgspec.json.decode(text, type=SparkJob)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite end stops Spark too
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        for said in ROLES[job.role](job):
            _say(said)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        traceback.print_exc()
        _say(Said(error=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"))
        return 1
    return 0


def _follow_parent() -> None:
    """End with the bench: it holds the other end of standard input, however it ends."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _say(said: Said) -> None:
    os.write(1, msgspec.json.encode(said) + b"\n")


if __name__ == "__main__":
    code = run(sys.argv[1])
    os._exit(code)  # Spark has been stopped, and a thread is blocked reading stdin
