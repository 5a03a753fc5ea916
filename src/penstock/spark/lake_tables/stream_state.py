"""Fold the journal rows of a topic, in order, into rows of the table `token_streams`.

A stream is one registration, from its first row until it expires; renewing it earlier continues it. Its row in the table is the whole
state, so a fold over new rows starts from that row, and any way of cutting the journal ends in the same table. Rows after the end,
such as the last count, still belong to the stream until the topic is registered again.

With the key of a topic, every journaled message is verified: its MAC proves its author and its predecessor. A message with a wrong MAC
is `forged` and left out. One that does not follow the message before it in the journal is a break in the chain, and verification
continues after it. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from hmac import compare_digest
from typing import Any, NamedTuple

import msgspec

from penstock.core.errors import PenstockError
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.decode import read_block, read_chunk, read_payload
from penstock.dialects.streamservice.messages import Complete, Payload, StreamFailure, Token
from penstock.dialects.streamservice.wire import BLOCK_MAC_SIZE, FrameFault, peek_block
from penstock.spark.lake_tables.verification_keys import TokenKey, topic_hash

INT_MAX = 2**31 - 1
"""Maximum of a 32-bit column; counts stop there."""


class TokenEvent(NamedTuple):
    """A journal row of a topic."""

    journal: str
    topic_hash: str
    offset: int
    at_us: int
    event: str
    format: str | None = None
    size: int | None = None
    reason: str | None = None
    meta: str | None = None
    body: bytes | None = None


class _Counts(msgspec.Struct):
    """The `meta` of rows; missing counts are zero."""

    chunks: int = 0
    replayed: int = 0
    lost: int = 0
    found: bool = True


_counts = msgspec.json.Decoder(_Counts)


class TokenStreamRow(msgspec.Struct):
    """A row of the table `token_streams`; times are in microseconds since 1970."""

    journal: str
    topic_hash: str
    started_at: int
    ended_at: int | None = None
    chunks: int = 0
    bytes: int = 0
    chunks_per_s: float | None = None
    resumes: int = 0
    replayed: int = 0
    gaps: int = 0
    max_gap_ms: float | None = None
    ended: str = "open"
    tokens: int | None = None
    tokens_per_s: float | None = None
    finish_reason: str | None = None
    chain_ok: bool | None = None
    perplexity: float | None = None
    entropy: float | None = None
    lost: int = 0
    journaled: int = 0
    forged: int | None = None
    breaks: int | None = None
    last_at: int | None = None
    expired_at: int | None = None
    mark: str | None = None

    def row(self) -> dict[str, Any]:
        """The row with its derived columns."""
        took_s = 0.0 if self.last_at is None else (self.last_at - self.started_at) / 1e6
        self.chunks_per_s = max(self.chunks, self.journaled) / took_s if took_s > 0 else None
        if self.tokens is not None:
            self.tokens_per_s = self.tokens / took_s if took_s > 0 else None
        if self.forged is not None:
            self.chain_ok = not self.forged and not self.breaks
        return msgspec.structs.asdict(self)


class Checked(NamedTuple):
    """A message whose MAC is right."""

    prev: str
    """The mark of its predecessor in hexadecimal; empty for the first message."""
    mark: str
    payloads: list[Payload]


class Inspector:
    """Verifies messages of one topic."""

    def __init__(self, key: TokenKey) -> None:
        self._topic = key.topic.encode()
        # The journal replaces the topic by its hash; the MAC does not cover it.
        self._names = (key.topic.encode(), topic_hash(key.topic).encode())
        self._chains = {
            kind: (make(key.mac_key, key.topic, key.suite), make(key.mac_key, key.topic, key.suite))
            for kind, make in (("chunk", ChainedStreamHmac), ("block", BlockChain))
        }

    def check(self, format: str | None, body: bytes) -> Checked | None:  # noqa: A002 - as in the table
        """Verify a message; None if its MAC is wrong."""
        if format == "block":
            frame, mac = body[:-BLOCK_MAC_SIZE], body[-BLOCK_MAC_SIZE:]
            prev = peek_block(frame)
            if isinstance(prev, FrameFault):
                return None
            prev = b"" if prev == self._topic[:BLOCK_MAC_SIZE] else prev
            return self._proved("block", prev, frame, mac)
        chunk = read_chunk(body)
        if isinstance(chunk, FrameFault) or chunk.topic not in self._names:
            return None
        return self._proved("chunk", chunk.prev, chunk.data, chunk.mac)

    def _proved(self, kind: str, prev: bytes, data: bytes, mac: bytes) -> Checked | None:
        first, later = self._chains[kind]
        if prev:
            if len(prev) != later.SIZE:
                return None
            later.advance(prev)
        chain = later if prev else first
        if not compare_digest(chain.next_mac(data), mac):
            return None
        return Checked(prev.hex(), mac.hex(), _payloads(kind, data))


def _payloads(kind: str, data: bytes) -> list[Payload]:
    """The payloads of a verified message; none if they cannot be decoded."""
    if kind == "block":
        block = read_block(data)
        return [] if isinstance(block, FrameFault) else block.payloads
    payload = read_payload(data)
    return [] if isinstance(payload, FrameFault) else [payload]


def fold(
    rows: Iterable[TokenEvent], before: TokenStreamRow | None = None, key: TokenKey | None = None
) -> list[TokenStreamRow]:
    """The streams that the rows of one topic, in order, change; `before` is its newest stream so far."""
    touched: list[TokenStreamRow] = []
    stream = None if before is None else msgspec.structs.replace(before)
    inspector = None
    for row in rows:
        if stream is None or (
            row.event == "register" and stream.expired_at is not None and stream.started_at < row.at_us
        ):
            stream = TokenStreamRow(row.journal, row.topic_hash, row.at_us)
        if not touched or touched[-1] is not stream:
            touched.append(stream)
        if row.event == "chunk" and key is not None and inspector is None:
            with suppress(PenstockError):  # its suite is not installed, so nothing is verified
                inspector = Inspector(key)
        _apply(stream, row, inspector)
    return touched


def _apply(stream: TokenStreamRow, row: TokenEvent, inspector: Inspector | None) -> None:
    if row.event == "chunk":
        stream.journaled += 1
        _note_message(stream, row.at_us)
        if inspector is not None and row.body is not None:
            _check(stream, row, row.body, inspector)
    elif row.event == "chunk_counts":
        counts = _parse_counts(row.meta)
        stream.chunks += counts.chunks
        stream.bytes += row.size or 0
        stream.replayed = min(stream.replayed + counts.replayed, INT_MAX)
        stream.lost += counts.lost
        stream.gaps += counts.lost > 0
        if counts.chunks and not stream.journaled:
            _note_message(stream, row.at_us)
    elif row.event == "resume":
        stream.resumes += 1
        stream.gaps += not _parse_counts(row.meta).found
    elif row.event == "expire":
        stream.expired_at = row.at_us
        if stream.ended == "open":
            stream.ended_at = row.at_us
            stream.ended = "expired" if row.reason == "expired" else "unregistered"


def _parse_counts(meta: str | None) -> _Counts:
    try:
        return _counts.decode(meta or "{}")
    except msgspec.DecodeError:
        return _Counts()


def _note_message(stream: TokenStreamRow, at_us: int) -> None:
    """Note the time of one or more messages."""
    if stream.last_at is not None:
        gap_ms = max(at_us - stream.last_at, 0) / 1000
        stream.max_gap_ms = max(stream.max_gap_ms or 0.0, gap_ms)
    stream.last_at = at_us


def _check(stream: TokenStreamRow, row: TokenEvent, body: bytes, inspector: Inspector) -> None:
    stream.tokens, stream.forged, stream.breaks = stream.tokens or 0, stream.forged or 0, stream.breaks or 0
    checked = inspector.check(row.format, body)
    if checked is None:
        stream.forged += 1
        return
    if checked.mark == stream.mark:
        return  # the publisher repeated it after a reconnect
    if checked.prev != (stream.mark or ""):
        stream.breaks += 1
    stream.mark = checked.mark
    for payload in checked.payloads:
        if isinstance(payload, Token):
            stream.tokens += 1
        elif isinstance(payload, Complete | StreamFailure):
            _end(stream, row.at_us, payload)


def _end(stream: TokenStreamRow, at_us: int, payload: Complete | StreamFailure) -> None:
    """End a stream; the first end counts."""
    if stream.ended in ("complete", "error"):
        return
    stream.ended_at = at_us
    if isinstance(payload, StreamFailure):
        stream.ended, stream.finish_reason = "error", "error"
        return
    stream.ended, stream.finish_reason = "complete", payload.finish_reason
    stream.perplexity, stream.entropy = payload.perplexity, payload.entropy
