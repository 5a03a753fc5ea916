"""Keys of token streams, with which the pipeline verifies journaled messages and counts their tokens.

The relay never has these keys. A key file holds one JSON object a line, `{"topic": …, "mac_key": …, "suite": "sha256"}`, so that a
publisher can append a line when it starts a stream. The file is read again when it changes, and only its owner may read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import msgspec

from penstock.dialects.streamservice.keys import MAC_SIZE, Suite
from penstock.dialects.streamservice.wire import is_topic

KEYS_MAX = 100_000
"""Keys of one file; a larger file is refused, so remove the keys of old streams."""


class KeysError(Exception):
    """Invalid keys; the message says where, and what to change."""

    code = "BadKeys"


class TokenKey(msgspec.Struct, frozen=True):
    """The key that verifies the messages of one topic."""

    topic: str
    mac_key: bytes
    suite: Suite = "sha256"

    def __repr__(self) -> str:
        return f"TokenKey(topic_hash={topic_hash(self.topic)!r}, suite={self.suite!r})"


Keys: TypeAlias = Mapping[str, TokenKey]
"""By the hash of the topic, as in the journal."""
GivenKeys: TypeAlias = Mapping[str, "bytes | str | TokenKey"]
"""By the topic itself: the key as bytes or in hexadecimal, or a `TokenKey`."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    mac_key: str
    suite: Suite = "sha256"


_line = msgspec.json.Decoder(_Line)


def topic_hash(topic: str) -> str:
    """The name of a topic in the journal and in tables."""
    return sha256(topic.encode()).hexdigest()


def known_keys(given: GivenKeys) -> dict[str, TokenKey]:
    """Keys by the hashes of their topics."""
    found = {}
    for topic, key in given.items():
        made = key if isinstance(key, TokenKey) else _key(topic, key)
        found[topic_hash(topic)] = made
    return found


def _key(topic: str, mac_key: bytes | str, suite: Suite = "sha256") -> TokenKey:
    try:
        key = bytes.fromhex(mac_key) if isinstance(mac_key, str) else mac_key
    except ValueError:
        key = b""
    if not is_topic(topic.encode()):
        raise KeysError("a topic has 64 lowercase hexadecimal digits; give the topic, not its hash")
    if len(key) != MAC_SIZE or not any(key):
        raise KeysError(f"the MAC key of a topic has {MAC_SIZE} bytes, or twice as many hexadecimal digits")
    return TokenKey(topic, key, suite)


class KeyFile:
    """A key file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str, TokenKey] = {}

    def keys(self) -> Keys:
        try:
            about = self._path.stat()
        except OSError as error:
            raise KeysError(f"`pipeline.token_keys` names `{self._path}`: {error.strerror}") from error
        seen = about.st_mtime_ns, about.st_size, about.st_ino
        if seen != self._seen:
            if about.st_mode & 0o077 and os.name == "posix":
                raise KeysError(f"other users can read the key file `{self._path}`; run `chmod 600` on it")
            self._keys = _read(self._path)
            self._seen = seen
        return self._keys


def _read(path: Path) -> dict[str, TokenKey]:
    found: dict[str, TokenKey] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                read = _line.decode(line)
                key = _key(read.topic, read.mac_key, read.suite)
            except (msgspec.DecodeError, UnicodeDecodeError, KeysError) as error:
                if not line.endswith(b"\n"):
                    break  # the line is still being written; the next read finds it complete
                raise KeysError(f"`{path}`, line {number}: {error}") from error
            found[topic_hash(read.topic)] = key
            if len(found) > KEYS_MAX:
                raise KeysError(f"`{path}` has more than {KEYS_MAX:,} keys; remove those of old streams")
    return found
