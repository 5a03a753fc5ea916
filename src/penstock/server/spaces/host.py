"""The spaces of a server in its runtime: their commits, timers and connections, one write per connection per turn.

The machines are pure (`dialects/mew`); here they get time, transports, and the commit log they share with the queue. An idle
connection costs nothing but its pings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.fanout.outbox import Outbox
from penstock.core.limits import Limits
from penstock.core.steps import STEP_BYTES
from penstock.dialects.mew import accept, frames, join
from penstock.dialects.mew.envelopes import Envelope, Fields, read_object, read_steps
from penstock.dialects.mew.gateway_messages import GatewayMessages, MewRefusal
from penstock.dialects.mew.join import SLOW
from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.participants import Answer, Participant, SpaceObserver
from penstock.dialects.mew.session import MewSession
from penstock.dialects.mew.settings import SpaceSettings
from penstock.dialects.mew.state import SpaceMemory
from penstock.server.engine.connections import Timer
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import checked
from penstock.server.spaces.connection import Sink, SpaceConnection, StreamWaits
from penstock.transports.transport import PING, TEXT, frame, frame_head

OUTBOXES_MAX = 256
"""Participants of a space that are written to in one turn: each write takes about 15 us."""
COUNT_US = 1_000_000
"""How often active streams journal their counts."""
DEFAULT = "default"
"""The name that clients use for the only space of a server."""


class Spaces:
    """Every space of the server."""

    def __init__(
        self,
        runtime: Runtime,
        memory: SpaceMemory,
        *,
        is_operator: Callable[[str], bool],
        watch: SpaceObserver | None = None,
        keep_token: Callable[[str, str, str], None] = lambda space, participant, token: None,
        log: Callable[..., None] = lambda event, **fields: None,
    ) -> None:
        self.runtime = runtime
        self.survey = runtime.survey
        self.memory = memory
        self.messages = GatewayMessages(runtime.machine.entropy)
        self.spaces: dict[str, SpaceMachine] = {}
        self.sessions: dict[MewSession, None] = {}
        """Connections of participants, joined or about to."""
        self.waiting: dict[Outbox, None] = {}
        """Outboxes whose peers read again."""
        self.is_turn_due = False
        self.is_operator = is_operator
        self.token_refused, self.input_refused = runtime.token_refused, runtime.input_refused
        self.log = log
        """Logs joins and disconnects."""
        self._watch = watch
        self._keep_token = keep_token
        self._timer: Timer | None = None
        self._timer_us = 0
        self._is_counting = False
        self._is_pinging = False
        self.sinks: dict[tuple[str, str], Sink] = {}
        """Where the messages of virtual participants go, by space and name."""
        self._waits = StreamWaits(self)
        runtime.turn_listeners.append(self)

    # Spaces

    def add(self, settings: SpaceSettings, url: str = "") -> SpaceMachine:
        """Open a space with its remembered state."""
        log, state = self.runtime.commit_log, self.memory.of(settings.id)
        space = SpaceMachine(settings, state, log, self.messages, text=self.text, head=frame_head, watch=self._watch)
        space.url = url
        self.spaces[settings.id] = space
        join.begin(space, self.runtime.scheduler.now())
        self.schedule_turn()
        return space

    @property
    def limits(self) -> Limits:
        return self.runtime.machine.limits

    def find(self, name: str | None) -> SpaceMachine | MewRefusal:
        """The space of this name; without a name, the only space."""
        space = self.spaces.get(name or DEFAULT)
        if space is None and (name is None or name == DEFAULT) and len(self.spaces) == 1:
            space = next(iter(self.spaces.values()))
        if space is not None:
            return space
        message = "name the space to join" if name is None else f"there is no space `{name[:60]}` here"
        if not self.spaces:
            message = "this server has no spaces; the config section `spaces` adds them"
        return MewRefusal("unknown_space", message, status=404)

    def text(self, data: bytes) -> bytes:
        return frame(TEXT, data)

    def judged(self, session: MewSession) -> None:
        """A join was accepted or refused; write the answer."""
        self.schedule_turn()
        if session.participant is not None and session.space is not None:
            who, name = session.participant, session.space.id
            session.link.agent = who.id
            self.log("space.joined", link=session.link.no, space=name, participant=who.id, known=who.party)
        self.runtime.peers.touch_session(session)

    # Connections

    def open(self, wire: Any, session: MewSession, peer: str, principal: Any) -> SpaceConnection | Refusal:
        """A peer has connected and is expected to join."""
        wire.is_framed = True
        connection = self.runtime.peers.open(session, wire, principal, peer, make=SpaceConnection)
        if isinstance(connection, Refusal):
            return connection
        assert isinstance(connection, SpaceConnection)
        connection.spaces = self
        self.sessions[session] = None
        wait_ms = self.limits.join_pause_ms if session.token is not None else self.limits.join_ms
        at_us = self.runtime.scheduler.now().us + wait_ms * 1000
        self.runtime.scheduler.at(at_us, lambda: self._expect_join(connection))
        self._expect_pings()
        return connection

    def _expect_join(self, connection: SpaceConnection) -> None:
        if not connection.closed:
            connection.session.overdue(self.runtime.scheduler.now())
            self.schedule_turn()
            self.runtime.peers.touch(connection)

    def _expect_pings(self) -> None:
        if not self._is_pinging and self.sessions:
            self._is_pinging = True
            due_us = self.runtime.scheduler.now().us + self.limits.ping_ms * 1000
            self.runtime.scheduler.at(due_us, self._ping)

    def _ping(self) -> None:
        """Ping all participants; disconnect those that did not answer the last ping."""
        self._is_pinging = False
        for session in list(self.sessions):
            connection = self.runtime.peers.find(session)
            if connection is None:
                continue
            if connection.held and (
                not connection.stuck or session.is_blocked
            ):  # its pong may be among the bytes that we do not read
                continue
            if not session.is_alive:
                connection.wire.abort()
                self.runtime.peers.lost(connection)
                continue
            if not session.outbox.stuck:  # the outbox bounds a participant that does not read
                session.is_alive = False
                session.out.append(PING_FRAME)
                self.runtime.peers.touch(connection)
        self._expect_pings()

    # Turns

    def schedule_turn(self) -> None:
        """Hand over what waits at the end of this turn."""
        if not self.is_turn_due:
            self.is_turn_due = True
            self.runtime.schedule_turn()

    def turn(self) -> None:
        if not self.is_turn_due:
            return
        self.is_turn_due = False
        now = self.runtime.scheduler.now()
        for space in self.spaces.values():
            space.let_in(now, is_new_turn=True)
            if space.arrivals:
                self.schedule_turn()
            router = space.router
            router.flush()
            if space.evicted:
                self._evict(now, space)
            if space.minted:
                minted, space.minted = space.minted, []
                for participant, token in minted:
                    self._keep_token(space.id, participant, token)
            if router.touched:
                touched, router.touched = router.touched, {}
                if len(touched) > OUTBOXES_MAX:  # the rest comes first in the next turn
                    router.touched = dict.fromkeys(islice(touched, OUTBOXES_MAX, None))
                    self.schedule_turn()
                for outbox in islice(touched, OUTBOXES_MAX):
                    self._hand_over(now, space, outbox)
        if self.waiting:
            waiting, self.waiting = self.waiting, {}
            for outbox in waiting:
                space = outbox.owner.space
                if space is not None:
                    self._hand_over(now, space, outbox)
        self._waits.turn(now)
        if not self._is_counting:  # once a second while there is traffic
            self._is_counting = True
            self.runtime.scheduler.at(now.us + COUNT_US, self._count)
        self._arm()

    def _hand_over(self, now: Now, space: SpaceMachine, outbox: Outbox) -> None:
        session = outbox.owner
        if not isinstance(session, MewSession):
            session.taken(now, outbox)
            if outbox.is_over:
                self.schedule_turn()  # the others are notified
            return
        if outbox.is_over and session.closing is None:
            space.slow_cut += 1
            waiting = outbox.size
            outbox.take()
            message = f"{waiting} bytes wait that you have not read and `limits.space_outbox_max` allows no more"
            session.end(now, MewRefusal("slow_consumer", message, status=429), SLOW)
            self.schedule_turn()  # the others are notified
        elif outbox.stuck and session.closing is None:
            connection = self.runtime.peers.find(session)
            if connection is not None:
                self.runtime.peers.outboxes.note(connection, connection.unread())
            return
        else:
            session.out.extend(outbox.take())
            for route, count in outbox.take_lost().items():
                space.router.note_dropped(route)
                fault = MewRefusal(
                    "frames_dropped",
                    "you read too slowly, so the oldest frames were dropped",
                    {"stream_id": route.id, "frames": count},
                )
                to = None if session.participant is None else session.participant.id
                session.out.append(self.text(self.messages.error(now, fault, to)))
        self.runtime.peers.touch_session(session)

    def _evict(self, now: Now, space: SpaceMachine) -> None:
        evicted, space.evicted = space.evicted, []
        for participant, code, fault in evicted:
            if participant.outbox is None:
                continue
            session = participant.outbox.owner
            if isinstance(session, MewSession):
                if session.participant is participant:
                    session.end(now, fault, code)
                    self.runtime.peers.touch_session(session)
            else:
                join.leave(space, now, participant, fault.error)
                self.is_turn_due = False
                self.schedule_turn()

    def decided(self, now: Now, no: int, fresh: Refusal | None, whole: Refusal | None) -> None:
        for space in self.spaces.values():
            space.decided(now, no, fresh, whole)
        self.schedule_turn()

    # Time

    def _count(self) -> None:
        """Write stream counts, and reset rate counters."""
        self._is_counting = False
        for session in self.sessions:
            session.new_second()
            if session.space is not None:
                for route in session.outbox.lost:
                    session.space.router.note_dropped(route)
        now = self.runtime.scheduler.now()
        for space in self.spaces.values():
            if space.router.active:
                frames.journal_counts(space, now)
                self.schedule_turn()

    def _arm(self) -> None:
        deadlines = [space.timers.next_deadline() for space in self.spaces.values() if space.timers.heap]
        due_us = min((each for each in deadlines if each is not None), default=None)
        if due_us is None or (self._timer is not None and self._timer_us <= due_us):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = due_us
        self._timer = self.runtime.scheduler.at(due_us, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = self.runtime.scheduler.now()
        for space in self.spaces.values():
            join.wake(space, now)
        self.schedule_turn()

    # Requests, sinks and streams

    async def read(self, data: bytes) -> Fields | MewRefusal:
        """The members of an envelope of an HTTP request; a large one is checked in steps."""
        is_small = len(data) <= STEP_BYTES
        read = read_object(data, self.limits) if is_small else await checked(self.survey, read_steps(data, self.limits))
        if isinstance(read, MewRefusal):
            self.input_refused("space", read.error)
        return read

    async def accept(
        self, now: Now, space: SpaceMachine, sender: Participant, envelope: Envelope
    ) -> Answer | MewRefusal:
        """Accept an envelope of an HTTP request, and wait until it is durable."""
        future: asyncio.Future[Answer | MewRefusal] = asyncio.get_running_loop().create_future()

        def done(now: Now, outcome: Answer | MewRefusal) -> None:
            if not future.done():
                future.set_result(outcome)

        accept.accept(space, now, sender, envelope, "http", done)
        self.schedule_turn()
        return await future

    def give_sink(self, space: SpaceMachine, name: str, sink: Sink, *, is_present: bool) -> None:
        """Write a participant's messages to a file, from now on or from its first request."""
        self.sinks[space.id, name] = sink
        if is_present:
            self.enter(space, name, sink, "virtual")

    def enter(self, space: SpaceMachine, name: str, sink: Sink, kind: str) -> Participant:
        """Add a participant without a connection."""
        limits = self.limits
        outbox = Outbox(sink, limits.space_outbox_max, limits.space_telemetry_max, limits.space_wait_max)
        participant = Participant(name, name, outbox, kind)
        join.enter(space, self.runtime.scheduler.now(), participant)
        self.schedule_turn()
        return participant

    def writable(self, name: str, stream: str) -> Refusal | None:
        """Why the pipeline may not write to a stream of a space; None when it may."""
        found = self._stream(name, stream)
        return found if isinstance(found, Refusal) else None

    def write(self, name: str, stream: str, frames: Iterable[bytes]) -> Refusal | None:
        """Write frames of the pipeline to a stream of a space."""
        found = self._stream(name, stream)
        if isinstance(found, Refusal):
            return found
        space, id_, writer = found
        head = b"#" + id_.encode() + b"#"
        for data in frames:
            space.router.publish(writer, head + data, len(head) - 1)
        self.schedule_turn()
        return None

    def _stream(self, name: str, stream: str) -> tuple[SpaceMachine, str, str] | Refusal:
        ref = f"space:{name}/{stream}"
        space = self.spaces.get(name)
        if space is None:
            return Refusal("UnknownStream", f"there is no space `{name}` here", ref=ref, hint="see `penstock space ls`")
        found = space.state.streams.get(stream) or next(
            (each for each in space.state.streams.values() if each.name == stream), None
        )
        if found is None:
            hint = "name it under `streams` of the space, with a participant of `type: pipeline` as its owner"
            return Refusal("UnknownStream", f"there is no stream `{stream}` in `{name}`", ref=ref, hint=hint)
        for writer in found.route.writers:
            known = space.settings.participants.get(writer)
            if known is not None and known.is_pipeline:
                return space, found.id, writer
        hint = "its owner, or a writer it has added, must be a participant of `type: pipeline`"
        return Refusal("Forbidden", f"the pipeline may not write to `{stream}` in `{name}`", ref=ref, hint=hint)


PING_FRAME = frame(PING, b"")
