"""The witness of spaces: it reads what passes between participants and the server, and checks the server against it.

It sees messages when they reach the server and when the server writes them, and which rows are durable; it never looks into a space.
What a participant may see and do follows from what its own connection received before, so the order is checked too. Where the witness
cannot know, it expects nothing: a participant counts as present from its welcome to the first sign of its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec

from penstock.core.rows import Row
from penstock.dialects.mew.gateway_messages import GATEWAY, SYSTEM
from penstock.dialects.mew.settings import SpaceSettings
from penstock.testing.clients import Frame, KnownStreams
from penstock.testing.clock import Clock
from penstock.testing.network import SimConnection
from penstock.transports.transport import BINARY, TEXT, unframed
from tests.simulation.queue import checks
from tests.simulation.queue.checks import Broken
from tests.simulation.spaces import checks as space_checks
from tests.simulation.spaces.model import SpaceModel

OPERATOR = "operator"
ENDS = ("slow_consumer", "taken_over", "kicked", "too_large")
"""Errors after which a connection is as good as closed."""
ACKS = {
    "stream/write-granted": "stream/grant-write",
    "stream/write-revoked": "stream/revoke-write",
    "stream/ownership-transferred": "stream/transfer-ownership",
}
ANSWERS = (*ACKS, "system/error", "space/invite-ack", "stream/open")
"""Answers of the gateway to the sender."""


def stream_of(frame: bytes) -> str:
    """The stream id of a frame."""
    return frame[1 : frame.index(b"#", 1)].decode(errors="replace")


class Sent(msgspec.Struct, frozen=True):
    """A message of a client, when it reached the server."""

    pipe_no: int
    no: int
    """Its place among what came on that connection."""
    id: str | None
    """The id its sender had joined as; None before a join."""
    party: str | None
    kind: str = ""
    payload: bytes = b""


class SpaceTalk:
    """What was said on one connection."""

    def __init__(self, pipe: SimConnection) -> None:
        self.pipe = pipe
        self.space = ""
        self.id: str | None = None
        """Who it joined as, or tries to."""
        self.party: str | None = None
        self.is_welcome = False
        """Whether it was welcomed as who it says it is."""
        self.is_sure = False
        """Whether it is surely present: it was welcomed, and nothing has happened since that could end that."""
        self.streams = KnownStreams()
        self.count = 0
        self.open: dict[str, None] = {}
        """Envelopes whose outcome is not known yet."""
        self.stays = 0
        """How often it was welcomed."""
        self.behind: list[tuple[bytes, list[tuple[SpaceTalk, int]]]] = []
        """Frames behind these, with those who should receive them."""
        self.newest: dict[int, int] = {}
        """The place of the newest message seen here of every other connection."""
        self.seen: set[bytes | str] = set()
        self.owed: dict[bytes | str, int] = {}
        """Frames and envelopes that are on their way here, since when."""
        self.errors: dict[str, int] = {}
        """Envelopes whose rejection it must receive, since when."""
        self.missed: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        """Missing frames of each stream, and those reported as dropped."""
        self.removed: set[str] = set()
        """Streams that it receives no more, because their writers waited too long for it."""
        self.is_stuck = False
        self.stuck_us = 0
        """Whether it did not keep up when it was last looked at, and when that was last so."""

    @property
    def is_there(self) -> bool:
        return self.is_sure and not self.pipe.is_over


class SpaceWitness:
    """Remembers what participants received. Raises `Broken` when the server contradicts it."""

    def __init__(self, spaces: Sequence[SpaceSettings]) -> None:
        self.models = {each.id: SpaceModel(each) for each in spaces}
        self.talks: dict[int, SpaceTalk] = {}
        self.frames: dict[tuple[str, bytes], Sent] = {}
        self.envelopes: dict[str, Sent] = {}
        self.delivered = 0
        self.lost = 0
        """Frames reported as dropped to a participant."""
        self.over: dict[int, int] = {}
        """Connections that are to be let go because they do not read, since when."""
        self.held: dict[int, tuple[int, dict[tuple[str, int], int]]] = {}
        """Connections that are not read, since when, and what those that they wait for had not read then."""
        self.clock: Clock
        self._decided: list[str] = []

    def connected(self, pipe: SimConnection) -> None:
        self.talks[pipe.no] = SpaceTalk(pipe)

    def crashed(self) -> None:
        """No participant is present any more, and no message is due."""
        self.over.clear()
        self.held.clear()
        for talk in self.talks.values():
            talk.is_sure = False
            talk.owed.clear()
            talk.errors.clear()
            talk.behind.clear()

    def present(self, space: str) -> Iterator[SpaceTalk]:
        return (talk for talk in self.talks.values() if talk.space == space and talk.is_there)

    # To the server

    def arriving(self, pipe: SimConnection, data: bytes) -> None:
        talk = self.talks[pipe.no]
        talk.count += 1
        if data[:1] == b"#" and data.find(b"#", 1) > 0:
            self._frame(talk, data)
            return
        try:
            envelope = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if isinstance(envelope, dict):
            if envelope.get("type") == "join":
                self._join(talk, envelope)
            else:
                self._envelope(talk, envelope)

    def _join(self, talk: SpaceTalk, join: Frame) -> None:
        model = self.models.get(join["space"])
        token = str(join["token"])
        party = OPERATOR if token == "operator-token" else None
        if model is not None and party is None:
            party = model.tokens.get(sha256(token.encode()).hexdigest())
        id_ = join["participantId"] or party
        if (talk.space, talk.id, talk.party) == (join["space"], id_, party):
            return  # the same again changes nothing
        talk.is_sure = talk.is_welcome = False
        talk.removed.clear()
        talk.space, talk.id, talk.party = join["space"], id_, party
        for other in self.talks.values():
            if other is not talk and (other.space, other.id, other.party) == (talk.space, id_, party):
                other.is_sure = False

    def _envelope(self, talk: SpaceTalk, envelope: Frame) -> None:
        id_, kind = envelope.get("id"), envelope.get("kind")
        if not isinstance(id_, str) or not isinstance(kind, str):
            return
        payload = envelope.get("payload")
        sent = Sent(talk.pipe.no, talk.count, talk.id, talk.party, kind, msgspec.json.encode(payload))
        self.envelopes[id_] = sent
        talk.open[id_] = None
        if kind == "space/kick" and isinstance(payload, dict):
            for other in self.talks.values():
                if other.space == talk.space and payload.get("participant_id") in (other.id, other.party):
                    other.is_sure = False

    def _frame(self, talk: SpaceTalk, data: bytes) -> None:
        self.frames.setdefault((talk.space, data), Sent(talk.pipe.no, talk.count, talk.id, talk.party, "", data))
        receivers = self._receivers(talk, data)
        if not receivers:
            return
        if talk.open:
            talk.behind.append((data, [(each, each.stays) for each in receivers]))
        else:
            self._owe(data, receivers)

    def _receivers(self, talk: SpaceTalk, data: bytes) -> list[SpaceTalk]:
        """Who surely receives a frame that is dealt with now."""
        model = self.models.get(talk.space)
        stream = None if model is None else model.streams.get(stream_of(data))
        if stream is None or not talk.is_there or talk.id not in stream.writers:
            return []
        return [
            each
            for each in self.present(talk.space)
            if (not stream.target or each.id in stream.target or each.party in stream.target)
            and stream_of(data) not in each.removed
        ]

    def _owe(self, what: bytes | str, receivers: Sequence[SpaceTalk]) -> None:
        for each in receivers:
            if what not in each.seen:
                each.owed[what] = self.clock.us

    # The journal

    def committed(self, rows: list[Row]) -> None:
        for row in rows:
            model = self.models[row.channel.partition("/")[0]]
            model.add(row)
            if row.event == "envelope":
                self._owe(row.id or "", list(self.present(row.channel)))
            if row.id in self.envelopes:
                self._decided.append(row.id)
                self.talks[self.envelopes[row.id].pipe_no].errors.pop(row.id, None)

    def refused(self, rows: list[Row]) -> None:
        for row in rows:
            if row.id in self.envelopes:
                talk = self.talks[self.envelopes[row.id].pipe_no]
                if talk.is_there:
                    talk.errors[row.id] = self.clock.us
                self._decided.append(row.id)

    def settle(self) -> None:
        """Draw the conclusions of what the journal decided: it may keep one row of an envelope and refuse another."""
        decided, self._decided = self._decided, []
        for id_ in decided:
            self._known(id_)

    def _known(self, id_: str) -> None:
        """What became of an envelope is known; so it may be of the frames behind it."""
        talk = self.talks[self.envelopes[id_].pipe_no]
        talk.open.pop(id_, None)
        if talk.open or not talk.behind:
            return
        behind, talk.behind = talk.behind, []
        for data, receivers in behind:
            still = self._receivers(talk, data)
            self._owe(data, [each for each, stay in receivers if each in still and each.stays == stay])

    # From the server

    def sent(self, pipe: SimConnection, messages: list[bytes]) -> None:
        talk = self.talks[pipe.no]
        for opcode, content in unframed(b"".join(messages)):
            if opcode == BINARY:
                self._frame_out(talk, content)
            elif opcode == TEXT:
                self._said(talk, content, msgspec.json.decode(content))

    def _frame_out(self, talk: SpaceTalk, data: bytes) -> None:
        self.delivered += 1
        sent = self.frames.get((talk.space, data))
        shown = data[:60]
        if sent is None or sent.id is None:
            raise Broken(space_checks.TARGETS, f"`{talk.id}` received {shown!r}, which nobody sent")
        if data in talk.seen:
            raise Broken(space_checks.TARGETS, f"`{talk.id}` received {shown!r} twice")
        stream = talk.streams.get(stream_of(data))
        if stream is None:
            raise Broken(space_checks.AUTHORITY, f"`{talk.id}` received {shown!r} of no open stream")
        if stream.target and talk.id not in stream.target and talk.party not in stream.target:
            raise Broken(space_checks.TARGETS, f"`{talk.id}` received {shown!r}, meant for {stream.target}")
        if stream_of(data) in talk.removed:
            raise Broken(space_checks.TARGETS, f"`{talk.id}` received {shown!r} of a stream it was removed from")
        if sent.id not in stream.writers:
            raise Broken(space_checks.AUTHORITY, f"{shown!r} is of `{sent.id}`, and {stream.writers} may write")
        self._in_order(talk, sent, data)

    def _in_order(self, talk: SpaceTalk, sent: Sent, what: bytes | str) -> None:
        talk.seen.add(what)
        talk.owed.pop(what, None)
        if talk.newest.get(sent.pipe_no, 0) >= sent.no:
            before = talk.newest[sent.pipe_no]
            raise Broken(
                space_checks.ORDER,
                f"`{talk.id}` received message {sent.no} of `{sent.id}` after message {before}: {what[:60]!r}",
            )
        talk.newest[sent.pipe_no] = sent.no

    def _said(self, talk: SpaceTalk, data: bytes, envelope: Frame) -> None:
        speaker = envelope.get("from")
        if speaker in (SYSTEM, GATEWAY):
            self._gateway_said(talk, envelope)
        else:
            self._passed_on(talk, data, envelope)
        talk.streams.apply(envelope)

    def _passed_on(self, talk: SpaceTalk, data: bytes, envelope: Frame) -> None:
        """An envelope of a participant."""
        id_, kind = envelope["id"], envelope["kind"]
        sent = self.envelopes.get(id_)
        if sent is None or sent.id is None or kind != sent.kind:
            raise Broken(space_checks.SENDER, f"`{talk.id}` received {data!r}, which nobody sent")
        if envelope["from"] not in (sent.id, sent.party):
            raise Broken(space_checks.SENDER, f"{data!r} is of `{sent.id}`")
        if (kind.startswith("system/") and kind != "system/heartbeat") or kind in (*ACKS, "space/invite-ack"):
            raise Broken(space_checks.SENDER, f"{data!r} is of `{sent.id}` and not of the gateway")
        model = self.models[talk.space]
        if id_ not in model.done:
            raise Broken(checks.VISIBLE, f"`{id_}` is told and not durable")
        if model.said.get(id_, data) != data or id_ in talk.seen:
            raise Broken(space_checks.EVERYBODY, f"`{talk.id}` received {data!r} twice, or changed")
        if kind != "stream/close" and msgspec.json.encode(envelope.get("payload")) != sent.payload:
            raise Broken(space_checks.EVERYBODY, f"{data!r} was sent with {sent.payload!r}")
        if kind == "stream/close":
            stream = talk.streams.get(envelope["payload"].get("stream_id"))
            if stream is not None and stream.owner != sent.id:
                raise Broken(space_checks.AUTHORITY, f"`{sent.id}` closed the stream of `{stream.owner}`: {data!r}")
        self._in_order(talk, sent, id_)

    def _gateway_said(self, talk: SpaceTalk, envelope: Frame) -> None:
        kind, payload = envelope["kind"], envelope["payload"]
        if envelope["id"] in self.envelopes:
            raise Broken(space_checks.SENDER, f"a participant spoke for the gateway: {envelope}")
        causes = envelope.get("correlation_id", [])
        if kind == "system/welcome" and payload["you"]["id"] == talk.id and "active_streams" in payload:
            talk.stays += not talk.is_sure
            talk.is_sure = talk.is_welcome = True
        elif kind == "system/error":
            self._failed(talk, payload, causes)
        elif kind in ACKS and causes:
            self._acknowledged(talk, kind, payload, causes[0])
        elif kind == "space/invite-ack" and payload["status"] == "created":
            digest = sha256(payload["token"].encode()).hexdigest()
            if self.models[talk.space].invited.get(payload["participant_id"]) != digest:
                raise Broken(checks.DURABLE, f"the invitation {payload} is acknowledged and not durable")
        for cause in causes:
            if kind in ANSWERS and payload.get("error") != "target_disconnected":
                self._in_turn(talk, cause, kind)
            if cause in talk.open:
                self._known(cause)

    def _in_turn(self, talk: SpaceTalk, cause: str, kind: str) -> None:
        """The answer to an envelope comes after everything that its sender sent before."""
        sent = self.envelopes.get(cause)
        if sent is None or sent.pipe_no != talk.pipe.no:
            return
        before = talk.newest.get(sent.pipe_no, 0)
        if before > sent.no:
            raise Broken(space_checks.ORDER, f"{kind} answers message {sent.no} of `{talk.id}` after message {before}")
        talk.newest[sent.pipe_no] = sent.no

    def _failed(self, talk: SpaceTalk, payload: Frame, causes: list[str]) -> None:
        if payload["error"] in ENDS:
            talk.is_sure = False
        elif payload["error"] == "frames_dropped":
            stream = payload["stream_id"]
            talk.dropped[stream] = talk.dropped.get(stream, 0) + payload["frames"]
            self.lost += payload["frames"]
        elif payload["error"] == "target_removed" and talk.id in payload["targets"]:
            stream = payload["stream_id"]
            talk.removed.add(stream)
            mark = f"#{stream}#".encode()
            for what in [each for each in talk.owed if isinstance(each, bytes) and each.startswith(mark)]:
                del talk.owed[what]
        for cause in causes:
            if payload["error"] == "journal_unavailable":
                talk.errors.pop(cause, None)
            if payload["error"] != "target_disconnected" and cause in self._done(talk.space):
                raise Broken(space_checks.REFUSED, f"`{cause}` is durable and was refused: {payload}")

    def _done(self, space: str) -> set[str]:
        return self.models[space].done if space in self.models else set()

    def _acknowledged(self, talk: SpaceTalk, kind: str, payload: Frame, cause: str) -> None:
        """Something about a stream has changed: its owner asked for it."""
        sent = self.envelopes.get(cause)
        stream = talk.streams.get(payload["stream_id"])
        if sent is None or sent.kind != ACKS[kind]:
            raise Broken(space_checks.SENDER, f"{kind} answers `{cause}`, which asked for no such thing")
        if stream is None or stream.owner != sent.id:
            owner = None if stream is None else stream.owner
            raise Broken(space_checks.AUTHORITY, f"{kind} {payload}: `{sent.id}` asked, and the owner is `{owner}`")
        if cause not in self.models[talk.space].done:
            raise Broken(checks.DURABLE, f"{kind} {payload} is acknowledged and not durable")
