"""`penstock space ls|tail|send|open-stream|invite|kick`: the spaces of a running gateway."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import App, Parameter

from penstock.cli.options import Output, Token, flag, http_server, payload_of
from penstock.cli.output import compact, print_json, print_line, print_note, print_result, print_table
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.client.space.client import Space
    from penstock.client.space.messages import Frame, SpaceEnvelope


PIECE_BYTES = 64 * 1024
AHEAD_MAX = 16
"""Pieces read ahead."""
LINE_MAX = 4 * 1024 * 1024
"""Bytes of one line; a longer one is cut into several."""


class Input:
    """Pieces of standard input as they arrive."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self._slots = threading.Semaphore(AHEAD_MAX)
        self._descriptor = sys.stdin.fileno()
        threading.Thread(target=self._read, name="penstock-input", daemon=True).start()

    async def piece(self) -> bytes:
        """The next bytes; empty at the end."""
        data = await self._pieces.get()
        self._slots.release()
        return data

    def _read(self) -> None:
        data = b"-"
        while data:
            self._slots.acquire()
            try:
                data = os.read(self._descriptor, PIECE_BYTES)
            except OSError:
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, data)
            except RuntimeError:
                return  # the command is over


async def lines(source: Input) -> AsyncIterator[bytes]:
    """Lines without their ends; empty ones are left out."""
    rest = b""
    while data := await source.piece():
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            if line := line.removesuffix(b"\r"):
                yield line
        while len(rest) >= LINE_MAX:
            yield rest[:LINE_MAX]
            rest = rest[LINE_MAX:]
    if rest:
        yield rest


async def chunks(source: Input, size: int) -> AsyncIterator[bytes]:
    """Blocks of a size; the last may be shorter."""
    rest = bytearray()
    while data := await source.piece():
        rest += data
        while len(rest) >= size:
            yield bytes(rest[:size])
            del rest[:size]
    if rest:
        yield bytes(rest)


R = TypeVar("R")

PREVIEW_MAX = 200
"""Characters of a frame that `tail` prints."""

