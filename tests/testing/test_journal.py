"""The simulated journal keeps the contract of the port, and its disk fails in every way that a test asks for."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.records import Fact, Record, Settle
from penstock.core.rows import Row
from penstock.journal.port import Committed, Outcome, Refused
from penstock.testing.clock import Clock
from penstock.testing.disk import Mood, SimJournal


class Disk:
    """A journal, and what it answered, kept and refused."""

    def __init__(self, seed: int = 1, mood: Mood = "well") -> None:
        self.clock = Clock()
        self.kept: list[str | None] = []
        self.refused: list[str | None] = []
        self.answers: list[tuple[str, Outcome, int]] = []
        self.journal = SimJournal(self.clock, Random(seed), self._kept, self._refused)
        self.journal.mood = mood

    def append(self, name: str, *facts: Fact) -> None:
        def done(outcome: Outcome) -> None:
            self.answers.append((name, outcome, self.clock.us))

        self.journal.append(0, 1, facts or [record(name)], done)

    @property
    def outcomes(self) -> list[tuple[str, int, str | None]]:
        """What was committed, from which offset on, and what was left out."""
        return [
            (name, outcome.first_offset, outcome.refused)
            for name, outcome, _ in self.answers
            if isinstance(outcome, Committed)
        ]

    def run(self) -> None:
        while self.clock.step():
            pass

    def _kept(self, rows: list[Row]) -> None:
        self.kept += [row.id for row in rows]

    def _refused(self, rows: list[Row]) -> None:
        self.refused += [row.id for row in rows]


def record(id_: str) -> Record:
    return Record(id_, "note", b"{}", channel=Channel("s", Policy()))


def settle(id_: str) -> Settle:
    return Settle("ack", record(id_), "sam", 1, 0)


@pytest.mark.parametrize("seed", range(5))
def test_appends_are_answered_later_and_in_order(seed: int) -> None:
    disk = Disk(seed)
    for name in "abc":
        disk.append(name, record(name), settle(name))
    assert disk.answers == [] and disk.journal.rows == []
    disk.run()
    assert disk.outcomes == [
        ("a", 0, None),
        ("b", 2, None),
        ("c", 4, None),
    ]
    assert [row.offset for row in disk.journal.rows] == list(range(6))
    assert {row.journal for row in disk.journal.rows} == {"simulated"}
    assert disk.kept == ["a", "a", "b", "b", "c", "c"]
    assert [row.offset for row in disk.journal.rows[4:]] == [4, 5]


def test_a_slow_disk_takes_longer_and_a_later_append_waits_for_it() -> None:
    disk = Disk(mood="slow")
    start_us = disk.clock.us
    disk.append("a")
    disk.journal.mood = "well"
    disk.append("b")
    disk.run()
    assert [name for name, _, _ in disk.answers] == ["a", "b"]
    assert all(20_000 <= at_us - start_us <= 600_000 for _, _, at_us in disk.answers)


def test_a_full_disk_refuses_records_and_keeps_settles() -> None:
    disk = Disk(mood="full")
    disk.append("both", record("new"), settle("old"))
    disk.append("settle", settle("older"))
    disk.run()
    assert disk.outcomes == [
        ("both", 0, "the disk is full"),
        ("settle", 1, None),
    ]
    assert (disk.kept, disk.refused) == (["old", "older"], ["new"])


def test_a_failing_disk_refuses_whole_appends() -> None:
    disk = Disk(mood="failing")
    names = [str(number) for number in range(40)]
    for name in names:
        disk.append(name, record(name), settle(name))
    disk.run()
    refused = [name for name, outcome, _ in disk.answers if isinstance(outcome, Refused)]
    assert 0 < len(refused) < len(names)
    assert disk.refused == [name for name in refused for _ in range(2)]
    assert disk.kept == [name for name in names if name not in refused for _ in range(2)]


def test_a_crash_answers_nothing_and_keeps_a_prefix() -> None:
    kept: set[int] = set()
    for seed in range(30):
        disk = Disk(seed)
        for name in "abc":
            disk.append(name)
        disk.journal.crash()
        disk.run()
        assert disk.answers == []
        assert disk.kept == ["a", "b", "c"][: len(disk.kept)]
        assert [row.id for row in disk.journal.rows] == disk.kept
        kept.add(len(disk.kept))
    assert kept == {0, 1, 2, 3}


def test_the_journal_goes_on_after_a_crash() -> None:
    disk = Disk()
    disk.append("lost")
    disk.journal.crash()
    first = len(disk.journal.rows)
    disk.append("later")
    disk.run()
    assert disk.outcomes == [("later", first, None)]


def test_recorded_times_never_decrease() -> None:
    disk = Disk()
    disk.append("a")
    disk.run()
    disk.clock.step_wall(-3_600_000_000)
    disk.append("b")
    disk.run()
    first, second = (row.recorded_at for row in disk.journal.rows)
    assert first == second > disk.clock.now().wall_us
