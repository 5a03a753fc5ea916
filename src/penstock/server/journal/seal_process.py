"""The sealing process: `python -m penstock.server.journal.seal_process` reads a task from stdin and writes a report to stdout.

It is a process of its own, so that sealing takes no CPU time from the loop of the server and its memory is freed at the end.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.limits import Limits
from penstock.hide_pandas import hide_pandas
from penstock.ipc.processor_share import yield_processor
from penstock.journal.disk import RealDisk
from penstock.journal.lake_location import LAKE, lake_of, store_errors
from penstock.journal.retention import Retention
from penstock.journal.seal import Sealer
from penstock.server.config.load import Config, policy_for
from penstock.server.config.sections import StreamsSection
from penstock.server.engine.machines import Machines, make_machine

SHARDS_DIR = "shards"
"""The folder of the data directory with a journal for each shard."""


def shard_dir(data: Path, shard: int) -> Path:
    """The data directory of one shard."""
    return data / SHARDS_DIR / str(shard)


def shard_config(config: Config, data: Path) -> Config:
    """The config of a shard: all shards share the lake."""
    return config if config.lake is not None else msgspec.structs.replace(config, lake=str(data / LAKE))


class SealTask(msgspec.Struct):
    """Settings of one sealing."""

    data: str
    streams: StreamsSection
    limits: Limits
    retention: Retention
    wants_live: bool = False
    only_sealed: bool = False
    """Whether another node writes the rows, and this one only removes what it has written."""


def run(task: SealTask) -> bytes:
    """Seal, and return the report as JSON."""
    data = Path(task.data)
    config = Config(streams=task.streams, limits=task.limits)

    def machine() -> Machines:
        return Machines(make_machine(task.limits, lambda name: policy_for(config, name), os.urandom))

    disk = RealDisk(data / "journal")
    # The sealer of a killed server may still run; two sealers would overwrite each other's drafts.
    disk.lock("sealing", waits=True)
    # Shards share their tables; one sealer at a time changes them.
    shards = data.parent if data.parent.name == SHARDS_DIR else data / SHARDS_DIR
    shared = RealDisk(shards) if shards.is_dir() else None
    if shared is not None:
        shared.lock("sealing", waits=True)
    try:
        lake = lake_of(data)
        sealer = Sealer(disk, lake, machine, retention=task.retention)
        with store_errors(lake):
            return msgspec.json.encode(
                sealer.seal(time.time_ns() // 1000, wants_live=task.wants_live, only_sealed=task.only_sealed)
            )
    finally:
        if shared is not None:
            shared.unlock()
        disk.unlock()


def main() -> int:
    yield_processor(10)  # sealing yields the CPU to the server
    hide_pandas()
    try:
        sys.stdout.buffer.write(run(msgspec.json.decode(sys.stdin.buffer.read(), type=SealTask)))
    except Exception as error:
        traceback.print_exc()
        said = f"{error.message}; {error.hint}" if isinstance(error, PenstockError) else str(error)
        print(" ".join(said.split()) or type(error).__name__, file=sys.stderr)  # `ChildError.cause`
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
