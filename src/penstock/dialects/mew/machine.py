"""The machine of one space: its participants, their rights, and the commits of their envelopes.

Owns who is present and what waits for the journal. It must never know a connection: messages go to outboxes. What it guarantees:

- A change takes effect and is announced when its commit is durable. If the commit is refused, only its sender is notified.
- Changes that wait for their commits count towards the limits, so that two of them cannot exceed a limit together or use one name twice.
- What one participant sends stays in order: behind an envelope that waits for its commit, its frames and errors wait too.

Cost of an envelope: O(1), and O(participants) when it is announced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.commit_log import CommitLog
from penstock.core.deadline_heap import Timers
from penstock.core.errors import Refusal
from penstock.core.fanout.frame_router import FrameRouter
from penstock.core.limits import Limits
from penstock.core.records import Entry
from penstock.dialects.mew import frames
from penstock.dialects.mew.capabilities import Capability, clean
from penstock.dialects.mew.envelopes import Envelope
from penstock.dialects.mew.gateway_messages import GATEWAY, GatewayMessages, MewRefusal
from penstock.dialects.mew.participants import Answer, Done, Participant, PendingCommit, Rights, SpaceObserver, accepted
from penstock.dialects.mew.settings import SpaceSettings
from penstock.dialects.mew.state import DOOR, OpenStream, SpaceState

NOTICES_MAX = 5_000
"""Notices of joins and leaves that one turn makes, about 5 ms; joins beyond that wait for the next turn, in order."""
OPERATOR = "operator"
"""The participant with the operator's token, in every space."""
_EVERYTHING: tuple[Capability, ...] = ({"kind": "*"},)
_encode = msgspec.json.encode


class _Named(msgspec.Struct):
    id: str


def _id_of(data: bytes) -> str:
    """The id of an envelope that the gateway made."""
    return msgspec.json.decode(data, type=_Named).id


