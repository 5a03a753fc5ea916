"""The reads of one Control v1 connection: stats, metrics, snapshot, peek, where, explain and pull.

A record is visible when it is durable. So a read that follows an enqueue of its connection waits for that commit, and sees what every
earlier request did. Its answer keeps its place among the others.
"""

from __future__ import annotations

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Consumer
from penstock.core.queue.settle import Denied
from penstock.core.records import Record
from penstock.dialects.courier.operations import queries, views
from penstock.dialects.courier.operations.outcomes import Outcome
from penstock.dialects.courier.operations.queries import MetricsSurvey, WhereSurvey
from penstock.dialects.courier.sessions.answers import Answers, RuntimePort, Slot
from penstock.dialects.courier.sessions.control import frames
from penstock.dialects.courier.sessions.control.runs import error_line, ok_line
from penstock.dialects.courier.sessions.pull import check_pull, to_pull_body

_QueryFrame = frames.StatsFrame | frames.PeekFrame | frames.SnapshotFrame | frames.ExplainFrame
ReadFrame = _QueryFrame | frames.MetricsFrame | frames.WhereFrame | frames.PullFrame


class Reads(msgspec.Struct, eq=False):
    """Answers reads, each in a slot that is filled once the requests before it are durable."""

    _runtime: RuntimePort
    _answers: Answers

    def read(self, now: Now, frame: ReadFrame) -> None:
        """Answer now, or after the commit that an earlier request waits for."""
        slot = self._answers.slot()
        gate = self._answers.gate
        if gate <= self._runtime.finished:
            self._evaluate(now, frame, slot)
        else:
            self._runtime.after(gate, self._answers.session, lambda then: self._evaluate(then, frame, slot))

    def _evaluate(self, now: Now, frame: ReadFrame, slot: Slot) -> None:
        machine, principal = self._runtime.machine, self._answers.session.link.principal
        match frame:
            case frames.PullFrame():
                self._pull(now, frame, slot)
                return
            case frames.MetricsFrame():
                self._survey(frame.req_id, MetricsSurvey(machine, principal), slot)
                return
            case frames.WhereFrame():
                self._survey(frame.req_id, WhereSurvey(machine, principal, frame.id), slot)
                return
            case frames.StatsFrame():
                outcome = queries.stats(machine, now, principal, frame.stream)
            case frames.PeekFrame():
                outcome = queries.peek(machine, now, principal, frame)
            case frames.SnapshotFrame():
                outcome = views.snapshot(machine, now, principal, frame.view, frame.addr)
            case frames.ExplainFrame():
                outcome = queries.explain(machine, now, principal, frame.stream)
        self._fill(slot, frame.req_id, outcome)

    def _fill(self, slot: Slot, req_id: str | int | None, outcome: Outcome | bytes) -> None:
        if isinstance(outcome, Refusal | Denied):
            line = error_line(req_id, outcome.refusal if isinstance(outcome, Denied) else outcome)
        elif req_id is None:
            line = b""
        else:
            line = ok_line(req_id, msgspec.Raw(outcome) if isinstance(outcome, bytes) else outcome.value())
        self._answers.fill(slot, line)

    def _survey(self, req_id: str | int | None, survey: MetricsSurvey | WhereSurvey, slot: Slot) -> None:
        """Answer when every stream was visited."""
        self._runtime.survey(survey, lambda: self._fill(slot, req_id, survey.body()), self._answers.session)

    def _pull(self, now: Now, frame: frames.PullFrame, slot: Slot) -> None:
        link = self._answers.session.link
        req_id = "pull" if frame.req_id is None else frame.req_id
        lease_us = check_pull(self._runtime.machine, link.principal, frame)
        consumer: Consumer | Refusal
        if isinstance(lease_us, Refusal):
            consumer = lease_us
        elif not link.open:
            consumer = Refusal("Draining", "the connection is being closed")
        else:
            stream = link.principal.to_channel(frame.stream)
            consumer = self._runtime.machine.pull(now, link, stream, frame.max, frame.wait_ms * 1000, lease_us)
        if isinstance(consumer, Refusal):
            self._answers.fill(slot, error_line(frame.req_id, consumer))
            return
        consumer.tag = (slot, req_id)
        self._runtime.apply(now)

    def pulled(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        """A pull has its records, or its wait is over."""
        slot, req_id = consumer.tag
        self._answers.fill(slot, ok_line(req_id, to_pull_body(self._runtime.machine, now, records)))
