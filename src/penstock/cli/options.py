"""Options that every command shares, and the client that they connect."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter

from penstock.core.errors import PenstockError, Refusal

R = TypeVar("R")


Token = Annotated[
    str | None, Parameter(env_var="PENSTOCK_TOKEN", show_env_var=True, help="Default: the local operator token.")
]


def flag(text: str) -> Parameter:
    """A switch that is off by default."""
    return Parameter(negative="", show_default=False, help=text)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    """Options of commands without a server."""

    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON.")] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Common(Output):
    """Options of commands that connect to a server."""

    url: Annotated[
        str | None,
        Parameter(
            env_var="PENSTOCK_URL",
            help="tcp://host:port, unix:/path or http://host:port; default: the server on ./penstock-data.",
        ),
    ] = None
    token: Token = None


PLAIN = Output()
DEFAULTS = Common()


def run(
    common: Common,
    work: Callable[[Any], Awaitable[R]],
    *,
    agent: str | None = None,
    reconnect: bool = False,
) -> R:
    """Connect, do the work with the client, close."""
    from penstock.client import address
    from penstock.client.queue.connect import connect

    url = address.discover(common.url)
    token = common.token or address.operator_token(url)

    async def go() -> R:
        async with connect(url, token, agent, reconnect=reconnect) as client:
            return await work(client)

    return asyncio.run(go())


def agent_name(name: str | None) -> str:
    """The agent to act for: `--as`, else `PENSTOCK_AGENT`."""
    name = name or os.environ.get("PENSTOCK_AGENT")
    if not name:
        hint = "add --as NAME, or set PENSTOCK_AGENT"
        raise PenstockError(Refusal("InvalidRequest", "no agent name is given", hint=hint))
    return name


def payload_of(text: str) -> Any:
    """JSON if it is valid, else the text itself; text that starts like JSON but is invalid is refused."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        if text[:1] in {"{", "[", '"'}:
            raise PenstockError(Refusal("InvalidJSON", f"the payload is not JSON: {error}")) from None
        return text