class SpaceMachine:
    """A running space."""

    def __init__(
        self,
        settings: SpaceSettings,
        state: SpaceState,
        commit_log: CommitLog,
        messages: GatewayMessages,
        *,
        text: Callable[[bytes], bytes],
        head: Callable[[int], bytes],
        watch: SpaceObserver | None = None,
    ) -> None:
        self.settings = settings
        self.id = settings.id
        self.state = state
        self.commit_log = commit_log
        self.messages = messages
        self.watch = watch
        self.router = FrameRouter(head, partial(frames.journal_frame, self))
        self.present: dict[str, Participant] = {}
        self.timers: Timers[OpenStream] = Timers()
        self.pending: deque[PendingCommit] = deque()
        self.pending_bytes = 0
        self.opening: dict[str, OpenStream] = {}
        """Streams that wait for their commit."""
        self.opening_bytes = 0
        self._undecided: dict[tuple[str, str, str], int] = {}
        """How many changes wait for their commits, by kind and by channel or participant."""
        self.envelopes = 0
        self.refused = 0
        self.slow_cut = 0
        self.targets_removed = 0
        """Participants that were removed from a stream whose writers waited for them."""
        self.evicted: list[tuple[Participant, int, MewRefusal]] = []
        """Participants to disconnect, with close code and reason; the runtime empties the list."""
        self.minted: list[tuple[str, str]] = []
        """Invited participants and their tokens; the server writes these to files."""
        self.arrivals: deque[Callable[[Now], None]] = deque()
        """Joins and leaves that wait for their turn."""
        self._notices = 0
        """Notices of joins and leaves in this turn."""
        self.url = ""
        """The URL that participants connect to."""
        self._text = text
        self._rights: dict[str, Rights] = {}
        self._holders: dict[str, str] | None = None
        """Parties by the digests of their tokens; None after an invitation, then built again."""
        for stream in state.streams.values():
            self.router.open(stream.route)

    @property
    def limits(self) -> Limits:
        return self.commit_log.limits

    # Who may do what

    def is_known(self, party: str) -> bool:
        """Whether the space knows a party of this name, present or not."""
        return party in self.settings.participants or party in self.state.invited or party == OPERATOR

    def is_taken(self, name: str) -> bool:
        """Whether a party of this name is known, or waits for its commit."""
        return self.is_known(name) or self.undecided("space/invite", peer=name) > 0

    def party_of(self, digest: str) -> str | None:
        """The party whose token has this digest."""
        if self._holders is None:
            self._holders = {invited.digest: name for name, invited in self.state.invited.items()}
            for name, known in self.settings.participants.items():
                self._holders.update(dict.fromkeys(known.token_digests, name))
        return self._holders.get(digest)

    def rights(self, party: str) -> Rights:
        """What a party may send now."""
        rights = self._rights.get(party)
        if rights is None:
            granted = self.state.grants.get(party, {})
            rights = self._rights[party] = Rights(self.static(party), granted.values())
        return rights

    def static(self, party: str) -> tuple[Capability, ...]:
        """The capabilities of a party from the settings or its invitation."""
        if party == OPERATOR:
            return _EVERYTHING
        known = self.settings.participants.get(party)
        invited = self.state.invited.get(party)
        if known is None and invited is not None:
            return invited.capabilities
        if known is not None and known.capabilities is not None:
            return clean(known.capabilities)
        return clean(self.settings.default_capabilities)

    def resolve(self, name: str) -> str | None:
        """The party of a name: one that the space knows, or that of a present participant with this id."""
        if self.is_known(name):
            return name
        there = self.present.get(name)
        return None if there is None else there.party

    def aliases(self, names: Iterable[str]) -> dict[str, str]:
        """The parties of those present participants whose id differs from their party."""
        there = [self.present[name] for name in names if name in self.present]
        return {each.id: each.party for each in there if each.id != each.party}

    def holder(self, name: str) -> str | None:
        """The party that an id belongs to: that of a present participant, or of an absent one that a stream refers to."""
        if name in self.present:
            return self.present[name].party
        streams = (*self.state.streams.values(), *self.opening.values())
        return next((stream.aliases[name] for stream in streams if name in stream.aliases), None)

    def ids(self) -> Iterator[str]:
        """Every id that is in use: of known parties, of invitations that wait, of those present, and of aliases that streams refer to."""
        yield from (OPERATOR, *self.settings.participants, *self.state.invited, *self.present)
        yield from (peer for kind, _, peer in self._undecided if kind == "space/invite" and peer)
        for stream in (*self.state.streams.values(), *self.opening.values()):
            yield from stream.aliases

    # Messages to participants

    def broadcast(self, now: Now, data: bytes, id_: str, but: str | None = None) -> None:
        """Send an envelope to all present participants."""
        self.router.broadcast(self._text(data), but)
        if self.watch is not None:
            recipients = [(each.id, each.kind) for each in self.present.values() if each.outbox and each.id != but]
            self.watch.delivered(now, data, id_ or _id_of(data), recipients, self.id)

    def send(self, now: Now, participant: Participant, data: bytes, id_: str = "") -> None:
        """Give an envelope to one participant."""
        if participant.outbox is None or self.present.get(participant.id) is not participant:
            return
        self.router.send(participant.outbox, self._text(data))
        if self.watch is not None:
            recipients = [(participant.id, participant.kind)]
            self.watch.delivered(now, data, id_ or _id_of(data), recipients, self.id)

    def say(self, now: Now, kind: str, payload: dict[str, Any], **more: Any) -> None:
        """Broadcast a message of the gateway about streams."""
        id_ = self.messages.fresh(kind.replace("/", "-"))
        self.broadcast(now, self.messages.say(now, kind, payload, sender=GATEWAY, id_=id_, **more), id_)

    def fail(self, now: Now, participant: Participant, fault: MewRefusal) -> None:
        """Report a refusal to a participant, after the answers to what it sent before."""
        self.then(now, participant, lambda now: self.fail_now(now, participant, fault))

    def fail_now(self, now: Now, participant: Participant, fault: MewRefusal) -> None:
        """Report a refusal at once."""
        self.refused += 1
        self.send(now, participant, self.messages.error(now, fault, participant.id))

    def welcome(self, now: Now, participant: Participant, *, is_update: bool = False) -> None:
        """Send a participant who is present and what it may do; the first time also which streams are open."""
        others = [self.shown(each) for each in self.present.values() if each is not participant]
        streams = [stream.shown() for stream in self.state.streams.values()]
        data = self.messages.welcome(now, self.shown(participant), others, None if is_update else streams)
        self.send(now, participant, data)

    def shown(self, participant: Participant) -> dict[str, Any]:
        return {"id": participant.id, "capabilities": self.rights(participant.party).all}

    def counts(self) -> dict[str, int]:
        """What the space did since the start."""
        names = ("envelopes", "refused", "slow_cut", "targets_removed")
        return {name: getattr(self, name) for name in names} | self.router.counts()

    @property
    def audience(self) -> int:
        """How many participants would receive an envelope now."""
        return sum(1 for each in self.present.values() if each.outbox is not None)

    # Commits

    def then(self, now: Now, sender: Participant | None, announce: Callable[[Now], None], count: int = 1) -> None:
        """Call now, or after the sender's envelope that waits for its commit: this keeps what one sender sends in order."""
        if sender is None or sender.last is None:
            announce(now)
            return
        sender.waiting += count
        sender.last.behind.append((announce, count))

    def after(self, now: Now, announce: Callable[[Now], None]) -> None:
        """Call now, or after everything that waits."""
        if self.pending:
            self.pending.append(PendingCommit(0, None, announce))
        else:
            announce(now)

    def in_turn(self, now: Now, arrive: Callable[[Now], None]) -> None:
        """A join or a leave, of which all are notified: now, or in a later turn if this one has had enough of them."""
        self.arrivals.append(arrive)
        self.let_in(now)

    def let_in(self, now: Now, *, is_new_turn: bool = False) -> None:
        """Carry out the joins and leaves that wait, as many as the turn allows."""
        if is_new_turn:
            self._notices = 0
        while self.arrivals and self._notices < NOTICES_MAX:
            self._notices += len(self.present) + 1
            self.arrivals.popleft()(now)

    def commit(
        self,
        sender: Participant | None,
        entries: list[Entry],
        announce: Callable[[Now], Answer | MewRefusal | None],
        done: Done | None = None,
        *,
        cause: str | None = None,
        failed: Callable[[Now], None] | None = None,
    ) -> None:
        """Commit these facts together; when they are durable, apply them and call `announce`."""
        self.commit_log.facts.extend(entries)
        pending = PendingCommit(
            self.commit_log.gate, sender, announce, entries=entries, done=done, failed=failed, cause=cause
        )
        self.pending_bytes += pending.size
        if sender is not None:
            sender.waiting += 1
            sender.last = pending
        self._count(entries, 1)
        self.pending.append(pending)

    def undecided(self, kind: str, *, channel: str = "", peer: str = "") -> int:
        """How many changes of this kind wait for their commits, in a channel or about a participant."""
        return self._undecided.get((kind, channel, peer), 0)

    def _count(self, entries: Sequence[Entry], by: int) -> None:
        for entry in entries:
            if entry.event == "envelope":
                continue
            kind = entry.kind or ""
            for key in ((kind, entry.channel, ""), (kind, "", entry.peer or "")):
                self._undecided[key] = self._undecided.get(key, 0) + by
                if not self._undecided[key]:
                    del self._undecided[key]

    def _change(self, entry: Entry) -> None:
        """Apply a durable fact."""
        self.state.apply(entry)
        match entry.event:
            case "stream_open":
                self.router.open(self.state.streams[entry.channel.rpartition("/")[2]].route)
            case "stream_close":
                route = self.router.route(entry.channel.rpartition("/")[2])
                if route is not None:
                    self.router.close(route)
            case "grant" | "revoke" | "invite" | "kick":
                self._rights.pop(entry.peer or "", None)
                if entry.event == "invite":
                    self._holders = None

    def decided(self, now: Now, no: int, fresh: Refusal | None, whole: Refusal | None) -> None:
        """Commit `no` is decided: apply and announce what is durable, and report the refusal of the rest.

        Strictly in order: what waits for a later commit stops the loop, even if it needs no commit itself (gate 0).
        """
        if fresh is not None:
            for pending in self.pending:
                if pending.gate == no:
                    pending.refusal = fresh if all(entry.fresh for entry in pending.entries) else whole
        pendings = self.pending
        while pendings and pendings[0].gate <= no:
            pending = pendings.popleft()
            self.pending_bytes -= pending.size
            self._count(pending.entries, -1)
            if pending.refusal is None:
                for entry in pending.entries:
                    self._change(entry)
                outcome = pending.announce(now)
            else:
                outcome = self._refuse(now, pending, pending.refusal.message)
            if pending.done is not None:
                pending.done(now, {} if outcome is None else outcome)
            if pending.sender is not None:
                self._follow(now, pending, pending.sender)

    def _follow(self, now: Now, pending: PendingCommit, sender: Participant) -> None:
        """Do what waited behind an envelope."""
        sender.waiting -= 1 + sum(count for _, count in pending.behind)
        if sender.last is pending:
            sender.last = None
        for announce, _ in pending.behind:
            announce(now)

    def _refuse(self, now: Now, pending: PendingCommit, reason: str) -> MewRefusal:
        message = f"the journal refused it: {reason}"
        fault = MewRefusal("journal_unavailable", message, status=503, cause=pending.cause)
        if pending.failed is not None:
            pending.failed(now)
        if pending.done is None and pending.sender is not None:
            self.fail_now(now, pending.sender, fault)
        return fault

    # Envelopes

    def relay(
        self,
        sender: Participant,
        envelope: Envelope,
        done: Done | None,
        entries: tuple[Entry, ...] = (),
        before: Callable[[Now], None] = lambda now: None,
    ) -> None:
        """Broadcast an envelope to all participants, its sender included, when it is durable; `before` is called first."""
        data = envelope.encode()
        self.envelopes += 1

        def announce(now: Now) -> Answer:
            before(now)
            self.broadcast(now, data, envelope.id)
            return accepted(now)

        facts = [self.envelope_entry(sender, envelope, data), *entries]
        self.commit(sender, facts, announce, done, cause=envelope.cause)

    def envelope_entry(self, sender: Participant, envelope: Envelope, data: bytes) -> Entry:
        """The fact of an envelope. Its number is used even if the commit is refused."""
        to = envelope.to
        self.state.seq += 1
        return Entry(
            DOOR,
            "envelope",
            self.id,
            self.state.seq,
            id=envelope.id,
            kind=envelope.kind,
            sender=sender.id,
            corr=envelope.corr,
            size=len(data),
            recipients=self.audience,
            meta=None if to is None else _encode({"to": to}).decode(),
            body=data,
        )
