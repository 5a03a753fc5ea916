"""What becomes of a shard's history: every node seals its spool, and the owner stores live files, behind which the log is purged.

The same sealer works on the spool as on the journal of a single server. Where nodes share a lake, the owner alone writes rows into it;
the others remove what is there. A live file is stored before the log is purged (`LiveFiles`), so a node that was away finds one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from penstock.core.cluster.reader import LogEnd
from penstock.journal.open_and_repair import live_name
from penstock.journal.replicated.live_files import LiveFiles
from penstock.journal.seal import SealReport
from penstock.server.engine.child_supervisor import run_child
from penstock.server.journal.lifecycle import KEEP_ALL, JournalLifecycle
from penstock.server.journal.seal_process import SealTask, shard_config, shard_dir
from penstock.server.logging import logs

if TYPE_CHECKING:
    from penstock.server.cluster.node import ClusterNode
    from penstock.server.cluster.shard import ClusterShard

LOOK_S = 1.0
ROTATED_S = 60.0
"""How long a spool may take to begin a segment."""


class ShardHistory:
    """The sealing of one shard at this node."""

    def __init__(self, node: ClusterNode, shard: ClusterShard) -> None:
        self._node = node
        self._shard = shard
        self._dir = shard_dir(node.data, shard.shard)
        self._files: LiveFiles | None = None
        self._files_of: object = None
        self._sealed_s = time.monotonic()
        self._sealed_offset = -1
        self.seals_failed = 0
        self.stored_offset = 0
        """The offset of the newest live file that this node has offered."""

    def place(self) -> None:
        """Record where the history of this shard goes. On the thread of the spool, before the first sealing."""
        JournalLifecycle(self._dir, shard_config(self._node.config, self._node.data)).place_lake()

    async def run(self) -> None:
        """Seal at intervals."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._is_due():
                continue
            try:
                async with self._node.sealing:
                    await self.seal()
            except Exception as error:
                self.seals_failed += 1
                self._sealed_s = time.monotonic()
                logs.error("journal.seal_failed", exc=error, shard=self._shard.shard)

    def _is_due(self) -> bool:
        journal, settings = self._shard.journal, self._node.config.journal
        if journal is None or journal.is_closed or not journal.is_settled or journal.offset == self._sealed_offset:
            return False
        if self._sealed_offset < 0:  # as it was found at the start
            self._sealed_offset = journal.offset
            return False
        passed_s = time.monotonic() - self._sealed_s
        return passed_s >= settings.seal_every_ms / 1_000 or journal.segment_size >= settings.segment_max

    async def seal(self) -> SealReport | None:
        """End the newest segment and seal what is before it."""
        shard, node = self._shard, self._node
        journal, config = shard.journal, node.config
        assert journal is not None
        is_owner = shard.cell is not None
        rotated: asyncio.Future[LogEnd] = asyncio.get_running_loop().create_future()
        journal.rotate(lambda name, end: None if rotated.done() else rotated.set_result(end))
        async with asyncio.timeout(ROTATED_S):
            end = await rotated
        task = SealTask(
            str(self._dir),
            config.streams,
            config.limits,
            config.journal.retention if is_owner else KEEP_ALL,
            wants_live=is_owner,
            only_sealed=not is_owner and config.lake is not None,
        )
        output = await run_child("penstock.server.journal.seal_process", task)
        report = msgspec.json.decode(output, type=SealReport)
        self._sealed_s, self._sealed_offset = time.monotonic(), end.offset
        logs.detail("journal.sealed", shard=shard.shard, **msgspec.to_builtins(report))
        if report.live_offset == end.offset and shard.journal is journal and shard.cell is not None:
            data = await shard.on_thread(lambda: shard.disk.read(live_name(end.offset)))
            self._offer(end, data)
        return report

    def _offer(self, end: LogEnd, data: bytes) -> None:
        shard = self._shard
        if self._files is None or self._files_of is not shard.log:
            self._files, self._files_of = LiveFiles(shard.log, shard.store), shard.log
        self.stored_offset = end.offset
        self._files.offer(f"{end.offset}-{secrets.token_hex(8)}", end, data)
