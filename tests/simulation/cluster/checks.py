"""What must hold of a cluster's logs, judged from what the servers committed and from what clients were answered.

The rule that makes rows of messages is written down here a second time, so that a fault in the reader cannot hide itself.
"""

from __future__ import annotations

from bisect import bisect

from penstock.core.cluster.messages import LogMessage
from penstock.journal.columns import SCHEMA, unpack_run
from penstock.journal.segments import payloads
from tests.simulation.queue.checks import Broken
from tests.simulation.queue.history import TERMINAL

EPOCHS = "epochs never fall, numbers are dense, and every message continues the one before"
DURABLE = "nothing acknowledged is lost, and no confirmed settle returns"
REFUSED = "what was refused never counts"
SPOOL = "a spool is a prefix of its log"
PURGE = "a log is purged only behind a stored live file"
LEASE = "no two nodes serve a shard at the same time"
HALT = "a sound log halts no shard"
CALM = "when calm, each shard has one owner and every node agrees on it"
OWNED = "when calm, no shard is without an owner for long"
MOVES = "a shard moves one at a time, and only when its nodes have been the same for a while or an operator wants it"
TRUE = "what one node has answered is true at every other"
ONCE = "a record begins once and ends once, whoever owns its shard"

STATE_EVERY = 100
Key = tuple[str, str, str]
"""Event and id of a row, and which request it came with."""


class LogModel:
    """The rows of one shard's log, as its committed messages define them."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.rows: list[Key] = []
        self.live: set[str] = set()
        self.kept: set[str] = set()
        """Every record that ever was."""
        self._states: list[tuple[int, frozenset[str]]] = []
        """What was live at some offsets, to find it at others without counting from the first row."""
        self._last: LogMessage | None = None
        self._floor = 0
        """The last epoch of the stream before, if this one was written by a repair."""
        self._parts: list[LogMessage] = []
        self.refused: set[Key] = set()
        self.acknowledged: set[str] = set()
        self.confirmed: set[str] = set()
        self.settled: set[str] = set()
        self.seen: set[Key] = set()
        self.commits = 0
        self.unfinished = 0

    def committed(self, seq: int, message: LogMessage) -> None:
        """The servers committed a message."""
        last = self._last
        if last is not None and message.previous != last.check:
            raise Broken(EPOCHS, f"{self.stream}: message {seq} ({message.header}) does not continue {last.header}")
        if last is None or message.epoch > last.epoch:
            if message.kind != "epoch" or message.epoch <= self._floor:
                raise Broken(EPOCHS, f"{self.stream}: message {seq} ({message.header}) begins no epoch")
            self.unfinished += bool(self._parts)
            self._parts = []
        else:
            part = last.part % last.parts + 1
            expected = (last.epoch, last.number + (part == 1), part)
            if (message.epoch, message.number, message.part) != expected:
                raise Broken(EPOCHS, f"{self.stream}: message {seq} ({message.header}) follows {last.header}")
        self._last = message
        self._parts.append(message)
        if message.part == message.parts:
            self._apply(b"".join(part.payload for part in self._parts) if message.kind == "rows" else b"")
            self._parts = []

    def _apply(self, frame: bytes) -> None:
        self.commits += bool(frame)
        for payload, _ in payloads(frame, 0):
            for row in unpack_run(payload, SCHEMA).rows:
                self._row((row[1], row[4] or "", row[8] or ""))

    def _row(self, key: Key) -> None:
        if key in self.refused:
            raise Broken(REFUSED, f"{self.stream}: {key} was refused, and is row {len(self.rows)}")
        if len(self.rows) % STATE_EVERY == 0:
            self._states.append((len(self.rows), frozenset(self.live)))
        self.rows.append(key)
        self.seen.add(key)
        event, name, _ = key
        if event == "enqueue":
            if name in self.kept:
                raise Broken(ONCE, f"{self.stream}: row {len(self.rows) - 1} makes {name} a second time")
            self.kept.add(name)
            self.live.add(name)
        elif event in TERMINAL:
            if name not in self.live:
                raise Broken(ONCE, f"{self.stream}: row {len(self.rows) - 1} settles {name}, which is not there")
            self.live.remove(name)
            self.settled.add(name)

    def begin_again(self, stream: str, offset: int, *, was_used: bool) -> None:
        """A repair has made a new stream that begins behind this row. What was acknowledged must be before it.

        The stream before it `was_used`, or was made by a repair that did not come to its end.
        """
        rows, self.rows = self.rows[:offset], []
        self._states.clear()
        for names in (self.live, self.kept, self.settled, self.seen):
            names.clear()
        if was_used and self._last is not None:
            self._floor = self._last.epoch
        self._last, self._parts = None, []
        for key in rows:
            self._row(key)
        if not (self.kept >= self.acknowledged and self.settled >= self.confirmed):
            raise Broken(DURABLE, f"{stream}: a repair from row {offset} has lost what was acknowledged")
        self.stream = stream

    def answered(self, keys: list[Key], *, is_kept: bool) -> None:
        """Clients were answered."""
        for key in keys:
            if not is_kept:
                if key in self.seen:
                    raise Broken(REFUSED, f"{self.stream}: {key} was refused, and is in the log")
                self.refused.add(key)
            elif key not in self.seen:
                raise Broken(DURABLE, f"{self.stream}: {key} was acknowledged, and is not in the log")
            elif key[0] == "enqueue":
                self.acknowledged.add(key[1])
            else:
                self.confirmed.add(key[1])

    def check_served(self, node: str, live: set[str]) -> None:
        """A node serves these records. One that owns an epoch which is already over may have fewer, and serves none."""
        lost = self.acknowledged - self.settled - live
        if lost:
            raise Broken(DURABLE, f"{self.stream}: {sorted(lost)[:3]} were acknowledged, and {node} does not have them")
        back = self.confirmed & live
        if back:
            raise Broken(DURABLE, f"{self.stream}: {sorted(back)[:3]} were settled, and {node} has them again")

    def state_at(self, offset: int) -> set[str]:
        """What was live before the row with this offset."""
        number = bisect(self._states, offset, key=lambda state: state[0])
        start, state = self._states[number - 1] if number else (0, frozenset[str]())
        live = set(state)
        for event, name, _ in self.rows[start:offset]:
            if event == "enqueue":
                live.add(name)
            elif event in TERMINAL:
                live.discard(name)
        return live

    def check_taken(self, node: str, offset: int, live: set[str]) -> None:
        """A node has read up to this row, published its marker and will serve these records."""
        if offset > len(self.rows) or live != self.state_at(offset):
            raise Broken(TRUE, f"{self.stream}: {node} has {len(live)} records at row {offset}, and the log has others")

    def check_spool(self, node: str, first: int, rows: list[Key], state: set[str]) -> None:
        """A spool has these rows from an offset on, behind a state."""
        if state != self.state_at(first):
            raise Broken(SPOOL, f"{self.stream}: {node} has another state at row {first} than the log")
        if self.rows[first : first + len(rows)] != rows:
            raise Broken(
                SPOOL, f"{self.stream}: {node} has {len(rows)} rows from {first} that are not those of the log"
            )
