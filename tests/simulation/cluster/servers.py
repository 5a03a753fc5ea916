"""Three simulated servers with replicated streams: a majority commits, leaders change, minorities go on for a while.

A message is committed when two of the three logs have it. A leader that is cut off believes in itself for `BELIEF_US`: it answers reads from
what it knew, and what it appends is committed only if it is heard again before the others have chosen. A new leader has the newest log of
those that can see each other, so an append whose author was not answered may be committed late, or never. `lose_tail` is what a power cut
does to servers that do not sync each write.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.core.cluster.messages import LogMessage
from penstock.core.cluster.writer import Found, Full, Kept, Passed, Publish, Published, Seek
from penstock.testing.clock import Clock

SERVERS = 3
MAJORITY = 2
BELIEF_US = 10_000_000
ELECTION_US = (1_500_000, 6_000_000)
REPEAT_US = 200_000
OVERHEAD = 256
"""Bytes of a message besides its payload."""
BATCH = 8
"""Messages in one answer of a read."""


class Replica:
    """One server's copy of a stream."""

    def __init__(self) -> None:
        self.log: list[tuple[int, LogMessage]] = []
        """Each message with the term in which a leader appended it."""
        self.committed = 0
        self.term = 0
        self.leads_until: int | None = None
        """Until when it believes to lead, without a majority that confirms it."""

    def copy(self, log: list[tuple[int, LogMessage]]) -> None:
        """Have the same log as a leader. Logs with the same last message are the same up to it."""
        count = len(self.log)
        if count and (count > len(log) or self.log[-1] is not log[count - 1]):
            self.log = list(log)
        else:
            self.log += log[count:]


