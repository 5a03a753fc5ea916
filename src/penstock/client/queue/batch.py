"""What a client sends: envelopes as frames, and batches that do not wait for each answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Self

from penstock.client.control import frames
from penstock.core.errors import PenstockError
from penstock.core.names import stream_problem

if TYPE_CHECKING:
    from penstock.client.queue.client import Client

Envelope = Mapping[str, Any] | bytes
"""An envelope as a mapping, whose missing `id`, `ts` and `from` are filled in, or as JSON bytes."""
PREFIXES_MAX = 1024
"""Cached beginnings of enqueue frames, one for each stream."""
BATCH_MAX = 64
BATCH_BYTES = 256 * 1024
"""The most envelopes and bytes that a batch puts into one frame."""
UNDER_WAY_MAX = 64
"""The most requests of a batch without an answer."""


class Outgoing:
    """Makes enqueue frames for one client."""

    def __init__(self, agent: str | None) -> None:
        self._agent = agent
        self._prefixes: dict[str, bytes] = {}
        self._id_stem = secrets.token_hex(10)
        self._id_serial = 0

    def prefix(self, to: str) -> bytes:
        """The beginning of an enqueue frame; the envelope or an array follows."""
        found = self._prefixes.get(to)
        if found is None:
            if len(self._prefixes) >= PREFIXES_MAX:
                self._prefixes.clear()
            frames.require(stream_problem(to))
            found = self._prefixes[to] = b'{"type":"enqueue","to":%b,"env":' % frames.encode(to)
        return found

    def encoded(self, envelope: Envelope) -> bytes:
        if isinstance(envelope, bytes):
            # A line feed ends a frame. In valid JSON it can only be white space, so replace it.
            return envelope.replace(b"\n", b" ") if b"\n" in envelope else envelope
        if "id" in envelope and "ts" in envelope and (self._agent is None or "from" in envelope):
            return frames.encode(envelope)
        filled: dict[str, object] = {"id": self.new_id(), "ts": frames.now_text()}
        if self._agent is not None:
            filled["from"] = self._agent
        return frames.encode(filled | dict(envelope))

    def new_id(self) -> str:
        # Random once a client, then counted: five times cheaper than a UUID for each.
        self._id_serial += 1
        return f"{self._id_stem}-{self._id_serial:x}"


class SendBatch:
    """Sends without waiting for each answer; `Client.batch` makes one. The end of its block waits until everything is durable.

    Consecutive envelopes for one stream travel in one frame, which is stored as a whole. An error is raised by the next call, or at
    the end of the block.

    Example:
        async with client.batch() as batch:
            for number in range(1_000):
                await batch.enqueue("jobs", {"type": "job", "payload": number})
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._to = ""
        self._envelopes: list[bytes] = []
        self._bytes = 0
        self._under_way: set[asyncio.Task[Any]] = set()
        self._error: BaseException | None = None

    async def enqueue(self, to: str, envelope: Envelope) -> None:
        """Hand over an envelope for a stream. Waits only while many requests have no answer."""
        data = self._client._outgoing.encoded(envelope)
        if to != self._to or len(self._envelopes) >= BATCH_MAX or self._bytes + len(data) > BATCH_BYTES:
            self._send()
            self._client._outgoing.prefix(to)  # raises if `to` is no stream
            self._to = to
        if not self._envelopes:
            asyncio.get_running_loop().call_soon(self._send)
        self._envelopes.append(data)
        self._bytes += len(data)
        await self._room()

    async def send(self, /, to: str, payload: object, **options: Any) -> None:
        """Hand over a payload, with the options of `Client.send`."""
        self._send()
        self._start(self._client.send(to, payload, **options))
        await self._room()

    async def flush(self) -> None:
        """Wait until everything before this call is durable. Raises the first error since the last call that raised one."""
        self._send()
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._raise()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exception: object) -> None:
        try:
            await self.flush()
        except PenstockError:
            if kind is None:
                raise

    def _send(self) -> None:
        if self._envelopes:
            envelopes, self._envelopes, self._bytes = self._envelopes, [], 0
            line = b"%b[%b]" % (self._client._outgoing.prefix(self._to), b",".join(envelopes))
            self._start(self._client._repeatable(line, None, self._to))

    def _start(self, request: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(request)
        self._under_way.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            self._error = self._error or task.exception()

    async def _room(self) -> None:
        while len(self._under_way) >= UNDER_WAY_MAX:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
