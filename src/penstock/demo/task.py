"""What the demo's process is told: one line of JSON on its standard input, which stays open for as long as the server lives."""

from __future__ import annotations

from typing import Literal

import msgspec

SPACE = "demo"


class StoryTask(msgspec.Struct, frozen=True):
    """Where the story goes."""

    pub: str
    push: str
    signer: str
    """The file with the publisher's key."""
    console: str | None = None
    """Where browsers are sent; left out, no link is printed."""


class SpaceTask(msgspec.Struct, frozen=True):
    """Who takes part in the space."""

    url: str
    tokens: dict[str, str]
    """By the participant's name."""
    collector: Literal["spark", "python"]
    """Who takes the means; Spark does it elsewhere."""


class DemoTask(msgspec.Struct, frozen=True):
    """All of it."""

    url: str
    """A door for the agents."""
    token: str | None = None
    space: SpaceTask | None = None
    relay: StoryTask | None = None
