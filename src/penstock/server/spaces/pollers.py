"""Participants without a connection: they poll over HTTP, or their messages go to a file."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.clock import Now
from penstock.core.fanout.outbox import Outbox
from penstock.dialects.mew import join
from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.participants import Participant
from penstock.server.logging.gateway_logs import OutputLog
from penstock.transports.http_replies import Reply, json_reply
from penstock.transports.transport import TEXT, unframed

if TYPE_CHECKING:
    from penstock.server.spaces.host import Spaces


class FileSink:
    """A virtual participant: what it receives is appended to a file."""

    def __init__(self, lines: OutputLog) -> None:
        self._lines = lines
        self.space: SpaceMachine | None = None

    def taken(self, now: Now, outbox: Outbox) -> None:
        for opcode, data in unframed(b"".join(outbox.take())):
            if opcode == TEXT:
                self._lines.envelope(data)
            else:
                self._lines.frame(data)


class Poller:
    """A participant that polls over HTTP."""

    def __init__(self, spaces: Spaces, space: SpaceMachine, party: str, id_: str) -> None:
        self._spaces = spaces
        self.space = space
        limits = spaces.limits
        self.outbox = Outbox(self, limits.space_outbox_max, limits.space_telemetry_max, limits.space_wait_max)
        self.outbox.stuck = True  # so that the bounds count from the first byte
        self.participant = Participant(id_, party, self.outbox, "polling")
        self.seen_us = 0
        self.unread_bytes = 0
        self.is_paused = False
        self.party = (False, f"{party} of space {space.id}")
        self.reader_name = f"{id_} (polls space {space.id})"

    def taken(self, now: Now, outbox: Outbox) -> None:
        if outbox.is_over:
            self.space.slow_cut += 1
            self.leave(now, "slow_consumer")
        elif self.space.present.get(self.participant.id) is self.participant:
            self._spaces.runtime.peers.outboxes.note(self, outbox.size)
        else:
            outbox.take()

    def take(self) -> list[bytes]:
        """The messages since the last poll."""
        messages = self.outbox.take()
        self._spaces.runtime.peers.outboxes.note(self, 0)
        return messages

    def leave(self, now: Now, reason: str) -> None:
        self.take()
        join.leave(self.space, now, self.participant, reason)
        self._spaces.schedule_turn()

    def unread(self) -> int:
        return self.outbox.size

    def cut(self, size: int) -> None:
        self.space.slow_cut += 1
        self.leave(self._spaces.runtime.scheduler.now(), "slow_consumer")


class Pollers:
    """All polling participants."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._pollers: dict[tuple[str, str], Poller] = {}

    def poll(self, now: Now, space: SpaceMachine, id_: str, party: str) -> Reply:
        """The messages for a participant since its last poll; the first poll joins the space."""
        there = space.present.get(id_)
        if there is not None and there.kind != "polling":
            message = f"`{id_}` is here already, as `{there.kind}`, and receives everything there"
            return json_reply(409, {"error": "already_connected", "message": message})
        poller = self._pollers.get((space.id, id_))
        if poller is None or there is not poller.participant:
            poller = Poller(self._spaces, space, party, id_)
            fault = join.enter(space, now, poller.participant)
            if fault is not None:
                return json_reply(fault.status, fault.payload)
            self._pollers[space.id, id_] = poller
            self._expect(now, poller)
            self._spaces.schedule_turn()
        poller.seen_us = now.us
        space.router.flush()
        if poller.outbox.waiting:
            self._spaces.schedule_turn()  # writers that wait for it go on
        answer = polled(poller.take())
        lost = sum(poller.outbox.take_lost().values())
        return json_reply(200, answer if not lost else answer | {"frames_dropped": lost})

    def _expect(self, now: Now, poller: Poller) -> None:
        due_us = now.us + self._spaces.limits.poll_ms * 1000
        self._spaces.runtime.scheduler.at(due_us, lambda: self._look(poller))

    def _look(self, poller: Poller) -> None:
        """A participant may have stopped polling."""
        now = self._spaces.runtime.scheduler.now()
        participant = poller.participant
        is_fresh = now.us - poller.seen_us < self._spaces.limits.poll_ms * 1000
        if is_fresh and poller.space.present.get(participant.id) is participant:
            self._expect(now, poller)
            return
        key = (poller.space.id, participant.id)
        if self._pollers.get(key) is poller:  # it may have joined again since
            del self._pollers[key]
        poller.leave(now, "stopped polling")


def polled(messages: list[bytes]) -> dict[str, Any]:
    """The answer to a poll."""
    envelopes: list[msgspec.Raw] = []
    frames: list[dict[str, str]] = []
    for opcode, data in unframed(b"".join(messages)):
        if opcode == TEXT:
            envelopes.append(msgspec.Raw(data))
        else:
            _, stream_id, body = data.split(b"#", 2)
            frames.append({"stream_id": stream_id.decode(), "data": b64encode(body).decode()})
    return {"messages": envelopes, "frames": frames}
