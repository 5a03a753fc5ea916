"""The runtime: one loop around the pure machine.

Bytes go to a session, the session calls the machine, effects are applied in order, facts go to the journal, and what became
durable goes out: one append and at most one write per connection per turn. It knows neither sockets nor clocks
by name: the scheduler, the wires and the journal are given to it, so the simulator runs this very code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.clock import Now
from penstock.core.commit_log import GatedAnswers
from penstock.core.effects import Copy, Deliver, Expire, Hot, Send
from penstock.core.errors import Refusal
from penstock.core.health import refused_by
from penstock.core.links import Consumer, IsTaken, Session
from penstock.core.queue.hot import HINT, describe
from penstock.core.queue.machine import QueueMachine
from penstock.core.records import Entry, Settle
from penstock.core.scopes import Principal
from penstock.core.steps import STEP_BYTES, Steps, Survey
from penstock.journal.port import Committed, Journal, Outcome
from penstock.server.engine.connections import FAILED, Connection, ConnectionTable, Log, Scheduler, Timer, TurnListener
from penstock.server.engine.minute_ticker import MinuteTicker
from penstock.server.engine.schedulers import SurveyQueue
from penstock.server.engine.view_followers import ViewFollowers
from penstock.server.logging.logs import log_facts

if TYPE_CHECKING:
    from penstock.server.logging.event_log import EventLog

SHARD = 0
EPOCH = 0


class Runtime:
    """The loop around one machine."""

    def __init__(
        self,
        machine: QueueMachine,
        journal: Journal,
        scheduler: Scheduler,
        *,
        authenticate: Callable[[str | None], Principal | None],
        version: str,
        about: Callable[[], dict[str, Any]] = dict,
        log: Log = lambda event, **fields: None,
        log_records: bool = False,
        keeps_history: bool = False,
        events: EventLog | None = None,
    ) -> None:
        self.machine = machine
        self.commit_log = machine.commit_log
        self.journal = journal
        self.scheduler = scheduler
        self.finished = 0
        self.boot_id = machine.entropy(8).hex()
        self._authenticate = authenticate
        self.is_agent_taken: IsTaken = lambda principal, agent: False
        """Set where there are tokens."""
        self.token_refused: Callable[[str | None, str], None] = lambda token, peer: None
        """Counts and logs a peer without a token, or with one that is not known; set where there are tokens."""
        self._version = version
        self._about = about
        """More members of `health`, from the protocols that are served."""
        self._log = log
        self.log_records = log_records
        """Whether every fact is logged."""
        self._waiting: dict[object, GatedAnswers] = {}
        """Connections with answers that wait for a commit."""
        self._gates: dict[int, list[tuple[bool, Callable[[Refusal | None], object]]]] = {}
        self.inputs = 0
        """Chunks, messages and requests of peers that were handled, without large ones."""
        self._surveys = SurveyQueue(scheduler, self.apply, lambda: bool(machine.backlog), lambda: self.inputs)
        self.is_behind = False
        """Whether the backlog of the machine is being worked off, and the open batch waits for that."""
        self._turning = False
        self._timer: Timer | None = None
        self._timer_us = 0
        self._started = scheduler.now()
        machine.views.begin(self._started)
        self.live = ViewFollowers(self)
        self.turn_listeners: list[TurnListener] = []
        self._drained: Callable[[int], None] | None = None
        self.events = events
        """The event log, if one is configured."""
        self._ticker = MinuteTicker(machine, scheduler, self.schedule_turn) if keeps_history else None
        """Writes ticks and gauges into the history, if one is kept."""
        self.trouble: str | None = None
        """Why the journal refuses new records, while it does."""
        self.peers = ConnectionTable(self, log)
        self.subscriptions_evicted = 0
        self.inputs_refused: Counter[tuple[str, str]] = Counter()
        """Messages and bodies that are too large, no JSON, or JSON that is not accepted, by door and code."""

    # Sessions

    def received(self, connection: Connection, data: bytes) -> None:
        """Bytes from a peer."""
        if connection.closed:
            return
        self.inputs += len(data) <= STEP_BYTES
        self._guard(connection.session, connection.session.receive, self.scheduler.now(), data)
        self.peers.touch(connection)

    def left(self, session: Session) -> None:
        """A session ended: it waits for nothing more."""
        self._waiting.pop(session.answers, None)
        self.live.left(session)

    def _guard(self, session: Session, call: Callable[..., Any], *args: object) -> Any:
        """Call for a session, which fails alone."""
        try:
            return call(*args)
        except Exception as error:
            self._fail(session, error)

    def _fail(self, session: Session, error: Exception) -> None:
        """A bug of the server. Close this peer only; the log has the trace."""
        session.closing = FAILED
        self._log("session.failed", link=session.link.no, error="".join(format_exception(error)), what=str(error))

    # What sessions call

    def authenticate(self, token: str | None) -> Principal | None:
        return self._authenticate(token)

    def wait(self, answers: GatedAnswers) -> None:
        self._waiting[answers] = answers

    def apply(self, now: Now) -> None:
        """Carry out effects until none are left."""
        machine = self.machine
        while machine.effects:
            for effect in machine.take_effects():
                if isinstance(effect, Deliver):
                    link = effect.consumer.link
                    link.session.deliver(now, effect.consumer, effect.records)
                    if self.events is not None:
                        self.events.delivered(now, effect.consumer, effect.records)
                elif isinstance(effect, Send | Steps):  # one shard, one machine: a send stays in it
                    machine.perform(now, effect)
                    continue
                elif isinstance(effect, Copy):
                    link = effect.tap.link
                    link.session.tapped(effect)
                elif isinstance(effect, Hot):
                    self._report_hot(now, effect)
                    continue
                else:
                    assert isinstance(effect, Expire)
                    link = effect.consumer.link
                    link.session.expired(effect.consumer, effect.record, effect.lease_id)
                self.peers.mark(link)
        self.schedule_turn()

    def input_refused(self, door: str, code: str) -> None:
        self.inputs_refused[door, code] += 1

    def evicted(self, consumer: Consumer) -> None:
        self.subscriptions_evicted += 1
        reason = "`limits.subscriptions_max` of this connection is reached"
        self._log("conn.evicted", link=consumer.link.no, stream=consumer.channel.name, reason=reason)

    def _report_hot(self, now: Now, hot: Hot) -> None:
        record = hot.record
        fields = {"stream": record.channel.name, "id": record.id, "attempt": record.attempt, "envelopes": hot.count}
        if self.events is not None:
            self.events.write("redelivery.hot", now=now, **fields)
        self._log("redelivery.hot", **fields, reason=describe(record), hint=HINT)

    def uptime_s(self, now: Now) -> float:
        return round((now.us - self._started.us) / 1_000_000, 3)

    def health(self, now: Now) -> dict[str, Any]:
        """What GET /health says."""
        draining = self.commit_log.draining
        return {
            "ok": not draining,
            "status": "draining" if draining else "ok",
            "version": self._version,
            "bootId": self.boot_id,
            **self._about(),
            "clients": len(self.peers),
            "uptime": self.uptime_s(now),
            "journal": {"ok": self.trouble is None, "trouble": self.trouble},
        }

    def survey(self, survey: Survey, done: Callable[..., None], session: Session | None = None) -> None:
        """Run a survey one step a turn, then call `done`, which gets the exception or None where no session fails in its place."""
        if session is None:
            self._surveys.add(survey, done)
            return

        def finish(error: Exception | None) -> None:
            if error is not None:
                self._fail(session, error)
            self._guard(session, done)
            self.peers.touch_session(session)

        self._surveys.add(survey, finish, lambda: self.peers.touch_session(session))

    # Requests that are not connections

    def when(self, gate: int, fresh: bool, call: Callable[[Refusal | None], object]) -> None:
        """Call back when batch `gate` has its outcome."""
        if gate <= self.finished:
            call(None)
            return
        self.commit_log.await_gate(gate)
        self._gates.setdefault(gate, []).append((fresh, call))
        self.schedule_turn()

    def after(self, gate: int, session: Session, call: Callable[[Now], None]) -> None:
        def decided(refusal: Refusal | None) -> None:
            if self.peers.find(session) is None or session.closing == FAILED:
                return
            self._guard(session, call, self.scheduler.now())
            self.peers.mark(session.link)
            if session.out and len(session.out[-1]) > STEP_BYTES:  # before the next is made, so that the bounds hold
                self.peers.flush()

        self.when(gate, False, decided)

    def flushed(self, call: Callable[[], None]) -> None:
        """Call back when everything requested so far is durable, answered and handed to the wires."""
        self.when(self.commit_log.gate, False, lambda refusal: self.scheduler.soon(call))

    # Turns

    def schedule_turn(self) -> None:
        """Schedule the end of this turn."""
        if not self._turning:
            self._turning = True
            self.scheduler.soon(self._turn)

    def _turn(self) -> None:
        """End of a turn: append what is new, write what is due, arm the timer."""
        self._turning = False
        for listener in self.turn_listeners:
            listener.turn()
        machine = self.machine
        machine.cost = 0
        if machine.backlog and not self.is_behind:
            self.is_behind = True
            self.scheduler.soon(self._work_off)
        batch = None if self.is_behind else self.commit_log.take_batch()
        if batch is not None:
            facts = [*batch.facts, *batch.observations] if batch.observations else batch.facts
            if self.events is not None:
                self.events.proposed(self.scheduler.now())
            self.journal.append(SHARD, EPOCH, facts, self._done)
        self.peers.flush()
        self._arm()
        if (
            self._drained is not None
            and not self.commit_log.proposed
            and not self.is_behind
            and self.machine.leased == 0
        ):
            self._end_drain()

    def _work_off(self) -> None:
        """Carry out a slice of what earlier turns have left."""
        now = self.scheduler.now()
        try:
            self.machine.work_off(now, self.apply)
        except Exception as error:  # a bug; the rest goes on, or no commit would follow
            self._log("backlog.failed", error="".join(format_exception(error)), what=str(error))
        if self.machine.backlog:
            self.scheduler.soon(self._work_off)
            return
        self.is_behind = False
        self.peers.mark_held()
        self._turn()  # now, before others add to the batch

    def _done(self, outcome: Outcome) -> None:
        """The journal has answered for the oldest batch."""
        machine = self.machine
        now = self.scheduler.now()
        batch = self.commit_log.proposed[0]
        fresh: Refusal | None = None
        whole: Refusal | None = None
        if isinstance(outcome, Committed):
            machine.committed(now, outcome.first_offset, outcome.refused, outcome.recorded_us)
            if outcome.refused is not None:
                fresh = Refusal("JournalUnavailable", outcome.refused, retry_after_ms=1_000)
            if self.log_records:
                log_facts(self._log, batch.facts)
            if self.events is not None:
                self.events.committed(now, batch, outcome.refused is not None)
        else:
            if self.events is not None:
                self.events.refused()
            machine.refused(now)
            fresh = whole = Refusal("JournalUnavailable", outcome.reason, retry_after_ms=1_000)
        self.note_trouble(None if fresh is None else fresh.message)
        self.apply(now)
        for listener in self.turn_listeners:
            listener.decided(now, batch.no, fresh, whole)
        if self.live.followed:
            self.live.changed(now)
        # Only after `apply`: it may fill the answer of a pull, which must not overtake answers of this batch.
        self.finished = batch.no
        for answers in list(self._waiting.values()):
            if not self._guard(answers.session, answers.finished, batch.no, fresh, whole):
                del self._waiting[answers]
            self.peers.mark(answers.session.link)
        for is_fresh, call in self._gates.pop(batch.no, ()):
            try:
                call(fresh if is_fresh else whole)
            except Exception as error:  # the others have their outcomes too
                self._log("commit.callback_failed", error="".join(format_exception(error)), what=str(error))
        if self.commit_log.undecided <= machine.limits.undecided_max:
            self.peers.mark_held()
        if self._ticker is not None and (
            batch.facts or any(isinstance(seen, Settle | Entry) for seen in batch.observations)
        ):
            self._ticker.expect(now)
        # If a turn is scheduled, it writes these answers in one go with its own. Otherwise write now.
        if not self._turning:
            self._turn()

    def note_trouble(self, trouble: str | None) -> None:
        """Log once when the journal refuses records, and once when it accepts them again."""
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble is not None:
            self._log("journal.refused", reason=trouble, note=refused_by(trouble))
        else:
            self._log("journal.mended")

    # Time

    def _arm(self) -> None:
        if self._timer is not None and self.machine.timers.is_quiet_until(self._timer_us):
            return
        deadline_us = self.machine.next_deadline()
        if deadline_us is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        if self._timer is not None:
            # A timer that fires too early finds nothing and arms again: cheaper than moving it at every lease.
            if self._timer_us <= deadline_us:
                return
            self._timer.cancel()
        self._timer_us = deadline_us
        self._timer = self.scheduler.at(deadline_us, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = self.scheduler.now()
        self.machine.wake(now)
        self.apply(now)
        self.schedule_turn()

    def note(self, event: str, **meta: Any) -> None:
        """Write a row about the server itself into the history, if one is kept."""
        if self._ticker is not None:
            self.machine.note(event, msgspec.json.encode(meta).decode())
            self.schedule_turn()

    # The end

    def drain(self, drained: Callable[[int], None]) -> None:
        """Stop taking work, wait for leases to settle, then close every connection.

        `drained` is called once, with the number of leases given up.
        """
        now = self.scheduler.now()
        self._drained = drained
        self.machine.drain(now)
        self.apply(now)
        self.scheduler.at(now.us + self.machine.limits.drain_ms * 1000, self._end_drain)
        self.schedule_turn()

    def _end_drain(self) -> None:
        drained = self._drained
        if drained is None:
            return
        self._drained = None
        abandoned = self.machine.leased
        self.peers.drain(Refusal("Draining", "the server is shutting down"))
        if self._ticker is not None:
            self._ticker.last()
        drained(abandoned)
