"""The entry of a process that measures inside Spark: `python -m penstock.cli.bench.pipeline_work JOB`.

It prints one `Said` a line: what it is doing, what it has found, or why it cannot go on.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from penstock.cli.bench import pipeline_growth, pipeline_source
from penstock.cli.bench.pipeline_processes import Said, SparkJob

ROLES = {"source": pipeline_source.measure, "growth": pipeline_growth.measure}


def run(text: str) -> int:
    job = msgspec.json.decode(text, type=SparkJob)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite end stops Spark too
    try:
        for said in ROLES[job.role](job):
            _say(said)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        _say(Said(error=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"))
        raise
    return 0


def _say(said: Said) -> None:
    os.write(1, msgspec.json.encode(said) + b"\n")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
