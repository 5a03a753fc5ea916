"""From a shared secret to the keys of a stream: its topic, its MAC key, and those of its control channel.

Owns the two suites, which also define the MAC of the chains. `sha256`, the default, is HKDF with the XOR of both public keys as its salt,
which is symmetric; `blake3` is that hash's own key derivation. Both ends must name the same suite: without negotiation there is no
downgrade attack. The labels `ctrl-topic`, `ctrl-mac` and `enc` of `sha256` are Penstock's own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from penstock.core.errors import Refusal
from penstock.dialects.streamservice.ristretto import KeyPair, shared_secret

if TYPE_CHECKING:
    from blake3 import blake3

Suite: TypeAlias = Literal["sha256", "blake3"]
SUITES: Final[tuple[Suite, ...]] = ("sha256", "blake3")
MAC_SIZE = 32

_SUITE_HINT = "the suites are `sha256` and `blake3`"
_CONTEXT = "hyprstream stream-keys v1 "


class StreamKeys(msgspec.Struct, frozen=True):
    """What both ends of a stream derive. The relay learns only the topics."""

    suite: Suite
    topic: str
    """64 lowercase hexadecimal digits."""
    mac_key: bytes
    ctrl_topic: str
    ctrl_mac_key: bytes
    enc_key: bytes

    def __repr__(self) -> str:
        return f"StreamKeys(suite={self.suite!r}, topic={self.topic!r})"


def agree(pair: KeyPair, public: bytes, suite: Suite = "sha256") -> StreamKeys | Refusal:
    """The keys of the stream between the holder of a key pair and the holder of the other public key."""
    shared = shared_secret(pair, public)
    return shared if isinstance(shared, Refusal) else derive(shared, pair.public, public, suite)


def derive(shared: bytes, one_public: bytes, other_public: bytes, suite: Suite = "sha256") -> StreamKeys | Refusal:
    """The keys of a stream from its shared secret and both public keys, in either order."""
    salt = bytes(one ^ other for one, other in zip(one_public, other_public, strict=True))
    expand: Callable[[str], bytes]
    if suite == "sha256":
        prk = hkdf_extract(salt, shared)

        def expand(label: str) -> bytes:
            return hkdf_expand(prk, label.encode())

    else:
        hasher = _blake3(suite)
        if isinstance(hasher, Refusal):
            return hasher
        material = shared + salt

        def expand(label: str) -> bytes:
            return hasher(material, derive_key_context=_CONTEXT + label).digest()

    return StreamKeys(
        suite, expand("topic").hex(), expand("mac"), expand("ctrl-topic").hex(), expand("ctrl-mac"), expand("enc")
    )


def hkdf_extract(salt: bytes, material: bytes) -> bytes:
    """RFC 5869 with SHA-256: a key from material that is secret but not uniform."""
    return hmac.digest(salt, material, "sha256")


def hkdf_expand(prk: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256: 32 bytes for one purpose."""
    return hmac.digest(prk, info + b"\x01", "sha256")


def mac_function(key: bytes, suite: Suite) -> Callable[[bytes, bytes], bytes] | Refusal:
    """The MAC function of a suite and key, over two concatenated parts; 32 bytes."""
    if suite == "sha256":
        keyed = hmac.new(key, digestmod=hashlib.sha256)

        def mac(first: bytes, second: bytes) -> bytes:
            state = keyed.copy()
            state.update(first)
            state.update(second)
            return state.digest()

        return mac
    hasher = _blake3(suite)
    if isinstance(hasher, Refusal):
        return hasher
    return lambda first, second: hasher(first, key=key).update(second).digest()


def _blake3(suite: str) -> type[blake3] | Refusal:
    if suite != "blake3":
        return Refusal("Unsupported", f"there is no suite `{suite}`", ref="suite", hint=_SUITE_HINT)
    try:
        from blake3 import blake3
    except ImportError:
        return Refusal(
            "Unsupported",
            "the suite `blake3` is not installed",
            ref="suite",
            hint='`pip install "penstock[streams]"`, or use `sha256` at both ends',
        )
    return blake3
