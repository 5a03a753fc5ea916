"""The group Ristretto255: key pairs and shared secrets, with the checks that its libraries omit.

Owns the definition of a valid public key: 32 bytes, the top bit clear, a point of the group, and not the identity, whose shared secret
would be 32 zero bytes. The caller provides the entropy. The library is loaded with the first key; a relay needs none. Cost: about 25 us
for a public key and 80 us for a shared secret.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.core.errors import PenstockError, Refusal

KEY_SIZE = 32
ENTROPY_SIZE = 64
"""Bytes of entropy of a secret: twice its size, so that the remainder modulo the group's order is uniform."""

_IDENTITY = bytes(KEY_SIZE)
_HINT = "the key is one end's half of the key agreement: the encoding of a Ristretto255 point, as RFC 9496 has it"
_LOAD_HINT = "it runs from the directory of temporary files: point TMPDIR to one from which programs may run"


class KeyPair(msgspec.Struct, frozen=True):
    """One end's half of a key agreement. Each stream has its own."""

    secret: bytes
    public: bytes

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"


class _Group(NamedTuple):
    reduce: Callable[[bytes], bytes]
    multiply: Callable[[bytes, bytes], bytes]
    multiply_base: Callable[[bytes], bytes]
    is_point: Callable[[bytes], object]


def key_pair(entropy: bytes) -> KeyPair:
    """A key pair from 64 bytes of entropy, which must be fresh and secret."""
    if len(entropy) != ENTROPY_SIZE:
        raise ValueError(f"a key pair is made of {ENTROPY_SIZE} bytes of entropy")
    return pair_of(_group().reduce(entropy))


def pair_of(secret: bytes) -> KeyPair:
    """The key pair of a secret scalar."""
    if len(secret) != KEY_SIZE or not any(secret):
        raise ValueError(f"a secret has {KEY_SIZE} bytes, and is not zero")
    return KeyPair(secret, _group().multiply_base(secret))


def check_public(public: bytes) -> Refusal | None:
    """Why a public key is invalid, or None."""
    if len(public) != KEY_SIZE:
        return _refusal(f"the public key has {len(public)} bytes instead of {KEY_SIZE}")
    if public[-1] & 0x80:
        return _refusal("the public key has its top bit set")
    if public == _IDENTITY:
        return _refusal("the public key is the identity, with which the shared secret would be known")
    if not _group().is_point(public):
        return _refusal("the public key is not a point of the group")
    return None


def shared_secret(pair: KeyPair, public: bytes) -> bytes | Refusal:
    """The secret that only both ends of a key agreement know."""
    if (refusal := check_public(public)) is not None:
        return refusal
    if public == pair.public:
        return _refusal("both ends have the same public key")
    try:
        shared = _group().multiply(pair.secret, public)
    except RuntimeError:
        shared = _IDENTITY
    return _refusal("the key agreement leads to the identity") if shared == _IDENTITY else shared


def _refusal(message: str) -> Refusal:
    return Refusal("InvalidRequest", message, ref="publicKey", hint=_HINT)


@cache
def _group() -> _Group:
    try:
        import rbcl
        from rbcl._sodium import _sodium
    except (ImportError, OSError) as error:
        raise PenstockError(
            Refusal("Unsupported", f"the library of Ristretto255 cannot be loaded: {error}", hint=_LOAD_HINT)
        ) from error

    # The library copies itself to a temporary file for each process. It is mapped by now, so the file can be removed.
    try:
        Path(_sodium._name).unlink(missing_ok=True)
    except OSError:
        pass
    return _Group(
        rbcl.crypto_core_ristretto255_scalar_reduce,
        rbcl.crypto_scalarmult_ristretto255,
        rbcl.crypto_scalarmult_ristretto255_base,
        rbcl.crypto_core_ristretto255_is_valid_point,
    )