class SimStream:
    """One stream on three servers."""

    def __init__(self, servers: SimServers, name: str, bytes_max: int) -> None:
        self.name = name
        self.servers = servers
        self.bytes_max = bytes_max
        self.replicas = [Replica() for _ in range(SERVERS)]
        self.first = 1
        self.truth: list[LogMessage] = []
        """Every message that was ever committed."""
        self._sizes = [0]
        """Bytes of the messages up to each one of these."""
        self.on_commit: Callable[[int, LogMessage], None] = lambda seq, message: None
        self.on_purge: Callable[[int], None] = lambda through: None
        self._is_electing = False
        self.elect()

    def leader(self, home: int) -> int | None:
        """The server that one who is connected to `home` takes for the leader."""
        now_us, seen = self.servers.clock.us, self.servers.peers(home)
        leaders = [i for i in seen if (until := self.replicas[i].leads_until) is not None and until > now_us]
        return max(leaders, key=lambda i: self.replicas[i].term, default=None)

    def check(self) -> None:
        """Links or servers have changed: leaders notice it, and those without one elect."""
        for index, replica in enumerate(self.replicas):
            if replica.leads_until is None:
                continue
            peers = self.servers.peers(index)
            if not peers or any(self.replicas[i].term > replica.term for i in peers):
                replica.leads_until = None
            elif len(peers) >= MAJORITY:
                self._confirm(index)
        self._call_election()

    def _confirm(self, index: int) -> None:
        """A leader replicates its log to all it sees, and commits what a majority has."""
        leader = self.replicas[index]
        peers = self.servers.peers(index)
        for i in peers:
            self.replicas[i].copy(leader.log)
            self.replicas[i].term = leader.term
            self.replicas[i].leads_until = None
        leader.leads_until = 1 << 60
        leader.committed = len(leader.log)
        for i in peers:
            self.replicas[i].committed = leader.committed
        kept = len(self.truth)
        assert not kept or leader.log[kept - 1][1] is self.truth[-1], "the servers keep what they commit"
        for seq in range(kept + 1, leader.committed + 1):
            message = leader.log[seq - 1][1]
            self.truth.append(message)
            self._sizes.append(self._sizes[-1] + len(message.payload) + OVERHEAD)
            self.on_commit(seq, message)

    def _call_election(self) -> None:
        has_leader = any(
            replica.leads_until is not None and len(self.servers.peers(i)) >= MAJORITY
            for i, replica in enumerate(self.replicas)
        )
        if self._is_electing or has_leader:
            return
        self._is_electing = True
        for index, replica in enumerate(self.replicas):
            if replica.leads_until is not None and len(self.servers.peers(index)) < MAJORITY:
                replica.leads_until = min(replica.leads_until, self.servers.clock.us + BELIEF_US)
        self.servers.clock.after(self.servers.dice.randint(*ELECTION_US), self.elect)

    def elect(self) -> None:
        """Those that see a majority choose the one with the newest log."""
        self._is_electing = False
        group = max((self.servers.peers(i) for i in range(SERVERS)), key=len)
        if len(group) < MAJORITY:
            return
        newest = max(group, key=lambda i: (self._newness(i), self.servers.dice.random()))
        for i in group:
            self.replicas[i].leads_until = None
        self.replicas[newest].term = max(replica.term for replica in self.replicas) + 1
        self.replicas[newest].leads_until = 1 << 60
        self._confirm(newest)

    def _newness(self, index: int) -> tuple[int, int]:
        log = self.replicas[index].log
        return (log[-1][0] if log else 0, len(log))

    def step_down(self) -> None:
        """The leader gives up: an operator, or a rolling upgrade."""
        for replica in self.replicas:
            replica.leads_until = None
        self._call_election()

    def publish(self, home: int, step: Publish, answer: Callable[[Published], None]) -> None:
        """A message arrives at the servers. There may be no answer, or a late one."""
        index = self.leader(home)
        if index is None:
            return
        replica = self.replicas[index]
        if self.used + len(step.message.payload) + OVERHEAD > self.bytes_max:
            answer(Full())
        elif len(replica.log) != step.after:
            answer(Passed())
        else:
            replica.log.append((replica.term, step.message))
            self._await_commit(index, replica.term, len(replica.log), answer)

    def _await_commit(self, index: int, term: int, seq: int, answer: Callable[[Published], None]) -> None:
        replica = self.replicas[index]
        if replica.term != term or replica.leads_until is None or len(replica.log) < seq:
            return  # it does not lead any more: its author learns nothing
        if len(self.servers.peers(index)) >= MAJORITY:
            self._confirm(index)
            answer(Kept(seq))
        else:
            self.servers.clock.after(REPEAT_US, lambda: self._await_commit(index, term, seq, answer))

    def read(self, home: int, step: Seek, answer: Callable[[Found], None]) -> None:
        """The leader answers from what it knows as committed."""
        index = self.leader(home)
        if index is not None:
            self.answer_read(self.replicas[index], self.replicas[index].committed, step, answer)

    def answer_read(self, replica: Replica, last: int, step: Seek, answer: Callable[[Found], None]) -> None:
        begin = max(step.after, self.first - 1)
        found: list[tuple[int, LogMessage | None]] = [
            (seq, replica.log[seq - 1][1]) for seq in range(begin + 1, min(last, begin + BATCH) + 1)
        ]
        answer(Found(found, last, self.first))

    def forget(self, home: int, through: int, answer: Callable[[bool], None]) -> None:
        index = self.leader(home)
        if index is not None and len(self.servers.peers(index)) >= MAJORITY:
            self.on_purge(through)
            self.first = max(self.first, min(through, self.replicas[index].committed) + 1)
            answer(True)

    @property
    def used(self) -> int:
        return self._sizes[-1] - self._sizes[self.first - 1]

    def lose_unsynced(self, index: int, count: int) -> None:
        """One server comes back without its newest messages. The others have them: what a majority loses is lost."""
        others = [replica for i, replica in enumerate(self.replicas) if i != index]
        replica = self.replicas[index]
        keep = max(len(replica.log) - count, self.first - 1, 0)
        if all(len(other.log) >= len(self.truth) for other in others):
            del replica.log[keep:]
            replica.committed = min(replica.committed, keep)

    def lose_tail(self, count: int) -> None:
        """All servers lose what they acknowledged last."""
        keep = max(len(self.truth) - count, self.first - 1)
        for replica in self.replicas:
            del replica.log[keep:]
            replica.committed = min(replica.committed, keep)
        del self.truth[keep:]
        del self._sizes[keep + 1 :]


class SimServers:
    """The servers: which of them run, and which of them see each other."""

    def __init__(self, clock: Clock, dice: Random) -> None:
        self.clock = clock
        self.dice = dice
        self.is_up = [True] * SERVERS
        self.apart: set[int] = set()
        """Servers that are cut off from the others."""
        self.streams: list[SimStream] = []

    def peers(self, index: int) -> list[int]:
        """The servers that a server sees, itself included."""
        if not self.is_up[index]:
            return []
        if index in self.apart:
            return [index]
        return [i for i in range(SERVERS) if self.is_up[i] and i not in self.apart]

    def change(self, up: list[bool], apart: set[int]) -> None:
        self.is_up, self.apart = up, apart
        for stream in self.streams:
            for index, is_up in enumerate(up):
                if not is_up:
                    stream.replicas[index].leads_until = None
            stream.check()
