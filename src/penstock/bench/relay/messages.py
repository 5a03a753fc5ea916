"""Messages for a relay: topics, signed registrations, chunks of a given size, and blocks of a token stream."""

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

KEY = SigningKey(sha256(b"bench").digest())  # signs the registrations of a run
SIGNERS = {"bench": KEY.public.hex()}
CHUNK_SPARE = 184  # bytes of a chunk without its data
LIFE_S = 3_600
BLOCK_TOKENS = 16
_MAC = b"\x01" * 32


def topic(tag: str, number: int) -> str:
    """The name of a topic."""
    return sha256(f"{tag}-{number}".encode()).hexdigest()


def registration(name: str) -> bytes:
    """A signed envelope that registers a topic."""
    now_ms = time.time_ns() // 1_000_000
    nonce = secrets.token_bytes(16)
    return sign_registration(name, now_ms // 1000 + LIFE_S, KEY, nonce=nonce, now_ms=now_ms, sub="bench")


def chunk(name: str, size: int, number: int) -> bytes:
    """A chunk of `size` bytes in all; the relay does not check its MACs, so they need not be right."""
    return encode.chunk(name.encode(), number.to_bytes(8, "big") * ((size - CHUNK_SPARE) // 8), _MAC, _MAC)


def probe(name: str) -> bytes:
    """A chunk that is shorter than all others; it shows that the subscription is in effect."""
    return encode.chunk(name.encode(), b"probe", _MAC, _MAC)


def blocks(keys: StreamKeys, count: int) -> list[tuple[bytes, bytes, bytes]]:
    """The first blocks of a stream, as a subscriber receives them."""
    chain = BlockChain(keys.mac_key, keys.topic, keys.suite)
    made = []
    for number in range(count):
        words = [Token(f" word{number}") for _ in range(BLOCK_TOKENS)]
        frame = encode.block(chain.prev, words)
        mac = chain.compute_next(frame)
        assert len(mac) == BLOCK_MAC_SIZE
        made.append((keys.topic.encode(), frame, mac))
    return made
