"""The client of a MEW space: `Space` joins one, streams and feeds belong to it. It knows nothing of queues or token streams."""

from __future__ import annotations

from penstock.client.space.client import Invitation, Space
from penstock.client.space.feed import Feed
from penstock.client.space.messages import Frame, SpaceEnvelope, SpaceError, TargetUnsupported
from penstock.client.space.stream import SpaceStream

__all__ = [
    "Feed", "Frame", "Invitation", "Space", "SpaceEnvelope", "SpaceError", "SpaceStream", "TargetUnsupported",
]  # fmt: skip
