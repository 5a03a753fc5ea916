"""The nodes and the settings of a cluster in two buckets of NATS: who lives, and what was decided.

`<cluster>-live` has a key `node.<name>` for each node, which it writes each second and which ends after `KEY_TTL_S`.
`<cluster>-config` has what stays: `shard.<n>` with the generation of its stream. A change there is by revision, so of two one is refused.
While the servers do not answer, the nodes that were last seen stay: see `LiveNodes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.js import JetStreamContext, api
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from penstock.core.cluster.assignment import LiveNodes
from penstock.journal.replicated.jetstream import ANSWER_S, FAILURES, REPLICAS

KEY_TTL_S = 15
REFRESH_S = 1.0
SILENT_S = 6.0
"""A watch without an entry for this long begins again. That of the settings does so all the time, which costs a read of its few keys."""
WATCH_ENDS_S = 2 * SILENT_S
"""The servers forget a watch that is not read for this long."""
NODE = "node."


class ShardSettings(msgspec.Struct, frozen=True):
    """The key `shard.<n>`."""

    journal: str
    """The id of its journal, 32 hex digits."""
    generation: int = 1
    """Of its stream. A repair writes the next one."""
    base: int = 0
    """The first row of that stream; what was before is in a live file."""


class ClusterBuckets:
    """The two buckets of a cluster."""

    def __init__(self, live: KeyValue, config: KeyValue) -> None:
        self.live = live
        self.config = config

    @classmethod
    async def open(cls, client: Client, cluster: str) -> ClusterBuckets:
        """The buckets, made where they are missing."""
        js: JetStreamContext = client.jetstream(timeout=ANSWER_S)

        async def bucket(name: str, ttl: float | None) -> KeyValue:
            config = api.KeyValueConfig(name, ttl=ttl, replicas=REPLICAS, storage=api.StorageType.FILE, direct=False)
            return await js.create_key_value(config)

        return cls(await bucket(f"{cluster}-live", KEY_TTL_S), await bucket(f"{cluster}-config", None))

    async def shard(self, shard: int) -> tuple[ShardSettings, int] | None:
        """The settings of a shard and their revision."""
        try:
            entry = await self.config.get(f"shard.{shard}")
        except KeyNotFoundError:
            return None
        return msgspec.json.decode(entry.value or b"", type=ShardSettings), entry.revision or 0

    async def set_shard(self, shard: int, settings: ShardSettings, revision: int = 0) -> bool:
        """Set them if they have not changed since that revision; 0 means that there are none yet."""
        try:
            await self.config.update(f"shard.{shard}", msgspec.json.encode(settings), last=revision)
        except KeyWrongLastSequenceError:
            return False
        return True


class Membership:
    """Refreshes the key of this node, and notes what changes in both buckets."""

    def __init__(
        self,
        buckets: ClusterBuckets,
        node: str,
        nodes: LiveNodes,
        now_us: Callable[[], int],
        *,
        value: Callable[[], bytes] = lambda: b"{}",
        noted: Callable[[str, bytes | None], None] = lambda key, value: None,
    ) -> None:
        """`value` is what the key of this node says; `noted` gets each key that is written, or is gone."""
        self._buckets = buckets
        self._node = node
        self._nodes = nodes
        self._now_us = now_us
        self._value = value
        self._noted = noted
        self._changed = asyncio.Event()
        self.failures = 0
        """Refreshes and reads without an answer."""

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """What runs until it is cancelled, perhaps twice: a wait in the client whose result comes at that moment swallows a cancellation."""
        return [self._refresh(), self._follow(self._buckets.live), self._follow(self._buckets.config)]

    def changed(self) -> None:
        """Refresh the key now."""
        self._changed.set()

    async def put(self) -> bool:
        """Write the key; whether it was kept in time."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._buckets.live.put(NODE + self._node, self._value())
        except FAILURES:
            self.failures += 1
            return False
        return True

    async def _refresh(self) -> None:
        while True:
            self._changed.clear()
            await self.put()
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _follow(self, bucket: KeyValue) -> None:
        while True:
            try:
                watcher = await bucket.watchall(inactive_threshold=WATCH_ENDS_S)
                try:
                    while True:
                        # The key of this node is written each second: a watch that is silent for long has lost its server.
                        self._note(await watcher.updates(timeout=SILENT_S))  # type: ignore[no-untyped-call]
                finally:
                    await watcher.stop()  # type: ignore[no-untyped-call]  # nats-py has none here
            except FAILURES:
                self.failures += bucket is self._buckets.live
            await asyncio.sleep(REFRESH_S)

    def _note(self, entry: KeyValue.Entry | None) -> None:
        if entry is None:
            return
        value = entry.value if entry.operation is None else None
        if entry.key.startswith(NODE):
            name = entry.key.removeprefix(NODE)
            if value is not None:
                self._nodes.refreshed(self._now_us(), name)
            else:
                self._nodes.left(self._now_us(), name)
        self._noted(entry.key, value)
