"""What a space is from the start: the contents of a `space.yaml`, as far as a gateway cares.

Whoever reads the file resolves tokens first; here they are digests only. Capabilities stay as they were written: `capabilities.py`
knows what they mean.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Keep = Literal["full", "counts", "off"]
"""What the journal keeps of a stream's frames: all of them, how many there were, or nothing."""
Overflow = Literal["drop-oldest", "disconnect"]
"""What happens when somebody does not read a stream's frames: the oldest go, or the reader does."""


class ParticipantSettings(msgspec.Struct, frozen=True):
    """Somebody the space knows by name, there or not."""

    token_digests: tuple[str, ...] = ()
    """sha256 of every token that lets it in, in hexadecimal."""
    capabilities: tuple[dict[str, Any], ...] | None = None
    """None takes the defaults of the space."""
    is_pipeline: bool = False
    """Virtual and always present: frames that reach it are kept in full, and Spark reads them from the journal."""
    output_log: str | None = None
    """Virtual: everything it would receive is appended to this file, a JSON line each."""
    auto_connect: bool = False
    """Whether a virtual one is present from the start, and not from its first request on."""


class StreamSettings(msgspec.Struct, frozen=True):
    """A stream that opens when its owner is there."""

    owner: str
    target: tuple[str, ...] = ()
    """Who receives its frames; nobody named means everybody."""
    request: dict[str, Any] = {}
    """What a `stream/request` for it would carry beside the target: direction, content_type, format, description, metadata."""
    keep: Keep | None = None
    overflow: Overflow | None = None


class SpaceSettings(msgspec.Struct, frozen=True):
    """One space."""

    id: str
    name: str = ""
    participants: dict[str, ParticipantSettings] = {}
    default_capabilities: tuple[dict[str, Any], ...] = ({"kind": "chat"},)
    streams: dict[str, StreamSettings] = {}
