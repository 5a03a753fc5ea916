"""The durable state of a space, folded from rows by the simplest code that can be right.

It shares nothing with `dialects/mew`, so that the two can be compared. It does not know which capabilities cover others: in a storm a
revoke names exactly the capabilities that were granted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.rows import Row
from penstock.dialects.mew.settings import SpaceSettings
from tests.simulation.queue.checks import Broken
from tests.simulation.spaces import checks as space_checks


class OpenStream(msgspec.Struct):
    """A stream that is open."""

    owner: str
    writers: list[str]
    target: list[str]


class SpaceModel:
    """One space, by its rows."""

    def __init__(self, settings: SpaceSettings) -> None:
        self.settings = settings
        self.tokens = {digest: name for name, known in settings.participants.items() for digest in known.token_digests}
        """Who shows which token, by its digest."""
        self.invited: dict[str, str] = {}
        self.kicked: list[str] = []
        self.grants: dict[str, dict[str, list[Any]]] = {}
        self.streams: dict[str, OpenStream] = {}
        self.newest = 0
        """The number of the newest stream that ever was."""
        self.said: dict[str, bytes] = {}
        """Envelopes, by their ids."""
        self.done: set[str] = set()
        """Ids of envelopes that changed something, and of those above."""

    def add(self, row: Row) -> None:
        meta = msgspec.json.decode(row.meta or "{}")
        peer, stream = row.peer or "", row.channel.rpartition("/")[2]
        if row.id is not None:
            self.done.add(row.id)
        match row.event, meta.get("grant"):
            case "envelope", _:
                self.said[row.id or ""] = row.body or b""
            case "invite", _:
                self.tokens = {digest: name for digest, name in self.tokens.items() if name != peer}
                self.tokens |= dict.fromkeys(self._first(peer), peer)
                self.tokens[meta["token"]] = peer
                self.invited[peer] = meta["token"]
                self.kicked = [name for name in self.kicked if name != peer]
            case "kick", _:
                self.kicked = [name for name in self.kicked if name != peer] + [peer]
                self.grants.pop(peer, None)
            case "stream_open", _:
                if row.seq <= self.newest:
                    raise Broken(space_checks.NUMBERS, f"`{stream}` is opened after number {self.newest}")
                self.newest = row.seq
                self.streams[stream] = OpenStream(meta["owner"], meta["writers"], meta.get("target", []))
            case "stream_close", _:
                self.streams.pop(stream, None)
            case "grant", "capability":
                self.grants.setdefault(peer, {})[row.id or ""] = meta["capabilities"]
            case "revoke", "capability":
                self._take_back(peer, meta)
            case "grant" | "revoke", _ if stream in self.streams:
                self._write(row.event, self.streams[stream], peer, meta)

    def _first(self, name: str) -> tuple[str, ...]:
        known = self.settings.participants.get(name)
        return () if known is None else known.token_digests

    def _take_back(self, peer: str, meta: dict[str, Any]) -> None:
        left: dict[str, list[Any]] = {}
        for id_, capabilities in self.grants.pop(peer, {}).items():
            kept = [each for each in capabilities if each not in meta.get("capabilities", [])]
            if kept and id_ != meta.get("grant_id"):
                left[id_] = kept
        if left:
            self.grants[peer] = left

    def _write(self, event: str, stream: OpenStream, peer: str, meta: dict[str, Any]) -> None:
        others = [name for name in stream.writers if name != peer]
        if event == "revoke":
            stream.writers = others
        elif meta["grant"] == "write":
            stream.writers = stream.writers if peer in stream.writers else [*stream.writers, peer]
        elif peer != stream.owner:
            stream.writers = [name for name in others if name != stream.owner] + [peer]
            stream.owner = peer
