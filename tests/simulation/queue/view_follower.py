"""An actor that follows a view: with little credit, with none, without reading, disconnected, and resuming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.queue.views import LATEST
from penstock.testing.clients import Frame, LineClient
from tests.simulation.queue.actors import Caller
from tests.simulation.queue.view_copy import ViewCopy

if TYPE_CHECKING:
    from tests.simulation.world import CheckedWorld


class Follower(Caller):
    """Keeps a copy of `latestPerAgent` by Control v1."""

    pace_ms = 80

    def __init__(self, world: CheckedWorld, name: str, streams: list[str]) -> None:
        super().__init__(world, name, streams)
        self.copy = ViewCopy(name)
        world.copies.append(self.copy)

    def connected(self, client: LineClient) -> None:
        self.counts = self.dice.random() < 0.7
        since = self.copy.version if self.dice.random() < 0.8 else None
        self.copy.is_resumed |= since is not None
        client.request(
            "live",
            view=self.dice.choice((LATEST, f"views/{LATEST}")),
            subId="v",
            credit=self.dice.randint(0, 3) if self.counts else None,
            since=since,
        )

    def heard(self, line: Frame) -> None:
        if line["type"] == "live":
            self.copy.apply(line)

    def act(self) -> None:
        if self.maybe_cut(0.05):
            return
        line = self.line()
        match self.dice.randint(0, 7):
            case 0:
                line.pipe.pause()
            case 1 | 2:
                line.pipe.resume()
            case 3:
                line.request("snapshot", view=LATEST)
            case _ if self.counts:
                line.request("grant", n=self.dice.randint(1, 4), subId="v")
