"""The log on a lying disk: acknowledged rows are there once and in order, rejected rows never.

Every seed runs one history: a log is written, the power fails at some operation, the directory is opened again, and so on. To replay a
failing seed, run the test with `-k` and its number.
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from penstock.core.records import Fact
from penstock.core.rows import Row
from penstock.journal.log import FULL_BYTES, MARGIN_BYTES, RESERVE, RESERVE_BYTES, Log, Sync
from penstock.journal.open_and_repair import Opened
from penstock.journal.port import Committed, Outcome, Refused
from penstock.journal.segments import DamageError
from penstock.testing.disk import LyingDisk, PowerLossError
from tests.journal.histories import HOUR_US, JOURNAL, START_US, ack, kept, label, put, rebuilt, reopened
from tests.tiers import first_of

Label = tuple[str, str | None]
LIVES = 5
SEEDS_A_TEST = 20


class LogHistory:
    """One journal through several lives, and the outcomes it reported."""

    def __init__(self, seed: int, sync: Sync = "commit") -> None:
        self.dice = Random(seed * 2 + 1)
        self.sync = sync
        self.disk = LyingDisk(seed)
        self.promised: list[Label] = []
        """Facts that were committed, in order; an unanswered frame joins them once it was seen."""
        self.unanswered: list[Fact] = []
        self.refused: set[Label] = set()
        self.doubtful: set[Label] = set()
        """Refused by a disk that failed again while that was made durable: until the next commit it may be there."""
        self.eio = 0.0
        self.number = 0
        self.wall_us = START_US
        self.epochs: list[int] = []
        self.written_epoch = 0
        self.crashes = 0

    def live(self, steps: int) -> None:
        """Open, check, write until the power goes."""
        disk = self.disk
        disk.steps_left = steps
        try:
            opened, _, rows = rebuilt(disk, sync=self.sync)
            self.check(rows, opened)
            log = opened.log()
            self.written_epoch = opened.identity.epoch
            disk.eio = self.eio
            while True:
                self.write(log)
        except PowerLossError:
            self.crashes += 1
        self.disk = disk.crash()

    def write(self, log: Log) -> None:
        if self.dice.random() < 0.1:
            log.rotate()
        if self.dice.random() < 0.1:
            self.wall_us -= HOUR_US
        self.wall_us += self.dice.randint(0, 2_000_000)
        groups: list[list[Fact]] = []
        for _ in range(self.dice.randint(1, 3)):
            facts: list[Fact] = []
            for _ in range(self.dice.randint(0, 3)):
                self.number += 1
                body = self.dice.randbytes(self.dice.choice((2, 40, 3000)))
                make = put if self.dice.random() < 0.6 else ack
                facts.append(put(f"e{self.number}", body) if make is put else ack(f"e{self.number}"))
            groups.append(facts)
        self.unanswered = [fact for group in groups for fact in group]
        failures = self.disk.failures
        outcomes = log.commit(groups, self.wall_us)
        self.unanswered = []
        assert len(outcomes) == len(groups)
        for group, outcome in zip(groups, outcomes, strict=True):
            self.note(group, outcome, self.disk.failures - failures)

    def note(self, group: list[Fact], outcome: Outcome, failures: int) -> None:
        kept = group
        if isinstance(outcome, Refused):
            kept = []
        elif outcome.refused is not None:
            kept = [fact for fact in group if label(fact)[0] == "ack"]
        gone = {label(fact) for fact in group} - {label(fact) for fact in kept}
        if failures > 1:
            self.doubtful |= gone
        else:
            self.refused |= gone
        if kept:
            assert isinstance(outcome, Committed)
            assert outcome.first_offset == len(self.promised)
            self.promised += [label(fact) for fact in kept]
            self.refused |= self.doubtful
            self.doubtful = set()

    def check(self, rows: list[Row], opened: Opened) -> None:
        found = [label(row) for row in rows]
        assert [row.offset for row in rows] == list(range(len(rows)))
        assert all(row.journal == JOURNAL for row in rows)
        times = [row.recorded_at for row in rows]
        assert times == sorted(times)
        assert opened.position.offset == len(rows)
        assert len(set(found)) == len(found)
        assert not self.refused & set(found)
        self.epochs.append(opened.identity.epoch)
        assert [row.epoch for row in rows] == sorted(row.epoch for row in rows)
        if self.sync != "commit":
            # An unsynced tail may go, from its end; nothing else may.
            assert found[: len(self.promised)] == self.promised[: len(found)]
            if len(found) < len(self.promised):
                assert opened.identity.epoch > self.written_epoch, "readers could not tell that rows are gone"
        else:
            assert found[: len(self.promised)] == self.promised
        extra = found[len(self.promised) :]
        whole = [label(fact) for fact in self.unanswered]
        settles = [one for one in whole if one[0] == "ack"]
        if not set(extra) <= self.doubtful:
            assert extra in (whole, settles), "an unanswered frame is there whole or not at all"
        self.promised = found
        # From now on it is history or it never was.
        self.refused |= ({*whole, *self.doubtful}) - set(found)
        self.unanswered = []
        self.doubtful = set()


def run_histories(first: int, sync: Sync = "commit", eio: float = 0.0) -> list[LogHistory]:
    """Stories of many seeds, each lived to its end and opened once more."""
    histories = []
    for seed in range(first, first + SEEDS_A_TEST):
        history = LogHistory(seed, sync)
        history.eio = eio
        try:
            for _ in range(LIVES):
                history.live(history.dice.randint(1, 70))
            history.disk.steps_left = None
            opened, _, rows = rebuilt(history.disk, sync=sync)
            history.check(rows, opened)
        except BaseException as error:
            error.add_note(f"seed {seed}, sync {sync}, eio {eio}")
            raise
        histories.append(history)
    return histories


@pytest.mark.promise("Journal", "an acknowledged row is durable, even on a disk that loses unsynced data")
@pytest.mark.parametrize("first", first_of(range(0, 1000, SEEDS_A_TEST), 2))
def test_acknowledged_is_there_once_and_in_order_after_any_crash(first: int) -> None:
    histories = run_histories(first)
    assert sum(len(history.promised) for history in histories) > 20 * len(histories)
    assert all(history.crashes == LIVES for history in histories)
    assert all(set(history.epochs) == {0} for history in histories), "nothing was lost, so no new epoch"


@pytest.mark.parametrize("eio", [0.02, 0.2, 0.6])
@pytest.mark.parametrize("first", first_of(range(1000, 1500, SEEDS_A_TEST), 1))
def test_a_disk_that_fails_now_and_then_loses_and_invents_nothing(first: int, eio: float) -> None:
    histories = run_histories(first, eio=eio)
    assert any(history.refused for history in histories)
    assert any(history.promised for history in histories)


@pytest.mark.promise("Journal", "`sync: commit`, `interval` and `off` behave as documented")
@pytest.mark.parametrize("sync", ["interval", "off"])
@pytest.mark.parametrize("first", first_of(range(2000, 2100, SEEDS_A_TEST), 1))
def test_without_a_sync_each_commit_only_the_end_may_be_lost_and_readers_can_tell(first: int, sync: Sync) -> None:
    histories = run_histories(first, sync)
    assert any(history.refused for history in histories), "some crash must have lost something"
    assert all(history.epochs == sorted(history.epochs) for history in histories)


def write_on(history: LogHistory, log: Log) -> None:
    while True:
        history.write(log)


def test_a_disk_that_only_claims_to_sync_loses_from_the_end_or_is_found_out() -> None:
    """No promise can be kept on it, but the rows it returns are the right ones."""
    lost = reported = 0
    for seed in range(3000, 3200):
        history = LogHistory(seed)
        history.disk.lost_syncs = 0.3
        disk = history.disk
        disk.steps_left = history.dice.randint(20, 60)
        log = rebuilt(disk)[0].log()
        with pytest.raises(PowerLossError):
            write_on(history, log)
        try:
            found = [label(row) for row in rebuilt(disk.crash())[2]]
        except DamageError:
            reported += 1
            continue
        everything = history.promised + [label(fact) for fact in history.unanswered]
        assert found == everything[: len(found)], seed
        lost += len(found) < len(history.promised)
    assert lost > 10 and reported > 10


def test_equal_seeds_are_equal_stories() -> None:
    first, second = run_histories(5, eio=0.1), run_histories(5, eio=0.1)
    assert [(s.promised, s.refused, s.disk.seed) for s in first] == [
        (s.promised, s.refused, s.disk.seed) for s in second
    ]


# Power lost at each operation of one fixed run


def scripted(disk: LyingDisk, reported: list[Label]) -> None:
    """A short run with everything in it: a start, commits, a rotation, a failed sync, a clean end."""
    opened, _, rows = rebuilt(disk)
    reported[:] = [label(row) for row in rows]
    log = opened.log()
    for n in range(3):
        _commit_pair(reported, log, f"a{n}")
    log.rotate()
    _commit_pair(reported, log, "b")
    disk.failing, disk.eio = ("sync",), 1.0
    assert isinstance(log.commit([[put("never")]], START_US)[0], Committed)
    disk.eio = 0.0
    _commit_pair(reported, log, "c")
    log.close()
    opened.end()


def _commit_pair(reported: list[Label], log: Log, id_: str) -> None:
    (outcome,) = log.commit([[put(id_), ack(id_)]], START_US)
    assert outcome == kept(len(reported))
    reported += [("enqueue", id_), ("ack", id_)]


@pytest.mark.promise("Journal", "an acknowledged row is durable, even on a disk that loses unsynced data")
def test_the_power_may_go_at_any_operation() -> None:
    whole = LyingDisk(0)
    scripted(whole, [])
    assert whole.steps > 40
    for steps in range(whole.steps):
        for seed in range(8):
            disk = LyingDisk(seed)
            disk.steps_left = steps
            reported: list[Label] = []
            with pytest.raises(PowerLossError):
                scripted(disk, reported)
            after = disk.crash()
            _, _, rows = rebuilt(after)
            found = [label(row) for row in rows]
            assert found[: len(reported)] == reported, (steps, seed)
            assert len(found) - len(reported) in (0, 2) or found[len(reported) :] == [("enqueue", "never")], (
                steps,
                seed,
            )
            assert [row.offset for row in rows] == list(range(len(rows)))
            # And the life after that goes on as if nothing had been.
            again, _ = reopened(after)
            assert again.commit([[put("next")]], START_US) == [kept(len(found))]


def test_what_was_refused_stays_away_though_the_next_segment_is_lost_twice() -> None:
    """A frame that a failing disk kept lies behind the end of its segment until recovery cuts it off."""
    disk = LyingDisk(3)
    log, _ = reopened(disk)
    log.commit([[put("kept")]], START_US)
    disk.failing, disk.eio = ("sync", "truncate"), 1.0
    assert log.commit([[put("refused")]], START_US)[0] != kept(1)
    disk.eio = 0.0
    (segment,) = [name for name in disk.names() if name.startswith("log-")]
    # The next segment was begun, its name is durable, its header is not.
    disk.open("log-00000000000000000001.seg")
    disk.sync_names()
    assert [row.id for row in rebuilt(disk)[2]] == ["kept"]
    assert [name for name in disk.names() if name.startswith("log-")] == [segment]
    for _ in range(20):
        assert [row.id for row in rebuilt(disk.crash())[2]] == ["kept"]


class OnceDisk(LyingDisk):
    """Fails once when `eio` says so, and is well again."""

    def fails(self, operation: str) -> bool:
        return self.failures == 0 and super().fails(operation)


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_what_one_failure_refused_stays_away_though_the_power_goes_at_once(operation: str) -> None:
    for seed in range(60):
        disk = OnceDisk(seed)
        log, _ = reopened(disk)
        log.commit([[put("kept")]], START_US)
        disk.failing, disk.eio = (operation,), 1.0
        assert log.commit([[put("refused")]], START_US) == [kept(1, "the disk reports an error")]
        assert disk.failures == 1
        assert [row.id for row in rebuilt(disk.crash())[2]] == ["kept"], seed


# A full disk, a failing disk


@pytest.mark.promise(
    "Journal", "on a full disk the server rejects envelopes, accepts settles, and recovers without help"
)
def test_a_full_disk_refuses_records_takes_settles_and_heals_by_itself() -> None:
    disk = LyingDisk(1, space=RESERVE_BYTES + 200_000)
    log, _ = reopened(disk)
    count = 0
    while (outcome := log.commit([[put(f"r{count}", bytes(9000)), ack(f"s{count}")]], START_US)[0]) and (
        isinstance(outcome, Committed) and outcome.refused is None
    ):
        count += 1
    assert 5 < count < 30
    assert isinstance(outcome, Committed) and outcome.refused == "the disk is full" == log.trouble
    assert RESERVE not in disk.names(), "the reserve is given up for settles"
    for n in range(500):
        settled, both = log.commit([[ack(f"t{n}")], [put(f"u{n}"), ack(f"v{n}")]], START_US)
        assert isinstance(settled, Committed) and isinstance(both, Committed)
        assert both.first_offset == settled.first_offset + 1
        assert both.refused == "the disk is full"
    assert RESERVE not in disk.names()
    disk.space += RESERVE_BYTES + MARGIN_BYTES
    (healed,) = log.commit([[put("after")]], START_US)
    assert isinstance(healed, Committed) and healed.refused is None and log.trouble is None
    assert RESERVE in disk.names()
    ids = [row.id for row in rebuilt(disk.crash())[2]]
    expected = [id_ for n in range(count) for id_ in (f"r{n}", f"s{n}")] + [f"s{count}"]
    expected += [id_ for n in range(500) for id_ in (f"t{n}", f"v{n}")] + ["after"]
    assert ids == expected


def test_a_disk_too_full_for_the_reserve_refuses_from_the_start_and_settles_go_on() -> None:
    disk = LyingDisk(1, space=RESERVE_BYTES // 2)
    log, _ = reopened(disk)
    assert log.trouble == "the disk is full"
    outcomes = log.commit([[put("a")], [ack("b")]], START_US)
    assert outcomes == [kept(0, "the disk is full"), kept(0, "the disk is full")]
    assert [row.id for row in rebuilt(disk)[2]] == ["b"]


def test_a_start_on_a_full_disk_uses_what_a_crashed_run_had_set_aside() -> None:
    disk = LyingDisk(1)
    log, _ = reopened(disk)
    log.commit([[put("a")]], START_US)
    after = disk.crash()
    after.space = after.space - after.free() + 10
    again, rows = reopened(after)
    assert [row.id for row in rows] == ["a"]
    assert again.commit([[put("b"), ack("a")]], START_US) == [kept(1, "the disk is full")]
    assert [label(row) for row in rebuilt(after)[2]] == [("enqueue", "a"), ("ack", "a")]


@pytest.mark.promise("Journal", "the server recovers from a failing disk")
@pytest.mark.parametrize("operation", ["append", "sync", "truncate"])
def test_a_disk_that_failed_is_used_again_when_it_is_well(operation: str) -> None:
    disk = LyingDisk(4)
    log, _ = reopened(disk)
    assert log.commit([[put("a")]], START_US) == [kept(0)]
    disk.failing, disk.eio = (operation, "append"), 1.0
    assert log.commit([[put("b")], [ack("c")], []], START_US) == [Refused("the disk reports an error")] * 3
    assert log.commit([[put("d")]], START_US) == [kept(1, "the disk reports an error")]
    disk.eio = 0.0
    assert log.commit([[put("e")], [ack("f")]], START_US) == [kept(1), kept(2)]
    assert log.trouble is None
    assert [row.id for row in rebuilt(disk.crash())[2]] == ["a", "e", "f"]


# Time and epochs


@pytest.mark.promise("Journal", "`recorded_at` never decreases, even if the clock steps back")
def test_time_never_runs_backwards_though_the_clock_does() -> None:
    disk = LyingDisk(1)
    log, _ = reopened(disk)
    log.commit([[put("a")]], START_US)
    log.commit([[put("b")]], START_US - HOUR_US)
    disk = disk.crash()
    log, _ = reopened(disk)
    log.commit([[put("c")]], START_US - 2 * HOUR_US)
    log.commit([[put("d")]], START_US + 5)
    rows = rebuilt(disk)[2]
    assert [(row.id, row.recorded_at - START_US) for row in rows] == [("a", 0), ("b", 0), ("c", 0), ("d", 5)]


@pytest.mark.promise("Journal", "the epoch increases only when rows may have been lost")
@pytest.mark.parametrize(
    ("sync", "is_clean", "epoch"),
    [
        ("commit", True, 0),
        ("commit", False, 0),
        ("interval", True, 0),
        ("interval", False, 1),
        ("off", True, 0),
        ("off", False, 1),
    ],
)
def test_an_epoch_ends_only_when_rows_may_have_been_lost(sync: Sync, is_clean: bool, epoch: int) -> None:
    disk = LyingDisk(1)
    opened, _, _ = rebuilt(disk, sync=sync)
    log = opened.log()
    log.commit([[put("a")]], START_US)
    if is_clean:
        assert log.close() is None
        opened.end()
    after, _, rows = rebuilt(disk.crash())
    assert after.identity.epoch == epoch
    if is_clean:
        assert [row.id for row in rows] == ["a"]
    again = after.log()
    again.commit([[put("b")]], START_US)
    found = rebuilt(after.disk)[2]
    assert [row.epoch for row in found if row.id == "b"] == [epoch]
    assert all(row.epoch == 0 for row in found if row.id == "a")


def test_a_last_sync_that_fails_is_no_clean_end() -> None:
    disk = LyingDisk(1)
    opened, _, _ = rebuilt(disk, sync="interval")
    log = opened.log()
    log.commit([[put("a")]], START_US)
    disk.failing, disk.eio = ("sync",), 1.0
    assert log.close() == "the disk reports an error"


@pytest.mark.promise("Journal", "offsets are dense, in the order of appends")
def test_groups_share_a_frame_and_get_their_own_offsets() -> None:
    disk = LyingDisk(1)
    log, _ = reopened(disk)
    outcomes = log.commit([[put("a"), put("b")], [], [ack("c")]], START_US)
    assert outcomes == [kept(0), kept(2), kept(2)]
    before = disk.steps
    log.commit([[put("d")], [put("e")]], START_US)
    assert disk.steps - before == 2, "one append and one sync for both"


def test_a_check_sees_a_full_disk_and_its_recovery_without_a_commit() -> None:
    disk = LyingDisk(1)
    opened, _, _ = rebuilt(disk)
    log = opened.log()
    for free, is_refusing in ((FULL_BYTES, False), (FULL_BYTES - 1, True), (MARGIN_BYTES - 1, True)):
        disk.free = lambda free=free: free  # type: ignore[method-assign, misc]
        log.check()
        assert (log.trouble is not None, log.space) == (is_refusing, (free, RESERVE_BYTES))
    disk.free = lambda: MARGIN_BYTES  # type: ignore[method-assign]
    log.check()
    assert log.trouble is None


def test_a_disk_that_does_not_say_its_free_space_is_not_called_full() -> None:
    disk = LyingDisk(1)
    opened, _, _ = rebuilt(disk)
    log = opened.log()

    def fail() -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "free", fail)
        assert log.space == (None, RESERVE_BYTES)
        log.check()
        assert log.trouble == "the disk refuses: Stale file handle"
    log.check()
    assert log.trouble is None


def test_a_segment_is_abandoned_though_its_close_fails() -> None:
    disk = LyingDisk(1)
    log, _ = reopened(disk)
    log.commit([[put("a")]], START_US)
    disk.failing, disk.eio = ("sync", "close"), 1.0
    assert log.commit([[put("b")]], START_US) == [kept(1, "the disk reports an error")]
    disk.eio = 0.0
    assert log.commit([[put("c")]], START_US) == [kept(1)]
