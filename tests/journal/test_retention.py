"""Retention removes the oldest history first, respects readers within their bounds, and keeps live envelopes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import Now
from penstock.journal import named_readers
from penstock.journal.disk import RealDisk
from penstock.journal.named_readers import Reader
from penstock.journal.parquet_table import DataFile, EventsTable
from penstock.journal.reader import JournalError, JournalReader
from penstock.journal.retention import DAY_MS, Retention, choose
from tests.journal.driven import Driven, from_disk, make, table_rows
from tests.journal.histories import DAY_US, FOREVER, START_US, publish, put, reopened, sealer

NOW_US = START_US + 100 * DAY_US


def file_of(number: int, size: int, age_days: int) -> DataFile:
    return DataFile(f"date=2025-01-01/{number}", number * 10, number * 10 + 9, 10, size, NOW_US - age_days * DAY_US)


@st.composite
def files_of(draw: st.DrawFn) -> list[DataFile]:
    ages = sorted(draw(st.lists(st.integers(0, 20), max_size=8)), reverse=True)
    return [file_of(n, draw(st.integers(1, 100)), age) for n, age in enumerate(ages)]


READERS = st.lists(
    st.builds(
        Reader,
        name=st.text("abc", min_size=1, max_size=3),
        offset=st.integers(0, 90),
        at_us=st.integers(0, 20).map(lambda days: NOW_US - days * DAY_US),
        has_ended=st.booleans(),
    ),
    max_size=4,
)
BOUNDS = st.builds(
    Retention,
    age_ms=st.integers(0, 15).map(lambda days: days * DAY_MS),
    bytes_max=st.integers(0, 400),
    hold_bytes_max=st.integers(0, 300),
    hold_age_max_ms=st.integers(0, 15).map(lambda days: days * DAY_MS),
)


def is_within(reader: Reader, doomed: list[DataFile], bounds: Retention) -> bool:
    """Whether a reader may still hold something back, said another way than the code says it."""
    held = sum(file.size for file in doomed if file.last >= reader.offset)
    if held == 0:
        return True
    idle_days = (NOW_US - reader.at_us) // DAY_US
    return (not bounds.hold_bytes_max or held <= bounds.hold_bytes_max) and (
        not bounds.hold_age_max_ms or idle_days <= bounds.hold_age_max_ms // DAY_MS
    )


@pytest.mark.promise("Journal", "retention removes old rows and keeps live envelopes")
@given(files_of(), READERS, BOUNDS)
def test_any_choice_is_oldest_first_and_respects_every_hold(
    files: list[DataFile], named: list[Reader], bounds: Retention
) -> None:
    choice = choose(files, named, bounds, NOW_US)
    doomed = choose(files, [], bounds, NOW_US).remove
    gone = len(choice.remove)
    assert choice.remove == files[:gone], "the oldest, without a gap"
    assert doomed == files[: len(doomed)] and gone <= len(doomed)
    for reader in named:
        if reader.has_ended:
            assert reader not in choice.ended, "a hold ends once"
        elif is_within(reader, doomed, bounds):
            assert reader not in choice.ended
            assert all(file.last < reader.offset for file in choice.remove), "a hold within its bounds holds"
        else:
            assert reader in choice.ended
    # Nothing that may go is kept but for a reader.
    active = [reader.offset for reader in named if not reader.has_ended and reader not in choice.ended]
    kept = doomed[gone:]
    assert all(file.last >= min(active, default=-1) for file in kept)
    assert active or not kept
    # And the bounds are kept, as far as they are given.
    rest = files[len(doomed) :]
    if bounds.bytes_max:
        assert sum(file.size for file in rest) <= bounds.bytes_max
    if bounds.age_ms and rest:
        assert rest[0].last_at_us >= NOW_US - bounds.age_ms * 1000
    if not bounds.bytes_max and not bounds.age_ms:
        assert choice.remove == []


def test_zero_means_no_bound() -> None:
    files = [file_of(0, 50, 20), file_of(1, 50, 0)]
    slow = Reader("slow", 0, NOW_US - 90 * DAY_US)
    bounds = Retention(age_ms=DAY_MS, bytes_max=0, hold_bytes_max=0, hold_age_max_ms=0)
    assert choose(files, [slow], bounds, NOW_US) == choose(files, [slow], FOREVER, NOW_US)
    assert choose(files, [], bounds, NOW_US).remove == files[:1]


def old_history(data: Path) -> RealDisk:
    """Ten days of work, sealed day by day, with one envelope of the first day that was never taken."""
    disk = RealDisk(data / "journal")
    driven = Driven(disk)
    driven.put("slow", "ten-days-old")
    for day in range(10):
        driven.work(day * 10, 5)
        driven.advance(DAY_MS)
        driven.log.rotate()
        sealer(data, make=make).seal(driven.now.wall_us, wants_live=True)
    driven.log.close()
    publish(disk, driven.log.position.offset)
    return disk


@pytest.mark.promise("Journal", "retention removes old rows and keeps live envelopes")
def test_a_live_envelope_outlives_the_retention_of_everything(tmp_path: Path) -> None:
    disk = old_history(tmp_path)
    report = sealer(tmp_path, make=make, retention=Retention(age_ms=1)).seal(NOW_US)
    assert report.removed_files >= 10
    assert EventsTable(tmp_path / "lake").files() == []
    assert list((tmp_path / "lake").rglob("part-*.parquet")) == []
    assert table_rows(tmp_path).num_rows == 0
    now = Now(NOW_US, NOW_US)
    machine = from_disk(disk, now)
    machine.recovered(now)
    (record,) = machine.channels["slow"].ready
    assert (record.id, record.body) == ("ten-days-old", b'{"id":"ten-days-old","payload":""}')
    assert record.recorded_us < NOW_US - 9 * DAY_US
    # Sealing goes on from the same offset.
    log, _ = reopened(disk)
    end = log.position.offset
    log.commit([[put("next")]], NOW_US)
    log.rotate()
    log.close()
    sealer(tmp_path, make=make).seal(NOW_US)
    assert table_rows(tmp_path).column("offset").to_pylist()[-1] == end


def test_only_what_is_too_old_goes(tmp_path: Path) -> None:
    old_history(tmp_path)
    files = EventsTable(tmp_path / "lake").files()
    limit_us = files[5].last_at_us
    now_us = START_US + 20 * DAY_US
    report = sealer(tmp_path, make=make, retention=Retention(age_ms=(now_us - limit_us) // 1000, bytes_max=0)).seal(
        now_us
    )
    assert report.removed_files == 5
    assert EventsTable(tmp_path / "lake").files() == files[5:]
    assert table_rows(tmp_path).column("offset").to_pylist()[0] == files[5].first
    with pytest.raises(JournalError, match=f"rows 0 to {files[5].first - 1} are no longer kept"):
        list(JournalReader(tmp_path).batches(0, 5))


@pytest.mark.promise("Journal", "named readers hold back retention within bounds")
def test_a_reader_holds_history_back_up_to_its_bound_and_is_notified(tmp_path: Path) -> None:
    disk = old_history(tmp_path)
    files = EventsTable(tmp_path / "lake").files()
    now_us = START_US + 20 * DAY_US
    named_readers.advance(disk, "pipeline", files[3].first, now_us)
    bounds = Retention(age_ms=1, hold_age_max_ms=7 * DAY_MS)
    report = sealer(tmp_path, make=make, retention=bounds).seal(now_us)
    assert (report.removed_files, report.ended_readers) == (3, [])
    assert EventsTable(tmp_path / "lake").files() == files[3:]
    # It comes no more.
    report = sealer(tmp_path, make=make, retention=bounds).seal(now_us + 8 * DAY_US)
    assert report.ended_readers == ["pipeline"]
    assert report.removed_files == len(files) - 3
    (reader,) = named_readers.list_readers(disk)
    assert reader.has_ended and reader.offset == files[3].first
    # Reported once, and repaired by the reader itself.
    assert sealer(tmp_path, make=make, retention=bounds).seal(now_us + 9 * DAY_US).ended_readers == []
    assert not named_readers.advance(disk, "pipeline", 10_000, now_us + 9 * DAY_US).has_ended


def test_a_reader_that_holds_back_too_much_is_ended_too(tmp_path: Path) -> None:
    disk = old_history(tmp_path)
    named_readers.advance(disk, "greedy", 0, NOW_US)
    bounds = Retention(age_ms=1, hold_bytes_max=10)
    assert sealer(tmp_path, make=make, retention=bounds).seal(NOW_US).ended_readers == ["greedy"]


def test_readers_go_forward_and_have_names_that_are_files(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    assert named_readers.advance(disk, "a.b-c_1", 5, 1).offset == 5
    assert named_readers.advance(disk, "a.b-c_1", 3, 2).offset == 5
    assert [(one.name, one.offset, one.at_us) for one in named_readers.list_readers(disk)] == [("a.b-c_1", 5, 2)]
    for name in ("", "../up", "a/b", "ä", "x" * 65):
        with pytest.raises(ValueError, match="a reader's name has"):
            named_readers.advance(disk, name, 0, 0)
    named_readers.forget(disk, "a.b-c_1")
    assert named_readers.list_readers(disk) == []
