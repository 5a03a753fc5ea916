"""Keys of token streams for the pipeline: what turns journaled messages into tokens, and proves who wrote them.

The relay never has these keys; whoever wants to see into streams gives them to the job, topic by topic. A file of them holds one JSON
object a line, `{"topic": …, "mac_key": …, "suite": "sha256"}`, so that a publisher can add a line when it starts a stream. It is read
again when it has changed, and must be its owner's alone.
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
"""Keys of one file; beyond, the file is refused: whoever adds lines has to take old ones out."""


class KeysError(Exception):
    """Invalid keys; the message says where, and what to change."""

    code = "BadKeys"


class TokenKey(msgspec.Struct, frozen=True):
    """What it takes to check the messages of one topic."""

    topic: str
    mac_key: bytes
    suite: Suite = "sha256"

    def __repr__(self) -> str:
        return f"TokenKey(topic_hash={topic_hash(self.topic)!r}, suite={self.suite!r})"


Keys: TypeAlias = Mapping[str, TokenKey]
"""By the hash of the topic, as rows name it."""
GivenKeys: TypeAlias = Mapping[str, "bytes | str | TokenKey"]
"""By the topic itself: the key as bytes or in hexadecimal, or with its suite."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    mac_key: str
    suite: Suite = "sha256"


_line = msgspec.json.Decoder(_Line)


def topic_hash(topic: str) -> str:
    """What a topic is called in the journal and in tables."""
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
        raise KeysError("a topic has 64 lowercase hexadecimal digits; it is not its hash that is needed here")
    if len(key) != MAC_SIZE or not any(key):
        raise KeysError(f"the MAC key of a topic has {MAC_SIZE} bytes, or twice as many hexadecimal digits")
    return TokenKey(topic, key, suite)


class KeyFile:
    """A file of keys, read again whenever it has changed."""

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
                raise KeysError(
                    f"others may read `{self._path}`, which holds keys; make it yours with `chmod 600`"
                )
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
                told = _line.decode(line)
                key = _key(told.topic, told.mac_key, told.suite)
            except (msgspec.DecodeError, UnicodeDecodeError, KeysError) as error:
                if not line.endswith(b"\n"):
                    break  # somebody is writing it; the next look finds it whole
                raise KeysError(f"`{path}`, line {number}: {error}") from error
            found[topic_hash(told.topic)] = key
            if len(found) > KEYS_MAX:
                raise KeysError(f"`{path}` has more than {KEYS_MAX:,} keys; take out those of old streams")
    return found