space = App(name="space", help="Inspect MEW spaces and take part in them.")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Gateway(Output):
    """Options that find the gateway."""

    url: Annotated[
        str | None,
        Parameter(env_var="PENSTOCK_URL", help="http://host:port; default: the server or gateway of this directory."),
    ] = None
    token: Token = None
    space: Annotated[
        str | None, Parameter(env_var="PENSTOCK_SPACE", show_env_var=True, help="The space; default: the only one.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Seat(Gateway):
    """Options of commands that join a space."""

    name: Annotated[str | None, Parameter(name="--as", help="Name of the participant; default: a new one.")] = None


GATEWAY, SEAT = Gateway(), Seat()


def _run(seat: Seat, work: Callable[[Space], Awaitable[R]], *, reconnect: bool = False) -> R:
    """Join, do the work, leave."""
    from penstock.client.space.client import Space

    async def go() -> R:
        # A name of its own: a second command with the same name would disconnect the first.
        name = seat.name or f"cli-{secrets.token_hex(3)}"
        async with Space(seat.url, space=seat.space, participant=name, token=seat.token, reconnect=reconnect) as joined:
            return await work(joined)

    return asyncio.run(go())


@space.command
def ls(*, gateway: Gateway = GATEWAY) -> None:
    """List the spaces; with --space, its participants and open streams.

    For example:

      penstock space ls
      penstock space ls --space demo
    """
    from penstock.client.admin import RemoteSpaces

    found = RemoteSpaces(*http_server(gateway.url, gateway.token)).survey(gateway.space).spaces
    if gateway.as_json:
        print_json({"spaces": found})
    elif not found:
        print("no spaces; add them in the config section `spaces`, as in docs/tutorial/first-space.md")
    elif gateway.space is None:
        counts = ("envelopes", "frames", "deliveries", "dropped")
        rows = []
        for one in found:
            present = sum(1 for who in one["participants"] if who.get("connected"))
            numbers = [one["counts"].get(name, 0) for name in counts]
            rows.append([one["id"], one.get("name") or None, present, len(one["streams"]), *numbers])
        print_table(("space", "name", "present", "streams", *counts), rows)
    else:
        for one in found:
            _print_space(one)


def _print_space(one: dict[str, Any]) -> None:
    rows: list[list[object]] = []
    for who in one["participants"]:
        absent = "kicked" if who.get("as") in one.get("kicked", ()) else "no"
        may = ", ".join(compact(capability.get("kind")) for capability in who.get("capabilities", ()))
        rows.append([who["id"], who.get("as"), who.get("type"), "yes" if who.get("connected") else absent, may])
    print_table(("participant", "as", "type", "present", "may send"), rows)
    figures = ("frames", "bytes", "deliveries", "dropped")
    rows = []
    for stream in one["streams"]:
        names = [", ".join(stream.get("authorized_writers", ())), ", ".join(stream.get("target") or ("everybody",))]
        counts = [stream.get(name, 0) for name in figures]
        rows.append([stream["stream_id"], stream.get("name"), stream.get("owner"), *names, *counts])
    if rows:
        print_line("")
        print_table(("stream", "name", "owner", "writers", "to", *figures), rows)


@space.command
def tail(
    *,
    kind: Annotated[str, Parameter(help="Only envelopes of this kind; a trailing * matches anything.")] = "*",
    frames: Annotated[bool, Parameter(help="Also print the frames that this participant receives.")] = True,
    count: Annotated[int | None, Parameter(help="Stop after this many.")] = None,
    seat: Seat = SEAT,
) -> None:
    """Join, and print envelopes and frames as they arrive, until Ctrl-C.

    With --json each envelope is an unchanged line, and each frame is `{"stream_id", "bytes", "text" or "base64"}`.

    For example:

      penstock space tail --space demo
      penstock space tail --space demo --kind 'mcp/*' --no-frames --json
    """
    from penstock.client.space.messages import Frame

    async def work(joined: Space) -> None:
        if not seat.as_json:
            print_note(f"joined as {joined.id}; {len(joined.participants)} others are present")
        printed = 0
        feed = joined.arrivals(kind) if frames else joined.envelopes(kind)
        while (count is None or printed < count) and (item := await feed.next()) is not None:
            if isinstance(item, Frame):
                _print_frame(item, as_json=seat.as_json)
            else:
                _print_envelope(item, as_json=seat.as_json)
            printed += 1

    _run(seat, work, reconnect=True)


def _print_envelope(envelope: SpaceEnvelope, *, as_json: bool) -> None:
    if as_json:
        print_json(envelope.fields)
        return
    whom = f" to {', '.join(envelope.to)}" if envelope.to else ""
    clock = envelope.ts.partition("T")[2].rstrip("Z") or "-"
    print_line(f"{clock}  {envelope.kind}  {envelope.sender}{whom}  {compact(envelope.payload)}")


def _print_frame(frame: Frame, *, as_json: bool) -> None:
    try:
        text = frame.data.decode()
    except UnicodeDecodeError:
        text = None
    if as_json:
        content = {"base64": base64.b64encode(frame.data).decode()} if text is None else {"text": text}
        print_json({"stream_id": frame.stream_id, "bytes": len(frame.data), **content})
        return
    shown = "(binary)" if text is None else text
    print_line(f"#{frame.stream_id}  {len(frame.data)} bytes  {shown[:PREVIEW_MAX]}")


@space.command
def send(
    what: Annotated[str, Parameter(help="Text of a chat message; with PAYLOAD, the kind of the envelope.")],
    payload: Annotated[str | None, Parameter(help="JSON, or plain text.")] = None,
    *,
    to: Annotated[str | None, Parameter(help="Addressees, separated by commas; every participant sees it.")] = None,
    corr: Annotated[str | None, Parameter(help="Id of the envelope that this one answers.")] = None,
    wait: Annotated[float | None, Parameter(help="Wait this many seconds for an answer, and print it.")] = None,
    seat: Seat = SEAT,
) -> None:
    """Send a chat message, or an envelope of any kind; return when it is durable.

    For example:

      penstock space send "hello, everybody" --space demo
      penstock space send mcp/request '{"method": "tools/list"}' --to files --wait 5
    """
    kind, content = ("chat", {"text": what}) if payload is None else (what, payload_of(payload))
    whom, cause = _names(to), [corr] if corr else []

    async def work(joined: Space) -> None:
        if wait is not None:
            answer = await joined.request(kind, content, to=whom, correlation_id=cause, timeout=wait)
            _print_envelope(answer, as_json=seat.as_json)
            return
        sent = await joined.send(kind, content, to=whom, correlation_id=cause)
        result = {"id": sent, "kind": kind, "from": joined.id}
        print_result(result, f"sent: {kind} {sent} from {joined.id}", as_json=seat.as_json)

    _run(seat, work)


@space.command(name="open-stream")
def open_stream(
    *,
    target: Annotated[str | None, Parameter(help="Receivers, separated by commas; default: all.")] = None,
    content_type: str | None = None,
    description: str | None = None,
    block: Annotated[int | None, Parameter(help="Send blocks of this many bytes instead of lines.")] = None,
    lossless: Annotated[bool, flag("Wait for a slow reader instead of dropping frames.")] = False,
    seat: Seat = SEAT,
) -> None:
    """Open a stream, send each line of standard input as a frame, and close it at the end.

    For example:

      sensor | penstock space open-stream --target collector --space demo
      penstock space open-stream --block 65536 --lossless --target files < data.zip
    """
    if block is not None and block < 1:
        raise PenstockError(Refusal("InvalidRequest", "--block must be 1 or more", hint="see --help"))

    async def work(joined: Space) -> None:
        stream = await joined.open_stream(
            _names(target), content_type=content_type, description=description, overflow="wait" if lossless else None
        )
        whom = ", ".join(stream.target) or "everybody"
        if not seat.as_json:
            print_note(f"opened {stream.id} to {whom}")
        count = size = 0
        source = Input()
        try:
            async for data in lines(source) if block is None else chunks(source, block):
                await stream.write(data)
                count += 1
                size += len(data)
        except asyncio.CancelledError:  # Ctrl-C; otherwise the stream would stay open
            await stream.close("interrupted")
            raise
        # Frames and envelopes of one connection keep their order, so the echo of the close confirms every frame.
        await stream.close()
        summary = {"stream_id": stream.id, "target": _names(target), "frames": count, "bytes": size}
        print_result(summary, f"{stream.id}: {count} frames, {size} bytes to {whom}", as_json=seat.as_json)

    _run(seat, work)


@space.command
def invite(
    participant: str,
    *,
    capability: Annotated[
        list[str] | None,
        Parameter(help="A kind that it may send, or a capability in JSON; may be repeated.", negative=""),
    ] = None,
    reason: str | None = None,
    seat: Seat = SEAT,
) -> None:
    """Add a participant to a space, and print its token, which is shown only once.

    For example:

      penstock space invite sensor-4 --capability chat --capability 'stream/*' --space demo
    """
    capabilities = [_capability(text) for text in capability or ()]

    async def work(joined: Space) -> None:
        invitation = await joined.invite(participant, capabilities, reason)
        fields = {"participant": participant, "token": invitation.token, "url": invitation.url}
        print_result(invitation, fields, as_json=seat.as_json)

    _run(seat, work)


@space.command
def kick(participant: str, *, reason: str | None = None, seat: Seat = SEAT) -> None:
    """Remove a participant from a space and revoke its token.

    For example:

      penstock space kick sensor-4 --reason "sends nonsense" --space demo
    """

    async def work(joined: Space) -> None:
        await joined.kick(participant, reason)
        print_result({"kicked": participant}, f"{participant} is removed", as_json=seat.as_json)

    _run(seat, work)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


def _capability(text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {"kind": text}
    found = payload_of(text)
    if not isinstance(found.get("kind"), str):
        hint = """for example --capability '{"kind": "mcp/request", "payload": {"method": "tools/*"}}'"""
        raise PenstockError(Refusal("InvalidRequest", "a capability needs a `kind`", hint=hint))
    return dict(found)
