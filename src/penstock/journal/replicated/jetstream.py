"""Streams of NATS JetStream as the logs of shards: `ShardLog` and `LiveStore` over one connection.

One stream a shard and generation, three replicas, on disk, `discard: new`, no maximum age. Messages have no id: the condition on the last
sequence is the only fence, and its refusal does not say whose message is in the place, so the writer looks. Messages are read with
`STREAM.MSG.GET`, which the leader of the stream answers; direct reads, which any replica answers, are off.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from penstock.core.cluster.messages import HEADER, LogMessage, parse_message
from penstock.core.cluster.reader import LogEnd
from penstock.core.cluster.writer import Found, Full, Kept, Passed, Publish, Published, Seek, Unknown
from penstock.journal.replicated.shard_log import StoredLive

REPLICAS = 3
ANSWER_S = 2.0
"""Without an answer for this long, an outcome is unknown: less than a lease, more than a slow disk."""
OBJECT_S = 120.0
"""How long a live file may take to be stored or read: it may have gigabytes."""
READS = 32
"""Messages that one read asks for, at once: 16 MiB."""
WRONG_LAST_SEQUENCE = 10071
STORE_FAILED = 10077
NO_MESSAGE = 10037
FAILURES = (NatsError, TimeoutError, OSError)

T = TypeVar("T")


def stream_name(cluster: str, shard: int, generation: int) -> str:
    """A generation is never used twice: a writer of an older one must not find its sequence numbers here."""
    return f"{cluster}-shard-{shard}-g{generation}"


def subject_of(stream: str) -> str:
    """The subject of a shard's stream. It has dots, so that one permission, `pen.<cluster>.>`, covers every shard and generation."""
    return f"pen.{stream.rpartition('-shard-')[0]}.log.{stream}"


def stream_config(name: str, bytes_max: int) -> api.StreamConfig:
    """The stream of a shard."""
    return api.StreamConfig(
        name=name,
        subjects=[subject_of(name)],
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType.FILE,
        num_replicas=REPLICAS,
        discard=api.DiscardPolicy.NEW,
        max_bytes=bytes_max,
        max_age=0,
        deny_delete=True,
        allow_direct=False,
    )


class _Tasks:
    """Operations under way on the loop; each calls back once."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(
        self, operation: Coroutine[Any, Any, T], otherwise: T, done: Callable[[T], None], within_s: float = ANSWER_S
    ) -> None:
        """Call `done` with the result, or with `otherwise` if the servers do not give one in time."""

        async def finish() -> None:
            try:
                async with asyncio.timeout(within_s):
                    result = await operation
            except FAILURES:
                result = otherwise
            done(result)

        task = asyncio.get_running_loop().create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Stored(msgspec.Struct):
    """A message in an answer of the servers."""

    seq: int
    hdrs: str = ""
    data: str = ""


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _MessageAnswer(msgspec.Struct):
    message: _Stored | None = None
    error: _Error | None = None


class JetStreamLog:
    """One generation of a shard's stream."""

    def __init__(self, client: Client, stream: str) -> None:
        self.stream = stream
        self._subject = subject_of(stream)
        self._client = client
        self._js: JetStreamContext = client.jetstream(timeout=ANSWER_S)
        self._tasks = _Tasks()

    async def create(self, bytes_max: int) -> None:
        """Make the stream; nothing happens if it is there with this configuration."""
        await self._js.add_stream(stream_config(self.stream, bytes_max))

    def publish(self, step: Publish, done: Callable[[Published], None]) -> None:
        self._tasks.run(self._publish(step), Unknown(), done)

    async def _publish(self, step: Publish) -> Published:
        headers = {
            HEADER: step.message.header,
            api.Header.EXPECTED_LAST_SEQUENCE.value: str(step.after),
            api.Header.EXPECTED_STREAM.value: self.stream,
        }
        try:
            kept = await self._js.publish(self._subject, step.message.payload, headers=headers)
        except APIError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                return Passed()
            if error.err_code == STORE_FAILED and await self._is_full(len(step.message.payload)):
                return Full()
            return Unknown()
        return Kept(kept.seq)

    async def _is_full(self, size: int) -> bool:
        """The servers say no more than that they could not store it."""
        info = await self._js.stream_info(self.stream)
        return info.state.bytes + size >= (info.config.max_bytes or 0)

    def tail(self, step: Seek, done: Callable[[Found | Unknown], None]) -> None:
        self._tasks.run(self._tail(step.after), Unknown(), done)

    async def _tail(self, after: int) -> Found | Unknown:
        try:
            state = (await self._js.stream_info(self.stream)).state
        except NotFoundError:
            return Found([], 0)  # it ends before all that was kept; streams are made only before they are used
        if state.first_seq > after + 1 or state.last_seq <= after:
            return Found([], state.last_seq, max(state.first_seq, 1))
        numbers = range(after + 1, min(state.last_seq, after + READS) + 1)
        messages = await asyncio.gather(*(self._message(seq) for seq in numbers))
        found: list[tuple[int, LogMessage | None]] = []
        for seq, message in zip(numbers, messages, strict=True):
            if message is None:
                break  # purged since, or a hole: the next read shows which
            found.append((seq, _parse(message)))
        return Found(found, state.last_seq, max(state.first_seq, 1))

    async def _message(self, seq: int) -> _Stored | None:
        request = msgspec.json.encode({"seq": seq})
        answer = await self._client.request(f"$JS.API.STREAM.MSG.GET.{self.stream}", request, timeout=ANSWER_S)
        read = msgspec.json.decode(answer.data, type=_MessageAnswer)
        if read.message is None and read.error is not None and read.error.err_code != NO_MESSAGE:
            raise NatsError(read.error.description)
        return read.message

    def forget(self, through: int, done: Callable[[bool], None]) -> None:
        self._tasks.run(self._js.purge_stream(self.stream, seq=through + 1), False, done)

    def measure(self, done: Callable[[int | None], None]) -> None:
        async def size() -> int | None:
            return (await self._js.stream_info(self.stream)).state.bytes

        self._tasks.run(size(), None, done)


