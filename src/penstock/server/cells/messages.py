"""What a front and the process of cells send each other: parts of legs, and requests with their answers."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.dialects.courier.sessions.front.legs import LegHello
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery
from penstock.server.config.load import Config


class CellHello(msgspec.Struct, tag="hello", array_like=True):
    """First: which process this is. The secret came with its task."""

    index: int
    secret: str
    pid: int


class LegOpened(msgspec.Struct, tag="open", array_like=True):
    """A client has a leg at a shard: a Control v1 connection, or with a query a subscribe socket."""

    no: int
    shard: int
    hello: LegHello
    query: SubscribeQuery | None = None


class LegInput(msgspec.Struct, tag="in", array_like=True):
    """Lines of the client, or one message of its socket."""

    no: int
    data: bytes


class LegRead(msgspec.Struct, tag="read", array_like=True):
    no: int
    size: int


class LegIdentified(msgspec.Struct, tag="who", array_like=True):
    no: int
    principal: Principal
    agent: str | None


class LegClosed(msgspec.Struct, tag="close", array_like=True):
    no: int


class LegOutput(msgspec.Struct, tag="out", array_like=True):
    no: int
    messages: list[bytes]


class LegHeld(msgspec.Struct, tag="held", array_like=True):
    no: int
    on: bool


class LegEnded(msgspec.Struct, tag="end", array_like=True):
    no: int
    code: int
    reason: str
    refusal: Refusal | None = None


class CellRequest(msgspec.Struct, tag="ask", array_like=True):
    """An HTTP request for one shard, let in by the front."""

    no: int
    shard: int
    route: str
    values: tuple[str, ...]
    parameters: dict[str, str]
    peer: str
    principal: Principal
    data: bytes
    is_checked: bool


class CellAnswer(msgspec.Struct, tag="answer", array_like=True):
    """The body of a 200, or why there is none."""

    no: int
    body: bytes
    refusal: Refusal | None = None
    is_untouched: bool = False
    """Whether the request was not carried out, because the shard moves: its next owner may be asked."""


class RequestCancelled(msgspec.Struct, tag="cancel", array_like=True):
    no: int


class CellConfig(msgspec.Struct, tag="config", array_like=True):
    """The config was reloaded."""

    config: Config


class CellDrain(msgspec.Struct, tag="drain", array_like=True):
    """The server stops: let leases settle, then exit."""


class CellDrained(msgspec.Struct, tag="drained", array_like=True):
    abandoned: int
    """Leases given up."""


ToCell: TypeAlias = (
    LegOpened | LegInput | LegRead | LegIdentified | LegClosed | CellRequest | RequestCancelled | CellConfig | CellDrain
)
FromCell: TypeAlias = CellHello | LegOutput | LegHeld | LegEnded | CellAnswer | CellDrained


class CellTask(msgspec.Struct):
    """What a process of cells is started with."""

    config: Config
    data: str | None
    """The data directory; None keeps everything in memory."""
    index: int
    shards: tuple[int, ...]
    socket: str
    """Where the front listens for its processes."""
    secret: str
