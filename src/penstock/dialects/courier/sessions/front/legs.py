"""The port between a front and the cells: a leg is the part of one client connection at one cell.

At the cell a leg is an ordinary connection. The front authenticates the client; a leg carries who that is, and the cell checks scopes
again. A leg that is lost ends like a lost connection: its leases return, and the client is disconnected.
"""
# size: a port

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.core.cluster.status import OwnerMap
from penstock.core.errors import Refusal
from penstock.core.scopes import Principal

LEG_LOST = (1012, "the cell of a stream was restarted")
"""How a connection ends whose leg was lost."""


class LegHello(msgspec.Struct, frozen=True):
    """Whose leg it is."""

    principal: Principal
    peer: str
    agent: str | None
    suffix: str
    """What the labels end with that the cell makes up: a label is unique among all legs of a connection."""


class LegOwner(Protocol):
    """What a leg calls at the front."""

    def arrived(self, messages: list[bytes]) -> None:
        """The cell wrote messages. The front calls `read` when the client has taken them."""

    def held(self, on: bool) -> None:
        """The cell wants no more lines for now, or wants them again."""

    def ended(self, code: int, reason: str, refusal: Refusal | None = None) -> None:
        """The leg is closed; `refusal` says why the cell did not open it."""


class LegPort(Protocol):
    """What the front calls at a leg."""

    def send(self, lines: bytes) -> None:
        """Lines of the client, each with its end."""

    def identify(self, principal: Principal, agent: str | None) -> None:
        """The client showed another token, or its rights have changed."""

    def read(self, size: int) -> None:
        """The client has taken so many bytes of what the cell wrote."""

    def close(self) -> None:
        """The client is gone. The owner is not called any more."""


class LegOpener(Protocol):
    """The cells, as a front knows them."""

    owners: OwnerMap | None
    """Where the owners of the shards are, if other nodes may own some."""

    def open(self, shard: int, hello: LegHello, owner: LegOwner) -> LegPort:
        """Open a leg. It is never refused here: `ended` is called later."""
