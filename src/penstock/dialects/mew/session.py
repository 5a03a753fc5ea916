"""The session of one WebSocket: the join in all its forms, then envelopes and frames, strictly in order.

The bearer token and the space of the upgrade request fill in what the join leaves out; a client that sends no join at all joins by its
bearer token. Messages that arrive while a join waits, or while a large message is checked in steps, are handled after it. Cost of a
frame: `publish`, one lookup and one write per receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from hashlib import sha256
from typing import Protocol

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.fanout.outbox import Outbox
from penstock.core.limits import Limits
from penstock.core.links import ABSENT, Link, Session
from penstock.core.steps import STEP_BYTES, InputQueue, Survey
from penstock.dialects.mew import accept, frames, join
from penstock.dialects.mew.envelopes import Fields, members_of, read_envelope, read_object, read_steps, text_of
from penstock.dialects.mew.gateway_messages import GATEWAY, PROTOCOLS, GatewayMessages, MewRefusal
from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.participants import Participant

IDS = ("participantId", "participant_id", "participant")
"""The names of the id in a join."""
SLOW_MAX = 500
"""Messages of one connection on the slow path that are handled before the next one waits for a turn: about 10 ms."""


class SpaceHost(Protocol):
    """What a session needs of the server: its spaces, and who the operator is."""

    messages: GatewayMessages

    @property
    def limits(self) -> Limits: ...

    def find(self, name: str | None) -> SpaceMachine | MewRefusal:
        """The space of a name; without a name, the only one."""

    def is_operator(self, token: str) -> bool: ...

    def token_refused(self, token: str | None, peer: str) -> None: ...

    def input_refused(self, door: str, code: str) -> None: ...

    def text(self, data: bytes) -> bytes:
        """An envelope as a WebSocket frame."""

    def judged(self, session: MewSession) -> None:
        """A session has joined, or was refused."""

    def schedule_turn(self) -> None:
        """Hand over what waits at the end of this turn."""

    def survey(self, survey: Survey, done: Callable[[], None], session: Session) -> None:
        """Do it a step a turn, then call `done`; an exception must end only this session."""


class _Backlog(msgspec.Struct, eq=False):
    """The weight of what waits in a session; the runtime stops reading when it is too much."""

    _session: MewSession

    def __len__(self) -> int:
        session = self._session
        blocked = session.host.limits.answers_max + 1 if session.is_blocked or session.is_full else 0
        return blocked + (0 if session.participant is None else session.participant.waiting)


class MewSession:
    """One connection."""

    def __init__(self, host: SpaceHost, *, token: str | None, space: str | None, participant: str | None) -> None:
        self.host = host
        self.out: list[bytes] = []
        self.link: Link
        self.answers: Sized = _Backlog(self)
        self.closing: tuple[int, str] | None = None
        limits = host.limits
        self.outbox = Outbox(self, limits.space_outbox_max, limits.space_telemetry_max, limits.space_wait_max)
        self.space: SpaceMachine | None = None
        self.participant: Participant | None = None
        self._queue = InputQueue(host.survey, self, self, lambda data: read_steps(data, host.limits), self._take)
        """Messages that wait for the join, or for the checks of a large one."""
        self.is_full = False
        """Whether messages wait in the queue."""
        self._slow = self._strikes = 0
        """Messages on the slow path since the queue had a turn, and errors before the join."""
        self.is_blocked = False
        """Whether it writes to a stream with a reader that is too far behind."""
        self.is_alive = True
        """Whether the peer sent anything since the last ping."""
        self.count = 0
        """Messages in the current second."""
        self.rate_max, self.frame_max = limits.space_rate, limits.space_frame_max
        self.is_known = token is not None
        """Whether the upgrade request had a token, which the listener checks: otherwise a join must come first."""
        self.identified: Callable[[], None] = lambda: None
        """Called when the peer has shown who it is."""
        self.token = token
        self._space_name = space
        self._id = participant

    @property
    def input_bytes(self) -> int:
        return self._queue.size

    # The hot path

    def publish(self, data: bytes) -> bool:
        """Forward a frame at once; False if it must take the slow path."""
        participant = self.participant
        if participant is None or participant.waiting or self.is_full or len(data) > self.frame_max:
            return False
        self.count = count = self.count + 1
        end = data.find(b"#", 1) if count <= self.rate_max else -1
        if end > 0 and self.space.router.publish(participant.id, data, end):  # type: ignore[union-attr]
            return True
        self.count -= 1  # the slow path counts it
        return False

    def new_second(self) -> None:
        """Reset the rate counter; limits may have changed."""
        self.count = 0
        limits = self.host.limits
        self.rate_max, self.frame_max = limits.space_rate, limits.space_frame_max

    # The rest

    def receive(self, now: Now, data: bytes) -> None:
        """A message of the peer."""
        if self.closing is not None:
            return
        is_large = len(data) > STEP_BYTES and data[:1] != b"#"
        if is_large or self._slow >= SLOW_MAX or self._queue or self._queue.is_paused:
            self._queue.add([data], is_late=self._slow >= SLOW_MAX)
        elif not self._message(now, data, None):
            self._queue.hold_back([data])

    def _take(self, now: Now, messages: list[bytes], found: Fields | MewRefusal | None) -> None:
        """Handle messages that have waited; `found` is what the checks of a large one found."""
        self._slow = 0
        for number, data in enumerate(messages):
            if self.closing is not None:
                break
            if self._slow >= SLOW_MAX or not self._message(now, data, found):
                self._queue.hold_back(messages[number:])
                break
        self.host.schedule_turn()

    def _message(self, now: Now, data: bytes, found: Fields | MewRefusal | None) -> bool:
        """Handle a message; False if it must wait for a join."""
        if self._queue.is_paused:
            return False
        limits = self.host.limits
        self._slow += 1
        self.count += 1
        if self.participant is None and not self.is_known and len(data) > limits.join_bytes_max:
            message = f"join first: until then a message has at most {limits.join_bytes_max} bytes"
            self.end(now, MewRefusal("too_large", message, status=413), 1009)
            return True
        if len(data) > self.frame_max and data[:1] == b"#":
            message = f"a frame has {len(data)} bytes and `limits.space_frame_max` allows {limits.space_frame_max}"
            self.end(now, MewRefusal("too_large", message, status=413), 1009)
            return True
        if self.count > limits.space_rate:
            if self.count == limits.space_rate + 1 or data[:1] != b"#":
                message = f"more than `limits.space_rate` messages in a second, which is {limits.space_rate}"
                self._fail(now, MewRefusal("rate_limited", message, status=429))
            if self.space is not None:
                self.space.refused += 1
            return True
        end = data.find(b"#", 1) if data[:1] == b"#" else -1
        fields = {} if end > 0 else read_object(data, limits) if found is None else found
        if isinstance(fields, MewRefusal):
            self.host.input_refused("space", fields.error)
            self._fail(now, fields)
        elif _is_join(fields):
            self._join(now, fields, data)
        elif self.participant is None and self._join_by_token(now) and self._queue.is_paused:
            return False
        elif end > 0:
            self._frame(now, data, end)
        else:
            self._envelope(now, fields)
        return True

    def _frame(self, now: Now, data: bytes, end: int) -> None:
        if self.participant is not None and self.space is not None:
            frames.publish(self.space, now, self.participant, data, end)
        elif self.closing is None:
            more = {"stream_id": data[1:end][:200].decode(errors="replace")}
            message = "you have not joined a space"
            self._fail(now, MewRefusal("unauthorized_stream_write", message, more, sender=GATEWAY))

    def _envelope(self, now: Now, fields: dict[str, msgspec.Raw]) -> None:
        fresh_id = self.host.messages.fresh("msg")
        envelope = read_envelope(fields, self.host.limits, now, fresh_id=fresh_id, strict=True)
        if isinstance(envelope, MewRefusal):
            self._fail(now, envelope)
        elif self.participant is not None and self.space is not None:
            accept.accept(self.space, now, self.participant, envelope, "websocket")
        elif self.closing is None and envelope.kind != accept.HEARTBEAT:
            more = {"attempted_kind": envelope.kind, "your_capabilities": []}
            message = "join a space before anything else"
            self._fail(now, MewRefusal("capability_violation", message, more, cause=envelope.id))

    # Joining

    def _join(self, now: Now, fields: dict[str, msgspec.Raw], data: bytes) -> None:
        protocol = bytes(fields.get("protocol", b"null"))
        if protocol not in (b"null", b'""') and text_of(fields, "protocol") not in PROTOCOLS:
            shown = protocol[:60].decode(errors="replace").strip('"')
            self.end(now, MewRefusal.validation(f"Invalid protocol version: {shown}"), 1008)
            return
        both = [fields, members_of(fields, "payload")]

        def first(*names: str) -> str | None:
            found = (text_of(part, name) for part in both for name in names)
            return next((text for text in found if text), None)

        token = first("token") or self.token
        cause = text_of(fields, "id")
        name, id_ = first("space") or self._space_name, first(*IDS) or self._id
        space = self.host.find(name)
        if isinstance(space, SpaceMachine) and space.watch is not None:
            space.watch.received(now, data, cause or "", id_ or "", space.id, "websocket")
        self._admit(now, name, id_, token, cause)

    def _join_by_token(self, now: Now) -> bool:
        """Join a client by the bearer token of its upgrade request."""
        if self.token is None or self.closing is not None:
            return False
        self._admit(now, self._space_name, self._id, self.token, None)
        return self.closing is None

    def overdue(self, now: Now) -> None:
        """The time limit for the join has passed."""
        if self.participant is not None or self._queue.is_paused or self.closing is not None:
            return
        if not self._join_by_token(now) and self.closing is None:
            waited = self.host.limits.join_ms // 1000
            self.end(now, MewRefusal("join_timeout", f"no join came within {waited} seconds", status=408), 1008)

    def _admit(self, now: Now, name: str | None, id_: str | None, token: str | None, cause: str | None) -> None:
        space = self.host.find(name)
        if isinstance(space, MewRefusal):
            self.end(now, msgspec.structs.replace(space, cause=cause), 1008)
            return
        digest = None if token is None else sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        is_operator = token is not None and self.host.is_operator(token)
        known = join.identify(space, id_, digest, is_operator=is_operator)
        if isinstance(known, MewRefusal):
            if known.error == "unauthorized":
                self.host.token_refused(token, self.link.peer)
            self.end(now, msgspec.structs.replace(known, cause=cause), 1008)
            return
        before = self.participant
        if before is not None and self.space is space and (before.id, before.party) == known:
            space.then(now, before, lambda now: space.welcome(now, before))
            return
        self.left(now, "joined again")
        participant = Participant(*known, self.outbox)
        self._queue.is_paused = True
        self.identified()
        space.after(now, lambda now: space.in_turn(now, lambda now: self._enter(now, space, participant, cause)))

    def _enter(self, now: Now, space: SpaceMachine, participant: Participant, cause: str | None) -> None:
        self._queue.is_paused = False
        if self.closing is not None or not self.link.open:
            self._queue.clear()
            return
        # It may have been kicked since it was admitted.
        fault = join.still_welcome(space, participant) or join.enter(space, now, participant)
        if fault is not None:
            self.end(now, msgspec.structs.replace(fault, cause=cause), 1008)
            self.host.judged(self)
            return
        self.space, self.participant = space, participant
        self.host.judged(self)
        self._queue.resume()

    # Ending

    def left(self, now: Now, reason: str) -> None:
        """The connection is lost, or joins as another participant."""
        if self.participant is not None and self.space is not None:
            join.leave(self.space, now, self.participant, reason)
        self.participant = None

    def _fail(self, now: Now, fault: MewRefusal) -> None:
        if self.participant is not None and self.space is not None:
            self.space.fail(now, self.participant, fault)
        elif self._strikes >= self.host.limits.strikes_max:
            self.end(now, fault, 1008)
        else:
            self._strikes += 1
            self.out.append(self.host.text(self.host.messages.error(now, fault, None)))

    def end(self, now: Now, fault: MewRefusal, code: int) -> None:
        """Send the reason and close. Nothing may follow it, so the participant leaves first."""
        if self.closing is None:
            to = None if self.participant is None else self.participant.id
            self.left(now, fault.error)
            self.outbox.put(self.host.text(self.host.messages.error(now, fault, to)))
            self.out.extend(self.outbox.take())
            self._queue.clear()
            self.is_blocked = False
            self.closing = (code, fault.error)

    def release(self) -> None:
        self._queue.release()
        self.answers = ()
        self.outbox = Outbox(ABSENT, 0, 0, 0)  # the old one refers to this session

    def drain(self, refusal: Refusal) -> None:
        if self.closing is None:
            self.out.extend(self.outbox.take())
            self._queue.clear()
            self.is_blocked = False
            self.closing = (refusal.kind.close or 1008, refusal.code)


def _is_join(fields: dict[str, msgspec.Raw]) -> bool:
    kind, type_ = fields.get("kind"), fields.get("type")
    return (kind is not None and bytes(kind) == b'"system/join"') or (
        kind is None and type_ is not None and bytes(type_) == b'"join"'
    )
