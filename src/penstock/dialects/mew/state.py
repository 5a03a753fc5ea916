"""The durable state of a space: invites, kicks, grants, open streams and counters, as rows of the journal and back.

Every change is made by applying its row, in a running space and after a restart alike, so the two cannot differ. Tokens are kept as
digests only. A row about a closed stream is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.core.fanout.frame_router import FrameRoute
from penstock.core.records import Entry
from penstock.core.rows import Row, row_of
from penstock.dialects.mew.capabilities import Capability, clean, covers
from penstock.dialects.mew.settings import Overflow

DOOR = "mew"
_encode = msgspec.json.encode


class Invited(msgspec.Struct, frozen=True):
    """A participant that was invited."""

    digest: str
    """sha256 of the token, in hexadecimal."""
    capabilities: tuple[Capability, ...]
    by: str


class OpenStream(msgspec.Struct, eq=False):
    """An open stream: its route, and what participants see of it."""

    route: FrameRoute
    no: int
    created: str
    request: dict[str, Any]
    """The members of its request, without the target."""
    name: str | None = None
    """Its name in the settings of the space."""
    request_id: str | None = None
    open_id: str = ""
    size: int = 0
    """Bytes of its row, which count towards a limit."""
    aliases: dict[str, str] = {}
    """The parties of its owner, writers and targets whose id differs from their party."""
    ticket: int = 0

    @property
    def id(self) -> str:
        return self.route.id

    def shown(self) -> dict[str, Any]:
        """Its entry in `active_streams`. Members of the request do not override the gateway's own."""
        route = self.route
        facts: dict[str, Any] = {
            "stream_id": route.id,
            "owner": route.owner,
            "authorized_writers": list(route.writers),
            "created": self.created,
        }
        if route.targets:
            facts["target"] = list(route.targets)
        asked = {name: value for name, value in self.request.items() if name not in _RESERVED}
        return facts | {"direction": "upload"} | asked


_RESERVED = ("stream_id", "owner", "authorized_writers", "created", "target")


class _Open(msgspec.Struct, omit_defaults=True):
    """The `meta` of the row of an open stream."""

    owner: str
    writers: list[str]
    created: str
    request: dict[str, Any]
    target: list[str] = []
    keep: str = "counts"
    overflow: Overflow = "drop-oldest"
    name: str | None = None
    open_id: str = ""
    frames: int = 0
    aliases: dict[str, str] = msgspec.field(name="as", default_factory=dict)


class SpaceState(msgspec.Struct, eq=False):
    """The state of one space."""

    seq: int = 0
    stream_no: int = 0
    invited: dict[str, Invited] = {}
    kicked: dict[str, str] = {}
    """Kicked participants, and the reason."""
    grants: dict[str, dict[str, tuple[Capability, ...]]] = {}
    """Grants by participant and by the id of the grant."""
    streams: dict[str, OpenStream] = {}
    streams_bytes: int = 0
    """Bytes of their rows."""

    def apply(self, entry: Entry | Row) -> None:
        """Apply a fact or a row."""
        match entry.event:
            case "envelope":
                self.seq = max(self.seq, entry.seq)
            case "stream_open":
                self._open(entry)
            case "stream_close":
                gone = self.streams.pop(_stream_id(entry.channel), None)
                self.streams_bytes -= 0 if gone is None else gone.size
            case "invite":
                meta = _meta(entry)
                self.invited[entry.peer or ""] = Invited(meta["token"], clean(meta["capabilities"]), entry.sender or "")
                self.kicked.pop(entry.peer or "", None)
            case "kick":
                self.kicked[entry.peer or ""] = entry.reason or ""
                self.grants.pop(entry.peer or "", None)
            case "grant":
                self._grant(entry)
            case "revoke":
                self._revoke(entry)
            case "gauge":
                meta = _meta(entry)
                self.seq, self.stream_no = meta["seq"], meta["streams"]

    def _open(self, entry: Entry | Row) -> None:
        opened = msgspec.json.decode(entry.meta or "{}", type=_Open)
        id_ = _stream_id(entry.channel)
        route = FrameRoute(id_, opened.owner, tuple(opened.target), keep=opened.keep, overflow=opened.overflow)
        route.writers = dict.fromkeys(opened.writers)
        route.base = opened.frames
        self.streams[id_] = OpenStream(
            route,
            entry.seq,
            opened.created,
            opened.request,
            opened.name,
            entry.id,
            opened.open_id,
            len(entry.meta or ""),
            opened.aliases,
        )
        self.streams_bytes += self.streams[id_].size
        self.stream_no = max(self.stream_no, entry.seq)

    def _grant(self, entry: Entry | Row) -> None:
        meta = _meta(entry)
        peer = entry.peer or ""
        if meta["grant"] == "capability":
            self.grants.setdefault(peer, {})[entry.id or ""] = clean(meta["capabilities"])
            return
        stream = self.streams.get(_stream_id(entry.channel))
        if stream is None:
            return
        route = stream.route
        route.writers[peer] = None
        if "as" in meta:
            stream.aliases[peer] = meta["as"]
        if meta["grant"] == "ownership":
            route.writers.pop(route.owner if route.owner != peer else "", None)
            route.owner = peer

    def _revoke(self, entry: Entry | Row) -> None:
        meta = _meta(entry)
        peer = entry.peer or ""
        if meta["grant"] == "capability":
            granted = self.grants.get(peer, {})
            if "grant_id" in meta:
                granted.pop(meta["grant_id"], None)
            else:
                _take_back(granted, clean(meta["capabilities"]))
            if not granted:
                self.grants.pop(peer, None)
            return
        stream = self.streams.get(_stream_id(entry.channel))
        if stream is not None:
            stream.route.writers.pop(peer, None)

    def snapshot(self, space: str) -> Iterator[Row]:
        """The state as rows for `apply`."""
        numbers = _encode({"seq": self.seq, "streams": self.stream_no}).decode()
        yield Row(door=DOOR, event="gauge", channel=space, meta=numbers)
        for peer, invited in self.invited.items():
            yield row_of(invite_entry(space, invited.by, peer, invited.digest, invited.capabilities))
        for peer, reason in self.kicked.items():
            yield row_of(Entry(DOOR, "kick", space, peer=peer, reason=reason))
        for peer, granted in self.grants.items():
            for id_, capabilities in granted.items():
                yield row_of(grant_entry(space, id_, "", peer, capabilities))
        for stream in self.streams.values():
            yield row_of(open_entry(space, stream, b"", 0))


