"""The sealing process: `python -m penstock.server.journal.seal_process`, a task on stdin, a report on stdout.

Apart from the server, so that sealing never takes its time from the loop, and ends with nothing left in memory.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from penstock.core.limits import Limits
from penstock.dialects.mew.state import SpaceMemory
from penstock.hide_pandas import hide_pandas
from penstock.journal.disk import RealDisk
from penstock.journal.retention import Retention
from penstock.journal.seal import Sealer
from penstock.server.config.load import Config, policy_for
from penstock.server.config.sections import StreamsSection
from penstock.server.engine.machines import Machines, make_machine


class SealTask(msgspec.Struct):
    """What to seal, and by which rules."""

    data: str
    streams: StreamsSection
    limits: Limits
    retention: Retention
    wants_live: bool = False


def run(task: SealTask) -> bytes:
    """Seal; the report as JSON."""
    data = Path(task.data)
    config = Config(streams=task.streams, limits=task.limits)

    def machine() -> Machines:
        return Machines(
            make_machine(task.limits, lambda name: policy_for(config, name), os.urandom), SpaceMemory()
        )

    disk = RealDisk(data / "journal")
    # The sealer of a server that was killed may still be at work; two would take each other's drafts for their own.
    disk.lock("sealing", waits=True)
    try:
        sealer = Sealer(disk, data / "lake", machine, retention=task.retention)
        return msgspec.json.encode(sealer.seal(time.time_ns() // 1000, wants_live=task.wants_live))
    finally:
        disk.unlock()


def main() -> int:
    os.nice(10)  # history can wait, messages cannot
    hide_pandas()
    sys.stdout.buffer.write(run(msgspec.json.decode(sys.stdin.buffer.read(), type=SealTask)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
