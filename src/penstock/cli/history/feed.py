"""Enqueue journaled envelopes again: batches of their exact bytes, and a count of the outcomes.

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
"""Refusals of one envelope, after which the feed continues."""
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class FeedCounts(msgspec.Struct):
    """Outcomes of the envelopes."""

    stored: int = 0
    duplicates: int = 0
    """Duplicates: queued, or settled while their ids are remembered."""
    refused: int = 0
    skipped: int = 0
    """Rows that no producer sent: settles, and dead letters, whose originals are in the journal too."""
    reasons: dict[str, int] = {}
    """Refusals by code."""

    def __str__(self) -> str:
        parts = [f"stored {self.stored}"]
        parts += [f"{self.duplicates} were there"] if self.duplicates else []
        parts += [f"{self.refused} refused ({', '.join(self.reasons)})"] if self.refused else []
        return ", ".join(parts)


class EnqueueFeed:
    """Enqueues envelopes into one server, in batches."""

    def __init__(self, client: Client, *, to: str | None = None, prefix: str = "", new_ids: bool = False) -> None:
        self._client = client
        self._to = to
        self._prefix = prefix
        self._new_ids = new_ids
        self._channel = ""
        self._batch: list[bytes] = []
        self._size = 0
        self.counts = FeedCounts()

    async def put(self, event: str | None, channel: str | None, body: bytes | None) -> None:
        """Take a row; a batch is sent when it is full or the stream changes."""
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
            return body  # the server reports the error
        if is_moved:
            envelope["to"] = msgspec.Raw(msgspec.json.encode(to))
        if self._new_ids:
            envelope["id"] = msgspec.Raw(msgspec.json.encode(secrets.token_hex(16)))
        return msgspec.json.encode(envelope)

    async def flush(self) -> None:
        """Send the pending batch."""
        batch, self._batch, self._size = self._batch, [], 0
        if batch:
            await self._send(batch)

    async def _send(self, batch: list[bytes]) -> None:
        try:
            receipt = await self._client.enqueue(self._channel, batch)
        except PenstockError as error:
            reserved = error.code == "Forbidden" and not (error.refusal.ref or "").startswith("streams:")
            if error.code not in _OWN_FAULT and not reserved:
                raise
            if len(batch) > 1:  # a batch is stored whole or not at all, so find the envelope at fault
                for envelope in batch:
                    await self._send([envelope])
                return
            self.counts.refused += 1
            self.counts.reasons[error.code] = self.counts.reasons.get(error.code, 0) + 1
            return
        self.counts.stored += len(receipt.ids) - len(receipt.duplicates)
        self.counts.duplicates += len(receipt.duplicates)
