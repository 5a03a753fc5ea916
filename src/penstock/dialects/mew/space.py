"""One space: who is in it, what they may send, and what becomes of an envelope.

Changes are made at once and told when their commit is durable; a commit that is refused is undone and its sender hears why. What one
participant sends stays in order: behind an envelope that waits for its commit, its frames and errors wait too. Nothing here is shared
with another space. Cost of `accept`: O(1), and O(participants) when it is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

import msgspec

from penstock.core.errors import Refusal
from penstock.core.fanout import Lane, Member, Room
from penstock.core.instant import Now
from penstock.core.limits import Limits
from penstock.core.outbox import Outbox
from penstock.core.records import Entry
from penstock.core.timers import Timers
from penstock.dialects.mew.capabilities import Capability, Matcher, clean, with_baseline
from penstock.dialects.mew.envelopes import Envelope
from penstock.dialects.mew.messages import GATEWAY, Fault, Voice
from penstock.dialects.mew.pending import Answer, Done, Pending, accepted
from penstock.dialects.mew.settings import SpaceSettings
from penstock.dialects.mew.state import DOOR, SpaceState, Stream

OPERATOR = "operator"
"""Who the holder of the operator's token is, in every space."""
_EVERYTHING: tuple[Capability, ...] = ({"kind": "*"},)
_encode = msgspec.json.encode

Source = Literal["static", "dynamic", "implicit"]


class _Named(msgspec.Struct):
    id: str


def _id_of(data: bytes) -> str:
    """The id of an envelope of the gateway's own."""
    return msgspec.json.decode(data, type=_Named).id


class Ledger(Protocol):
    """Where facts are gathered until the end of a turn."""

    limits: Limits
    facts: list[Any]
    gate: int
    draining: bool
    entropy: Callable[[int], bytes]

    def observe_settle(self, settle: Entry) -> None: ...


class Watch(Protocol):
    """Somebody who is told what passes, for log files."""

    def received(
        self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str
    ) -> None: ...

    def delivered(
        self, now: Now, envelope: bytes, id_: str, participants: Iterable[tuple[str, str]], space: str
    ) -> None: ...

    def rejected(
        self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str, reason: str
    ) -> None: ...

    def decided(self, now: Now, decision: Decision) -> None: ...


class Decision(msgspec.Struct, frozen=True):
    """Whether somebody was allowed to send something, and why."""

    envelope: str
    participant: str
    space: str
    kind: str
    matched: Capability | None
    source: Source | None
    """`static` from the settings or the invitation, `dynamic` from a grant, `implicit` from the protocol."""
    held: tuple[Capability, ...]
    transport: str
    correlation: tuple[str, ...] = ()


class Rights:
    """What one party may send."""

    __slots__ = ("all", "granted", "static")

    def __init__(self, static: tuple[Capability, ...], granted: Iterable[tuple[Capability, ...]]) -> None:
        self.static = Matcher(with_baseline(static))
        dynamic = tuple(capability for capabilities in granted for capability in capabilities)
        self.granted = Matcher(dynamic) if dynamic else None
        self.all = with_baseline(clean([*static, *dynamic]))

    def match(self, kind: str, payload: bytes | None) -> tuple[Capability, Source] | None:
        found = self.static.match(kind, payload)
        if found is not None:
            return found, "static"
        if self.granted is not None:
            found = self.granted.match(kind, payload)
            if found is not None:
                return found, "dynamic"
        return None


class Participant:
    """Somebody who is there, or who sends without being there."""

    __slots__ = ("id", "kind", "member", "outbox", "party", "waiting")

    def __init__(self, id_: str, party: str, outbox: Outbox | None, kind: str = "websocket") -> None:
        self.id = id_
        self.party = party
        """The name under which the space knows it: that of the token it showed."""
        self.outbox = outbox
        self.kind = kind
        """`websocket`, `virtual`, `pipeline`, `polling` or `http`."""
        self.member = Member(id_, party, outbox)
        self.waiting = 0
        """What it sent that waits for its turn."""


