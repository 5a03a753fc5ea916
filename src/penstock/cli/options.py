"""Options that every command shares, and the client that they connect."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter
from cyclopts import Token as Word

from penstock.core.errors import PenstockError, Refusal

R = TypeVar("R")

EXIT_CHECK = 3
"""The exit code when a check failed."""


class UsageError(ValueError):
    """A value that an option does not take; `hint` says what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def _parse_token(_: object, words: Sequence[Word]) -> str | None:
    """An empty variable counts as unset. An empty option is refused: the command would use the operator's token."""
    value = words[0].value
    if not value and words[0].source != "env":
        raise UsageError("the token is empty", "leave --token out to use PENSTOCK_TOKEN or the local operator token")
    return value or None


def token_option(text: str) -> Parameter:
    """The option `--token`."""
    return Parameter(env_var="PENSTOCK_TOKEN", show_env_var=True, converter=_parse_token, help=text)


Token = Annotated[str | None, token_option("Default: the local operator token.")]


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


def run(common: Common, work: Callable[[Any], Awaitable[R]], *, agent: str | None = None, reconnect: bool = False) -> R:
    """Connect, do the work with the client, close."""
    from penstock.client import address
    from penstock.client.queue.connect import connect

    url = address.discover(common.url)
    token = common.token or address.operator_token(url)

    async def go() -> R:
        async with connect(url, token, agent, reconnect=reconnect) as client:
            return await work(client)

    return asyncio.run(go())


def print_text(text: str, name: str, output: Output) -> None:
    """Print a text unchanged, so that it can go into a file; `name` is its member in JSON."""
    sys.stdout.write(msgspec.json.encode({name: text}).decode() + "\n" if output.as_json else text)


def http_server(url: str | None, token: str | None, file: Path | None = None) -> tuple[str, str | None]:
    """The HTTP address of the server that is meant, and the token for it."""
    from penstock.client import address

    found = address.discover_http(url)
    return found, token or address.operator_token(found, file)


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
            hint = "" if {'"', "'"} & set(text) else "the shell removed the quotes: "
            hint += """put JSON between single quotes, such as '{"text": "hello"}'"""
            raise PenstockError(Refusal("InvalidJSON", f"the payload is not JSON: {error}", hint=hint)) from None
        return text


def open_input(file: str) -> AbstractContextManager[IO[bytes]]:
    """A file to read; `-` is standard input."""
    if file == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return open(file, "rb")
    except OSError as error:
        message = f"cannot read `{file}`: {error.strerror or error}"
        hint = "name a file that you may read, or `-` for standard input"
        raise PenstockError(Refusal("InvalidRequest", message, hint=hint)) from None
