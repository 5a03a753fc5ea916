"""The commit log: facts of every protocol on their way to one journal, in batches that become durable together.

The queue, the spaces and the relay add to one log. At the end of a turn the runtime takes the open batch and proposes it to the journal;
outcomes arrive in the same order. `gate` is the number of the open batch: an answer that depends on a fact waits for that number.

Facts gate answers and are refused when the journal cannot keep them. Observations only describe; beyond a bound they are
counted instead of kept. The log knows no clock, no journal medium and no protocol. Each call is O(1).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.links import Session
from penstock.core.records import Entry, Fact, Note, Record, Settle

Observation = Settle | Note | Entry


class Batch(msgspec.Struct, eq=False):
    """Facts that become durable together."""

    no: int
    facts: list[Fact]
    observations: list[Observation]
    observed_bytes: int = 0
    """Bytes that its observations carry."""


class GatedAnswers(Protocol):
    """Answers of a session that wait for batches."""

    session: Session

    def finished(self, no: int, fresh: Refusal | None, whole: Refusal | None) -> bool:
        """Batch `no` has its outcome: `fresh` refuses new records, `whole` everything. Returns whether answers still wait."""


@dataclass(slots=True, eq=False)
class CommitLog:
    """The open batch and those that the journal has not answered for."""

    limits: Limits
    facts: list[Fact] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    draining: bool = False
    """Whether the server shuts down: peers add no facts any more, except settles."""
    gate: int = 1
    """Number of the open batch."""
    decided: int = 0
    """Number of the newest batch whose outcome is known."""
    is_awaited: bool = False
    """Whether an answer waits for the open batch even if it stays empty."""
    proposed: deque[Batch] = field(default_factory=deque)
    """Batches that the journal has not answered for, oldest first."""
    undecided: int = 0
    """Facts in proposed batches."""
    observed: int = 0
    """Observations in the open batch and in proposed ones."""
    observed_bytes: int = 0
    """Bytes that those carry."""
    observations_dropped: int = 0
    _open_bytes: int = 0

    def observe(self, event: str, record: Record, peer: str | None) -> None:
        """Note what happened to a record."""
        self.observe_settle(Settle(event, record, peer, record.attempt, record.first_wall_us))

    def observe_settle(self, settle: Settle) -> None:
        """Note an observation, or count it as dropped at the bound."""
        if self.observed >= self.limits.observations_max:
            self.observations_dropped += 1
            return
        self.observed += 1
        self.observations.append(settle)

    def observe_entry(self, entry: Entry) -> None:
        """Note an observation with a body, which is bounded in bytes too."""
        limits = self.limits
        size = 0 if entry.body is None else len(entry.body)
        if self.observed >= limits.observations_max or self.observed_bytes + size > limits.observations_bytes_max:
            self.observations_dropped += 1
            return
        self.observed += 1
        self.observed_bytes += size
        self._open_bytes += size
        self.observations.append(entry)

    def note(self, note: Note) -> None:
        """Note what readers of the history rely on: never dropped, because the server itself writes few of them."""
        self.observed += 1
        self.observations.append(note)

    def await_gate(self, gate: int) -> None:
        """Have the open batch proposed even if it stays empty, if `gate` is its number."""
        if gate == self.gate:
            self.is_awaited = True

    def take_batch(self) -> Batch | None:
        """Close the open batch, if it holds anything or an answer waits for it."""
        if not self.facts and not self.is_awaited and not self.observations:
            return None
        batch = Batch(self.gate, self.facts, self.observations, self._open_bytes)
        self.facts = []
        self.observations = []
        self._open_bytes = 0
        self.is_awaited = False
        self.gate += 1
        self.proposed.append(batch)
        self.undecided += len(batch.facts)
        return batch

    def decide(self) -> Batch:
        """Retire the oldest proposed batch: its outcome is known."""
        batch = self.proposed.popleft()
        self.decided = batch.no
        self.observed -= len(batch.observations)
        self.observed_bytes -= batch.observed_bytes
        self.undecided -= len(batch.facts)
        return batch
