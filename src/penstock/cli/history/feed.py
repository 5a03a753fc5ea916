"""Putting journaled envelopes into a stream again: batches of their exact bytes, and a count of what became of each.

Only `to` and `id` ever change, and only when asked to; everything else of an envelope travels as it was kept.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.tenants import is_dead

if TYPE_CHECKING:
    from penstock.client import Client

BATCH_ENVELOPES = 256
BATCH_BYTES = 256 * 1024

_OWN_FAULT = ("IdConflict", "InvalidEnvelope", "InvalidJSON", "TooLarge", "AddressMismatch", "InvalidRequest")
"""Refusals that are about one envelope, and no reason to stop."""
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class FeedCounts(msgspec.Struct):
    """What became of the envelopes."""

    stored: int = 0
    duplicates: int = 0
    """Were there before: live, or settled within the time that ids are remembered."""
    refused: int = 0
    skipped: int = 0
    """Rows that are no envelope of a producer: settles, and dead letters, whose originals are in the journal too."""
    reasons: dict[str, int] = {}
    """Refusals by code."""

    def __str__(self) -> str:
        parts = [f"stored {self.stored}"]
        parts += [f"{self.duplicates} were there"] if self.duplicates else []
        parts += [f"{self.refused} refused ({', '.join(self.reasons)})"] if self.refused else []
        return ", ".join(parts)


class EnqueueFeed:
    """Envelopes on their way into one server."""

    def __init__(
        self, client: Client, *, to: str | None = None, prefix: str = "", new_ids: bool = False
    ) -> None:
        self._client = client
        self._to = to
        self._prefix = prefix
        self._new_ids = new_ids
        self._channel = ""
        self._batch: list[bytes] = []
        self._size = 0
        self.counts = FeedCounts()

    async def put(self, event: str | None, channel: str | None, body: bytes | None) -> None:
        """Take a row; what waits is sent when it is enough, or goes to another stream."""
        if event != "enqueue" or channel is None or body is None or is_dead(channel):
            self.counts.skipped += 1
            return
        to = self._to or self._prefix + channel
        full = len(self._batch) >= BATCH_ENVELOPES or self._size + len(body) > BATCH_BYTES
        if self._batch and (full or to != self._channel):
            await self.flush()
        self._channel = to
        self._batch.append(self._readdressed(body, to, is_moved=to != channel))
        self._size += len(body)

    def _readdressed(self, body: bytes, to: str, *, is_moved: bool) -> bytes:
        if not is_moved and not self._new_ids:
            return body
        try:
            envelope = _object.decode(body)
        except msgspec.DecodeError:
            return body  # the server says what is wrong with it
        if is_moved:
            envelope["to"] = msgspec.Raw(msgspec.json.encode(to))
        if self._new_ids:
            envelope["id"] = msgspec.Raw(msgspec.json.encode(secrets.token_hex(16)))
        return msgspec.json.encode(envelope)

    async def flush(self) -> None:
        """Send what waits."""
        batch, self._batch, self._size = self._batch, [], 0
        if batch:
            await self._send(batch)

    async def _send(self, batch: list[bytes]) -> None:
        try:
            receipt = await self._client.enqueue(self._channel, batch)
        except PenstockError as error:
            if error.code not in _OWN_FAULT:
                raise
            if len(batch) > 1:  # one of them is at fault, and a batch is stored whole or not at all
                for envelope in batch:
                    await self._send([envelope])
                return
            self.counts.refused += 1
            self.counts.reasons[error.code] = self.counts.reasons.get(error.code, 0) + 1
            return
        self.counts.stored += len(receipt.ids) - len(receipt.duplicates)
        self.counts.duplicates += len(receipt.duplicates)