class Space:
    """A space at work."""

    def __init__(
        self,
        settings: SpaceSettings,
        state: SpaceState,
        ledger: Ledger,
        voice: Voice,
        *,
        text: Callable[[bytes], bytes],
        head: Callable[[int], bytes],
        watch: Watch | None = None,
    ) -> None:
        self.settings = settings
        self.id = settings.id
        self.state = state
        self.ledger = ledger
        self.voice = voice
        self.watch = watch
        self.room = Room(head, self._keep_frame)
        self.present: dict[str, Participant] = {}
        self.timers: Timers[Stream] = Timers()
        self.pending: deque[Pending] = deque()
        self.pending_bytes = 0
        self.finished = 0
        """The newest commit whose outcome is known."""
        self.envelopes = 0
        self.refused = 0
        self.slow_cut = 0
        self.evicted: list[tuple[Participant, int, Fault]] = []
        """Participants whose connections are to be closed, with what code and why; the runtime takes them away."""
        self.minted: list[tuple[str, str]] = []
        """Who was invited, and the token: for whoever keeps files of them."""
        self.url = ""
        """Where participants connect to."""
        self._text = text
        self._rights: dict[str, Rights] = {}
        for stream in state.streams.values():
            self.room.open(stream.lane)

    @property
    def limits(self) -> Limits:
        return self.ledger.limits

    # Who may do what

    def is_known(self, party: str) -> bool:
        """Whether the space knows somebody of this name, there or not."""
        return party in self.settings.participants or party in self.state.invited or party == OPERATOR

    def party_of(self, digest: str) -> str | None:
        """Whose token this is the digest of."""
        for name, participant in self.settings.participants.items():
            if digest in participant.token_digests:
                return name
        for name, invited in self.state.invited.items():
            if digest == invited.digest:
                return name
        return None

    def rights(self, party: str) -> Rights:
        """What somebody may send now."""
        rights = self._rights.get(party)
        if rights is None:
            granted = self.state.grants.get(party, {})
            rights = self._rights[party] = Rights(self._static(party), granted.values())
        return rights

    def _static(self, party: str) -> tuple[Capability, ...]:
        if party == OPERATOR:
            return _EVERYTHING
        known = self.settings.participants.get(party)
        invited = self.state.invited.get(party)
        if known is None and invited is not None:
            return invited.capabilities
        if known is not None and known.capabilities is not None:
            return clean(known.capabilities)
        return clean(self.settings.default_capabilities)

    def forget_rights(self, party: str) -> None:
        """What somebody may do has changed."""
        self._rights.pop(party, None)

    def resolve(self, name: str) -> str | None:
        """The party that a name means: one the space knows, or the one behind the id of somebody present."""
        if self.is_known(name):
            return name
        there = self.present.get(name)
        return None if there is None else there.party

    # Telling

    def tell(self, now: Now, data: bytes, id_: str, but: str | None = None) -> None:
        """Give an envelope to everybody present."""
        self.room.tell(self._text(data), but)
        if self.watch is not None:
            told = [(each.id, each.kind) for each in self.present.values() if each.outbox and each.id != but]
            self.watch.delivered(now, data, id_ or _id_of(data), told, self.id)

    def tell_one(self, now: Now, participant: Participant, data: bytes, id_: str = "") -> None:
        """Give an envelope to one participant."""
        if participant.outbox is None or self.present.get(participant.id) is not participant:
            return
        self.room.tell_one(participant.outbox, self._text(data))
        if self.watch is not None:
            told = [(participant.id, participant.kind)]
            self.watch.delivered(now, data, id_ or _id_of(data), told, self.id)

    def say(self, now: Now, kind: str, payload: dict[str, Any], **more: Any) -> None:
        """Have the gateway tell everybody something about streams."""
        id_ = self.voice.fresh(kind.replace("/", "-"))
        self.tell(now, self.voice.say(now, kind, payload, sender=GATEWAY, id_=id_, **more), id_)

    def fail(self, now: Now, participant: Participant, fault: Fault) -> None:
        """Tell a participant what went wrong, behind what it sent before."""
        self.refused += 1
        data = self.voice.error(now, fault, participant.id)
        self.then(now, participant, lambda now: self.tell_one(now, participant, data))

    def welcome(self, now: Now, participant: Participant, *, is_update: bool = False) -> None:
        """Tell a participant who is here and what it may do; the first time also which streams are open."""
        you = {"id": participant.id, "capabilities": self.rights(participant.party).all}
        others = [self.shown(each) for each in self.present.values() if each is not participant]
        streams = [stream.shown() for stream in self.state.streams.values() if stream.gate <= self.finished]
        data = self.voice.welcome(now, you, others, None if is_update else streams)
        self.tell_one(now, participant, data)

    def shown(self, participant: Participant) -> dict[str, Any]:
        return {"id": participant.id, "capabilities": self.rights(participant.party).all}

    @property
    def told(self) -> int:
        """How many would hear an envelope now."""
        return sum(1 for each in self.present.values() if each.outbox is not None)

    # Commits

    def then(self, now: Now, sender: Participant | None, tell: Callable[[Now], None]) -> None:
        """Do something now, or behind what this sender waits for."""
        if sender is None or not sender.waiting:
            tell(now)
            return
        sender.waiting += 1
        self.pending.append(Pending(0, sender, tell))

    def after(self, now: Now, tell: Callable[[Now], None]) -> None:
        """Do something now, or behind everything that waits."""
        if self.pending:
            self.pending.append(Pending(0, None, tell))
        else:
            tell(now)

    def commit(
        self,
        sender: Participant | None,
        entries: list[Entry],
        tell: Callable[[Now], Answer | Fault | None],
        done: Done | None = None,
        *,
        cause: str | None = None,
        do: Callable[[], None] | None = None,
        undo: Callable[[Now], None] | None = None,
    ) -> None:
        """Make these facts durable together, then tell of them; the state has the changes at once.

        `do` follows the changes, each time they are made; `undo` follows when they are taken back.
        """
        pending = Pending(self.ledger.gate, sender, tell, entries, done=done, cause=cause, do=do, undo=undo)
        self.ledger.facts.extend(entries)
        self._make(pending)
        self.pending_bytes += pending.size
        if sender is not None:
            sender.waiting += 1
        self.pending.append(pending)

    def _make(self, pending: Pending) -> None:
        state = self.state
        pending.backs = [state.undo(entry) for entry in pending.entries if entry.event != "envelope"]
        for entry in pending.entries:
            state.apply(entry)
        if pending.do is not None:
            pending.do()

    def _unmake(self, now: Now, pending: Pending) -> None:
        for back in reversed(pending.backs):
            back()
        if pending.undo is not None:
            pending.undo(now)

    def _take_back(self, now: Now, no: int, fresh: Refusal, whole: Refusal | None) -> None:
        """Take back what was refused of a commit, also from under what came after it."""
        changes = [pending for pending in self.pending if pending.gate >= no]
        for pending in reversed(changes):
            self._unmake(now, pending)
        for pending in changes:
            if pending.gate == no:
                pending.refusal = fresh if pending.fresh else whole
            if pending.refusal is None:
                self._make(pending)
        self._rights.clear()

    def decided(self, now: Now, no: int, fresh: Refusal | None, whole: Refusal | None) -> None:
        """Commit `no` has its outcome: tell what became durable, undo what did not."""
        self.finished = no
        if fresh is not None:
            self._take_back(now, no, fresh, whole)
        pendings = self.pending
        while pendings and pendings[0].gate <= no:
            pending = pendings.popleft()
            if pending.sender is not None:
                pending.sender.waiting -= 1
            self.pending_bytes -= pending.size
            if pending.refusal is None:
                outcome = pending.tell(now)
            else:
                reason = pending.refusal.message
                message = f"it could not be written down: {reason}"
                outcome = Fault("journal_unavailable", message, status=503, cause=pending.cause)
                self.refused += 1
                if pending.done is None and pending.sender is not None:  # whose turn it is
                    self.tell_one(now, pending.sender, self.voice.error(now, outcome, pending.sender.id))
            if pending.done is not None:
                pending.done(now, {} if outcome is None else outcome)

    # Frames

    def publish(self, now: Now, sender: Participant, data: bytes, end: int) -> None:
        """Forward a frame, behind what its sender waits for."""
        if sender.waiting:
            self.then(now, sender, lambda now: self._publish(now, sender, data, end))
        else:
            self._publish(now, sender, data, end)

    def _publish(self, now: Now, sender: Participant, data: bytes, end: int) -> None:
        if self.present.get(sender.id) is sender and self.room.publish(sender.id, data, end):
            return
        stream_id = data[1:end][:200].decode(errors="replace")
        lane = self.room.lanes.get(data[1:end])
        why = "there is no such stream" if lane is None else "you are not among its writers"
        fault = Fault(
            "unauthorized_stream_write",
            f"not written to stream `{stream_id}`: {why}",
            {"stream_id": stream_id},
            status=403,
            sender=GATEWAY,
        )
        self.fail(now, sender, fault)

    def _keep_frame(self, lane: Lane, writer: str, data: bytes, no: int, reach: int) -> None:
        told: dict[str, Any] = {"participants": len(self.room.members)}
        if lane.targets:
            told["target"] = lane.targets
        entry = Entry(
            DOOR,
            "frame",
            f"{self.id}/{lane.id}",
            no,
            sender=writer,
            size=len(data),
            recipients=reach,
            meta=_encode(told).decode(),
            body=data,
        )
        self.ledger.observe_settle(entry)

    def count_frames(self) -> None:
        """Write down what streams did since the last time, where the journal keeps that."""
        for tally in self.room.take_tallies():
            lane = tally.lane
            if lane.keep != "counts":
                continue
            told: dict[str, Any] = {
                "frames": tally.frames,
                "bytes": tally.bytes,
                "deliveries": tally.deliveries,
                "participants": len(self.room.members),
                "broadcast": tally.broadcast,
                "dropped": tally.dropped,
            }
            if lane.targets:
                told["target"] = lane.targets
            entry = Entry(
                DOOR,
                "frame_counts",
                f"{self.id}/{lane.id}",
                lane.seq,
                sender=lane.owner,
                size=min(tally.bytes, 2**31 - 1),
                recipients=min(tally.deliveries, 2**31 - 1),
                meta=_encode(told).decode(),
            )
            self.ledger.observe_settle(entry)

    # Envelopes

    def relay(
        self,
        sender: Participant,
        envelope: Envelope,
        done: Done | None,
        entries: tuple[Entry, ...] = (),
        before: Callable[[Now], None] | None = None,
        after: Callable[[Now], None] | None = None,
    ) -> None:
        """Pass an envelope on to everybody, its sender included, once it is durable."""
        data = envelope.encode()
        self.envelopes += 1

        def tell(now: Now) -> Answer:
            if before is not None:
                before(now)
            self.tell(now, data, envelope.id)
            if after is not None:
                after(now)
            return accepted(now)

        made = [self.envelope_entry(sender, envelope, data), *entries]
        self.commit(sender, made, tell, done, cause=envelope.cause)

    def envelope_entry(self, sender: Participant, envelope: Envelope, data: bytes) -> Entry:
        """The fact that somebody said something."""
        to = envelope.to
        return Entry(
            DOOR,
            "envelope",
            self.id,
            self.state.seq + 1,
            id=envelope.id,
            kind=envelope.kind,
            sender=sender.id,
            corr=envelope.corr,
            size=len(data),
            recipients=self.told,
            meta=_encode({"to": to}).decode() if to else None,
            body=data,
        )
