"""The settings of a space: the part of a `space.yaml` that a gateway needs. Knows neither the config nor the files of a project.

Tokens are digests here; the reader of the file resolves them. `capabilities.py` interprets the capabilities. Settings are immutable: a
changed file makes a new `SpaceSettings`, and a running space closes the streams that no longer match it.
"""

# size: the structs that the server config and MEW project files share, and nothing else

from __future__ import annotations

from typing import Any, Literal

import msgspec

Keep = Literal["full", "counts", "off"]
"""What the journal keeps of a stream's frames: all of them, their counts, or nothing."""
Overflow = Literal["drop-oldest", "wait", "disconnect"]
"""What happens when a participant reads too slowly: drop its oldest frames, let the writer wait, or disconnect it."""


class ParticipantSettings(msgspec.Struct, frozen=True):
    """A participant that the space knows by name, present or not."""

    token_digests: tuple[str, ...] = ()
    """sha256 of each of its tokens, in hexadecimal."""
    capabilities: tuple[dict[str, Any], ...] | None = None
    """None: the defaults of the space."""
    is_pipeline: bool = False
    """Virtual and always present: the journal keeps the frames that reach it in full, and Spark reads them there."""
    output_log: str | None = None
    """Virtual: what it receives is appended to this file, one JSON line each."""
    auto_connect: bool = False
    """Whether a virtual participant is present from the start instead of from its first request."""


class StreamSettings(msgspec.Struct, frozen=True):
    """A stream that opens when its owner is present."""

    owner: str
    target: tuple[str, ...] = ()
    """The participants that receive its frames; empty means all."""
    request: dict[str, Any] = {}
    """The other members of a `stream/request` for it: direction, content_type, format, description, metadata."""
    keep: Keep | None = None
    overflow: Overflow | None = None


class SpaceSettings(msgspec.Struct, frozen=True):
    """One space."""

    id: str
    name: str = ""
    participants: dict[str, ParticipantSettings] = {}
    default_capabilities: tuple[dict[str, Any], ...] = ({"kind": "chat"},)
    streams: dict[str, StreamSettings] = {}