def _parse(stored: _Stored) -> LogMessage | None:
    lines = b64decode(stored.hdrs).decode(errors="replace").split("\r\n")
    prefix = f"{HEADER}: "
    header = next((line.removeprefix(prefix) for line in lines if line.startswith(prefix)), None)
    return parse_message(header, b64decode(stored.data))


class JetStreamLiveStore:
    """The live files of one shard and generation, as objects of a bucket: the places in them are those of its stream."""

    def __init__(self, objects: ObjectStore, shard: int, generation: int = 1) -> None:
        self._objects = objects
        self._prefix = f"{shard}-g{generation}-"
        self._tasks = _Tasks()

    @staticmethod
    async def open(client: Client, cluster: str) -> ObjectStore:
        """The bucket of a cluster's live files."""
        js: JetStreamContext = client.jetstream(timeout=ANSWER_S)
        config = api.ObjectStoreConfig(replicas=REPLICAS, storage=api.StorageType.FILE)
        return await js.create_object_store(f"{cluster}-live-files", config)

    def put(self, file: StoredLive, data: bytes | memoryview, done: Callable[[bool], None]) -> None:
        async def put() -> bool:
            meta = api.ObjectMeta(description=msgspec.json.encode(file.end).decode())
            await self._objects.put(self._prefix + file.name, bytes(data), meta=meta)
            return True

        self._tasks.run(put(), False, done, OBJECT_S)

    def newest(self, done: Callable[[StoredLive | Unknown | None], None]) -> None:
        async def newest() -> StoredLive | Unknown | None:
            return max(await self._files(), key=lambda file: (file.end.offset, file.end.seq), default=None)

        self._tasks.run(newest(), Unknown(), done)

    async def _files(self) -> list[StoredLive]:
        try:
            objects = await self._objects.list(ignore_deletes=True)
        except NotFoundError:
            return []
        return [
            StoredLive(found.name.removeprefix(self._prefix), msgspec.json.decode(found.description, type=LogEnd))
            for found in objects
            if found.name.startswith(self._prefix) and found.description and not found.deleted
        ]

    def get(self, file: StoredLive, done: Callable[[bytes | Unknown], None]) -> None:
        async def get() -> bytes | Unknown:
            try:
                return (await self._objects.get(self._prefix + file.name)).data or b""
            except ObjectNotFoundError:
                return Unknown()

        self._tasks.run(get(), Unknown(), done, OBJECT_S)

    def remove_before(self, offset: int) -> None:
        async def remove() -> None:
            for file in await self._files():
                if file.end.offset < offset:
                    await self._objects.delete(self._prefix + file.name)

        self._tasks.run(remove(), None, lambda _: None)