def _take_back(granted: dict[str, tuple[Capability, ...]], revoked: tuple[Capability, ...]) -> None:
    """Remove capabilities that equal, or are covered by, a revoked one."""
    for id_, capabilities in list(granted.items()):
        left = tuple(held for held in capabilities if not any(covers([each], held) for each in revoked))
        if left:
            granted[id_] = left
        else:
            del granted[id_]


def invite_entry(
    space: str,
    by: str,
    peer: str,
    digest: str,
    capabilities: tuple[Capability, ...],
    *,
    id_: str | None = None,
    reason: str | None = None,
    body: bytes | None = None,
) -> Entry:
    """The fact of an invitation."""
    meta = _encode({"token": digest, "capabilities": capabilities}).decode()
    return Entry(
        DOOR, "invite", space, id=id_, kind="space/invite", sender=by, peer=peer, reason=reason, meta=meta, body=body
    )


def grant_entry(
    space: str, id_: str, by: str, peer: str, capabilities: tuple[Capability, ...], reason: str | None = None
) -> Entry:
    """The fact of a grant."""
    meta = _encode({"grant": "capability", "capabilities": capabilities}).decode()
    kind = "capability/grant"
    return Entry(DOOR, "grant", space, id=id_, kind=kind, sender=by, peer=peer, reason=reason, meta=meta)


def stream_entry(space: str, stream: OpenStream, event: str, **columns: Any) -> Entry:
    """A fact about a stream."""
    return Entry(DOOR, event, f"{space}/{stream.id}", stream.no, **columns)


def open_entry(space: str, stream: OpenStream, body: bytes, recipients: int) -> Entry:
    """The fact of an open stream."""
    route = stream.route
    meta = _Open(
        route.owner,
        list(route.writers),
        stream.created,
        stream.request,
        list(route.targets),
        route.keep,
        route.overflow,
        stream.name,
        stream.open_id,
        route.seq,
        stream.aliases,
    )
    return stream_entry(
        space,
        stream,
        "stream_open",
        id=stream.request_id,
        kind="stream/open",
        sender=route.owner,
        corr=stream.request_id,
        size=len(body),
        recipients=recipients,
        meta=_encode(meta).decode(),
        body=body,
    )


class SpaceMemory:
    """The states of all spaces by id, including spaces that are not configured now: they may return."""

    def __init__(self) -> None:
        self.spaces: dict[str, SpaceState] = {}

    def of(self, space: str) -> SpaceState:
        return self.spaces.setdefault(space, SpaceState())

    def restore(self, row: Row) -> None:
        """Apply one row of history or of a snapshot."""
        if row.event in FACTS:
            self.of(_space_id(row)).apply(row)
        elif row.event in ("frame", "frame_counts"):
            stream = self.of(_space_id(row)).streams.get(_stream_id(row.channel))
            if stream is not None:
                stream.route.base = max(stream.route.base, row.seq)

    def snapshot(self) -> Iterator[Row]:
        for space, state in self.spaces.items():
            yield from state.snapshot(space)


FACTS = ("envelope", "stream_open", "stream_close", "invite", "kick", "grant", "revoke", "gauge")
"""Events of rows that change the state."""


def _meta(entry: Entry | Row) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(entry.meta or "{}")
    return found


def _stream_id(channel: str) -> str:
    return channel.rpartition("/")[2]


def _space_id(row: Row) -> str:
    """The space of a row; the channel of a stream ends in the id of the stream."""
    space, slash, last = row.channel.rpartition("/")
    return space if slash and last.startswith("stream-") else row.channel
