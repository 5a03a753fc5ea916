"""The task of the demo's process: one line of JSON on its standard input, which stays open while the server runs."""

# size: the contract between the server and the demo, which must load without the demo

from __future__ import annotations

from typing import Literal

import msgspec

SPACE = "demo"


class StoryTask(msgspec.Struct, frozen=True):
    """The relay that carries the story."""

    pub: str
    push: str
    signer: str
    """The file with the publisher's key."""
    console: str | None = None
    """The address of the console; without it, no link is printed."""


class SpaceTask(msgspec.Struct, frozen=True):
    """The participants of the space."""

    url: str
    tokens: dict[str, str]
    """Keyed by the participant's name."""
    collector: Literal["spark", "python"]
    """What computes the means; `spark` does it in the pipeline."""


class DemoTask(msgspec.Struct, frozen=True):
    """Everything that the process runs."""

    url: str
    """The address that the agents connect to."""
    token: str | None = None
    space: SpaceTask | None = None
    relay: StoryTask | None = None
