"""What the loads of a relay send: topics, registrations that a known key signs, chunks of a size, and blocks of a stream."""

from __future__ import annotations

import secrets
import time
from hashlib import sha256

from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.chain import BlockChain
from penstock.dialects.streamservice.keys import StreamKeys
from penstock.dialects.streamservice.messages import Token
from penstock.dialects.streamservice.signatures import SigningKey, sign_registration
from penstock.dialects.streamservice.wire import BLOCK_MAC_SIZE

KEY = SigningKey(sha256(b"bench").digest())
"""Who registers topics in a run."""
SIGNERS = {"bench": KEY.public.hex()}
CHUNK_SPARE = 184
"""Bytes of a chunk beside its data."""
LIFE_S = 3_600
PROBE = b"probe"
"""The data of chunks that find out whether somebody listens; they are shorter than all others."""
BLOCK_TOKENS = 16
_MAC = b"\x01" * 32


def topic(tag: str, number: int) -> str:
    """The name of a run's topic."""
    return sha256(f"{tag}-{number}".encode()).hexdigest()


def registration(name: str) -> bytes:
    """A signed envelope for a topic."""
    now_ms = time.time_ns() // 1_000_000
    return sign_registration(
        name, now_ms // 1000 + LIFE_S, KEY, nonce=secrets.token_bytes(16), now_ms=now_ms, sub="bench"
    )


def chunk(name: str, size: int, number: int) -> bytes:
    """A chunk of so many bytes in all; the relay is blind, so its MACs need not be right."""
    return encode.chunk(name.encode(), number.to_bytes(8, "big") * ((size - CHUNK_SPARE) // 8), _MAC, _MAC)


def probe(name: str) -> bytes:
    return encode.chunk(name.encode(), PROBE, _MAC, _MAC)


def blocks(keys: StreamKeys, count: int) -> list[tuple[bytes, bytes, bytes]]:
    """The first blocks of a stream, as a subscriber gets them."""
    chain = BlockChain(keys.mac_key, keys.topic, keys.suite)
    made = []
    for number in range(count):
        words = [Token(f" word{number}") for _ in range(BLOCK_TOKENS)]
        frame = encode.block(chain.prev, words)
        mac = chain.compute_next(frame)
        assert len(mac) == BLOCK_MAC_SIZE
        made.append((keys.topic.encode(), frame, mac))
    return made
