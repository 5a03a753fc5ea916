"""Sealing: the table has every row once, the live file the whole state, and a crash costs only time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.queue.channel import Channel
from penstock.core.rows import Row
from penstock.journal import delta_log, lake_location
from penstock.journal.columns import SCHEMA
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import LIVE_PREFIX, LOG_PREFIX, named, segments
from penstock.journal.parquet_table import EventsTable
from penstock.journal.seal import Sealer
from penstock.testing.disk import LyingDisk, PowerLossError
from tests.core.driving import purge_all, record_of, redrive
from tests.journal.driven import Driven, from_disk, from_history, make, state, table_rows
from tests.journal.histories import (
    DAY_US,
    FOREVER,
    HOUR_US,
    JOURNAL,
    START_US,
    ack,
    put,
    rebuilt,
    reopened,
    sealer,
)
from tests.tiers import first_of

NOW_US = START_US + DAY_US


def seal_all(disk: RealDisk | LyingDisk, data: Path, *, wants_live: bool = True) -> None:
    Sealer(disk, data / "lake", make, retention=FOREVER).seal(NOW_US, wants_live=wants_live)


def as_rows(table: pa.Table) -> list[Row]:
    """The rows of the table as the journal knows them."""
    names = ["size" if name == "bytes" else name for name in ("journal", "shard", "epoch", *SCHEMA.names)]
    columns = []
    for name in ("journal", "shard", "epoch", *SCHEMA.names):
        column = table.column(name)
        columns.append((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())
    return [Row(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


@pytest.fixture
def story(tmp_path: Path) -> tuple[Path, RealDisk, list[Row]]:
    """A directory with three closed segments and a tail, and its whole history."""
    disk = RealDisk(tmp_path / "journal")
    driven = Driven(disk)
    for part in range(3):
        driven.work(part * 10, 10)
        assert driven.log.rotate() is not None
    driven.work(30, 4)
    driven.log.close()
    return tmp_path, disk, rebuilt(disk)[2]


@pytest.mark.promise("Journal", "sealing publishes each row once, in crash-safe steps")
def test_the_table_holds_every_row_of_the_closed_segments_once(
    story: tuple[Path, RealDisk, list[Row]],
) -> None:
    data, disk, history = story
    tail = segments(disk)[-1].first
    report = sealer(data, make=make).seal(NOW_US, wants_live=True)
    assert (report.sealed_rows, report.sealed_end, report.live_offset) == (tail, tail, tail)
    assert report.removed_segments == 3
    table = table_rows(data)
    assert table.column("offset").to_pylist() == list(range(tail))
    assert as_rows(table) == history[:tail]
    assert table.column("date").to_pylist() == [day.date() for day in table.column("recorded_at").to_pylist()]


@pytest.mark.parametrize("restart", ["no", "from the tail", "from a live file"])
@pytest.mark.promise("Journal", "a settle has the time of its enqueue row, also after a restart")
def test_a_settle_has_the_time_of_its_enqueue_row(tmp_path: Path, restart: str) -> None:
    disk = RealDisk(tmp_path / "journal")
    driven = Driven(disk)
    ids = ("acked", "nacked", "dead", "timed out", "released", "dropped", "purged")
    for id_ in ids:
        driven.put("jobs", id_)
        driven.advance(10)
    delayed = record_of("delayed")
    delayed.due_wall_us = delayed.scheduled_wall_us = driven.now.wall_us + 50_000
    driven.offer("jobs", delayed)
    driven.commit()
    if restart == "from a live file":
        assert driven.log.rotate() is not None
        sealer(tmp_path, make=make).seal(NOW_US, wants_live=True)
    if restart != "no":
        driven.restart()
    consumer = driven.subscribe("jobs", 5)
    driven.ack(consumer, "acked")
    driven.nack(consumer, "nacked", 60_000, "busy")
    driven.term(consumer, "dead", "bad")
    driven.release(consumer, "released")
    driven.machine.drop(driven.now, driven.channel("jobs"), ["dropped"], "sam")
    driven.commit()
    purge_all(driven.machine, driven.now, driven.channel("jobs"))
    driven.commit()
    driven.advance(2_500)
    redrive(driven.machine, driven.now, "jobs", 1)
    driven.apply()
    driven.commit()
    driven.ack(consumer, "dead")
    driven.log.close()

    rows = as_rows(table_rows(tmp_path)) if restart == "from a live file" else []
    rows += [row for row in rebuilt(disk)[2] if row.offset >= len(rows)]
    begun = {(row.channel, row.seq): row for row in rows if row.event == "enqueue"}
    ended = [row for row in rows if row.ref_offset is not None]
    assert {"ack", "nack", "dead", "purge", "move", "timeout", "release"} <= {row.event for row in ended}
    assert {row.id for row in ended} >= {*ids, "delayed"}
    for row in ended:
        enqueued = begun[row.channel, row.seq]
        assert (row.ref_offset, row.ref_at) == (enqueued.offset, enqueued.recorded_at), row


def test_sealing_again_changes_nothing(story: tuple[Path, RealDisk, list[Row]]) -> None:
    data, disk, _ = story
    sealer(data, make=make).seal(NOW_US, wants_live=True)
    before = table_rows(data), disk.names(), DeltaTable(str(data / "lake" / "events")).version()
    for wants_live in (True, False):
        report = sealer(data, make=make).seal(NOW_US, wants_live=wants_live)
        assert (report.sealed_rows, report.removed_segments) == (0, 0)
    assert (table_rows(data), disk.names(), DeltaTable(str(data / "lake" / "events")).version()) == before


def test_state_after_sealing_is_that_of_the_whole_history(story: tuple[Path, RealDisk, list[Row]]) -> None:
    data, disk, history = story
    now = Driven(LyingDisk(0)).now._replace(wall_us=history[-1].recorded_at + 1)
    whole = state(from_history(history, now), now)
    assert {row.event for row in whole} == {"gauge", "seen", "enqueue"}
    sealer(data, make=make).seal(NOW_US, wants_live=True)
    assert len(named(disk, LOG_PREFIX)) == len(named(disk, LIVE_PREFIX)) == 1
    assert state(from_disk(disk, now), now) == whole


def test_writing_goes_on_after_sealing(story: tuple[Path, RealDisk, list[Row]]) -> None:
    data, disk, history = story
    sealer(data, make=make).seal(NOW_US, wants_live=True)
    log, _ = reopened(disk)
    assert log.commit([[put("next")]], NOW_US)[0].first_offset == len(history)  # type: ignore[union-attr]
    log.rotate()
    log.close()
    seal_all(disk, data)
    assert table_rows(data).column("offset").to_pylist() == list(range(len(history) + 1))


@pytest.mark.promise("Journal", "other programs read the table without Penstock")
def test_others_read_the_table_without_penstock(story: tuple[Path, RealDisk, list[Row]]) -> None:
    data, disk, history = story
    tail = segments(disk)[-1].first
    sealer(data, make=make).seal(NOW_US, wants_live=True)
    path = data / "lake" / "events"
    assert DeltaTable(str(path)).to_pyarrow_table(columns=["offset"]).num_rows == tail
    found = ds.dataset(path, format="parquet", partitioning="hive", exclude_invalid_files=True)
    assert found.count_rows() == tail
    files = sorted(path.glob("date=*/*.parquet"))
    assert sum(pq.read_metadata(file).num_rows for file in files) == tail
    bodies = DeltaTable(str(path)).to_pyarrow_table(filters=[("event", "=", "enqueue"), ("channel", "=", "jobs")])
    wanted = [row.body for row in history[:tail] if row.event == "enqueue" and row.channel == "jobs"]
    assert sorted(bodies.column("body").to_pylist()) == sorted(wanted)
    # Statistics that leave a row out would make a reader skip it.
    for row in (history[0], history[tail - 1]):
        at = pa.scalar(row.recorded_at, pa.timestamp("us", tz="UTC"))
        found = DeltaTable(str(path)).to_pyarrow_table(filters=[("recorded_at", "=", at)])
        assert row.offset in found.column("offset").to_pylist()


def test_a_segment_stays_until_a_live_file_covers_it(tmp_path: Path) -> None:
    """A large state is not written down again for a little history; the segments behind it are needed until it is."""
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk)
    log.commit([[put(f"e{n}", bytes(500), seq=n + 1) for n in range(200)]], START_US)
    log.rotate()
    log.commit([[ack("e0")]], START_US)
    seal_all(disk, tmp_path, wants_live=False)
    assert [segment.first for segment in segments(disk)] == [200]
    log.rotate()
    log.close()
    report = Sealer(disk, tmp_path / "lake", make, retention=FOREVER).seal(NOW_US)
    assert (report.sealed_end, report.live_offset, report.removed_segments) == (201, 200, 0)
    assert [segment.first for segment in segments(disk)] == [200, 201]
    now = Driven(LyingDisk(0)).now
    assert "e0" not in from_disk(disk, now).channels["jobs"].live
    assert Sealer(disk, tmp_path / "lake", make, retention=FOREVER).seal(NOW_US).sealed_rows == 0
    report = Sealer(disk, tmp_path / "lake", make, retention=FOREVER).seal(NOW_US, wants_live=True)
    assert (report.live_offset, report.removed_segments) == (201, 1)
    assert table_rows(tmp_path).num_rows == 201


def test_what_was_refused_is_not_sealed(tmp_path: Path) -> None:
    """A failing disk leaves a frame behind the end of a segment; the next segment says that it does not count."""
    disk = LyingDisk(2)
    log, _ = reopened(disk)
    log.commit([[put("a")]], START_US)
    disk.failing, disk.eio = ("sync", "truncate"), 1.0
    log.commit([[put("never")]], START_US)
    disk.eio = 0.0
    log.commit([[put("b")]], START_US)
    log.rotate()
    seal_all(disk, tmp_path)
    assert table_rows(tmp_path).column("id").to_pylist() == ["a", "b"]


def test_time_never_runs_backwards_over_a_seal(tmp_path: Path) -> None:
    """The last row of the history may leave no trace in the state but its time."""
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk)
    log.commit([[put("a")]], START_US)
    log.commit([[ack("unknown")]], START_US + HOUR_US)
    log.rotate()
    log.close()
    seal_all(disk, tmp_path)
    log, _ = reopened(disk)
    log.commit([[put("b")]], START_US)
    log.rotate()
    log.close()
    seal_all(disk, tmp_path)
    times = table_rows(tmp_path).column("recorded_at").cast(pa.int64()).to_pylist()
    assert times == [START_US, START_US + HOUR_US, START_US + HOUR_US]


# Crashes between any two steps


class Fuse:
    """Lets so many steps pass, then cuts the power."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def burn(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerLossError

    def before(self, call: Callable[..., object]) -> Callable[..., object]:
        def fused(*args: object, **options: object) -> object:
            self.burn()
            return call(*args, **options)

        return fused


class FusedFile:
    def __init__(self, file: object, fuse: Fuse) -> None:
        self._file = file
        self._fuse = fuse

    def __getattr__(self, name: str) -> Callable[..., object]:
        call = getattr(self._file, name)
        return call if name == "close" else self._fuse.before(call)


class FusedDisk(RealDisk):
    """A real disk whose changes burn a fuse."""

    def __init__(self, directory: Path, fuse: Fuse) -> None:
        super().__init__(directory)
        self._fuse = fuse
        for name in ("replace", "remove", "sync_names"):
            setattr(self, name, fuse.before(getattr(self, name)))

    def open(self, name: str) -> FusedFile:  # type: ignore[override]
        self._fuse.burn()
        return FusedFile(super().open(name), self._fuse)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fuse]:
    """A fuse in everything that sealing does outside the disk port."""
    fuse = Fuse(0)
    for owner, name in (
        (delta_log, "sync_path"),
        (lake_location, "sync_path"),
        (EventsTable, "publish"),
        (EventsTable, "_write"),
        (EventsTable, "remove"),
        (EventsTable, "tidy"),
        (DeltaTable, "create_write_transaction"),
        (DeltaTable, "create_checkpoint"),
    ):
        monkeypatch.setattr(owner, name, fuse.before(getattr(owner, name)))
    return fuse


@pytest.mark.promise("Journal", "sealing publishes each row once, in crash-safe steps")
@pytest.mark.parametrize("stride", first_of((4, 1), 1))
def test_a_crash_between_any_two_steps_costs_only_time(
    story: tuple[Path, RealDisk, list[Row]], tmp_path_factory: pytest.TempPathFactory, fused: Fuse, stride: int
) -> None:
    data, disk, history = story
    tail = segments(disk)[-1].first
    now = Driven(LyingDisk(0)).now
    whole = state(from_history(history, now), now)
    folder = tmp_path_factory.mktemp("crashes")
    steps = crashes = 0
    while True:
        copy = folder / str(steps)
        shutil.copytree(data, copy)
        fused.left = steps
        try:
            fused_seal(copy, fused)
            break
        except PowerLossError:
            crashes += 1
        fused.left = 1_000_000
        assert state(from_disk(RealDisk(copy / "journal"), now), now) == whole, steps
        fused_seal(copy, fused)
        table = table_rows(copy)
        assert table.column("offset").to_pylist() == list(range(tail)), steps
        assert as_rows(table) == history[:tail], steps
        left = RealDisk(copy / "journal")
        assert [segment.first for segment in segments(left)] == [tail], steps
        assert len(named(left, LIVE_PREFIX)) == 1
        assert not [name for name in left.names() if name.endswith(".tmp")], steps
        assert state(from_disk(left, now), now) == whole, steps
        steps += stride
    assert crashes * stride > 25


def fused_seal(data: Path, fuse: Fuse) -> None:
    disk = FusedDisk(data / "journal", fuse)
    Sealer(disk, data / "lake", make, retention=FOREVER).seal(NOW_US, wants_live=True)


def test_the_power_may_go_at_any_operation_of_a_seal(tmp_path: Path) -> None:
    """The same on a disk that loses names and bytes that were not synced, with the recovery between."""
    for steps in range(40):
        disk = LyingDisk(steps)
        driven = Driven(disk)
        driven.work(0, 6)
        driven.log.rotate()
        driven.work(6, 6)
        driven.log.rotate()
        now = driven.now
        history = rebuilt(disk)[2]
        whole = state(from_history(history, now), now)
        disk.steps_left = steps
        data = tmp_path / str(steps)
        try:
            seal_all(disk, data)
            is_over = True
        except PowerLossError:
            is_over = False
        for _ in range(8):  # of the many ways in which this crash may end
            found = disk.crash()
            assert state(from_disk(found, now), now) == whole, steps
        seal_all(found, data)
        assert as_rows(table_rows(data)) == history, steps
        assert state(from_disk(found, now), now) == whole, steps
        if is_over:
            assert steps > 8
            return
    raise AssertionError("the seal never came to its end")


# Any history


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "ack", "nack", "release", "term", "wait", "redrive", "again", "seal"]),
        st.integers(0, 7),
    ),
    max_size=60,
)


@pytest.mark.promise("Journal", "the live file and the log after it restore the whole state")
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_live_file_and_tail_are_the_whole_history(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.mktemp("any")
    disk = LyingDisk(0)
    driven = Driven(disk)
    consumers = [driven.subscribe(name, 10_000) for name in ("a", "b")]
    sealed_to = 0
    for n, (verb, pick) in enumerate(steps):
        consumer = consumers[pick % 2]
        held = list(consumer.leases.values())
        match verb:
            case "put":
                driven.put(consumer.channel.name, f"e{n}")
            case "again":
                driven.put(consumer.channel.name, f"e{pick}")
            case "wait":
                driven.advance(pick * 1_700)
                driven.commit()
            case "ack" if held:
                driven.ack(consumer, held[pick % len(held)].id)
            case "nack" if held:
                driven.nack(consumer, held[pick % len(held)].id, pick * 100, "why")
            case "release" if held:
                driven.release(consumer, held[pick % len(held)].id)
            case "term" if held:
                driven.term(consumer, held[pick % len(held)].id)
            case "redrive":
                redrive(driven.machine, driven.now, consumer.channel.name, pick)
                driven.apply()
                driven.commit()
            case "seal":
                driven.log.rotate()
                report = Sealer(disk, data / "lake", make, retention=FOREVER).seal(NOW_US, wants_live=pick > 1)
                sealed_to = report.sealed_end
            case _:
                pass
    now = driven.now
    history = rebuilt(disk)[2]
    if sealed_to:
        first = history[0].offset if history else sealed_to
        history = [row for row in as_rows(table_rows(data)) if row.offset < first] + history
    assert [row.offset for row in history] == list(range(driven.log.position.offset))
    assert {row.journal for row in history} <= {JOURNAL}
    rebuilt_machine = from_disk(disk, now)
    assert state(rebuilt_machine, now) == state(from_history(history, now), now)
    rebuilt_machine.recovered(now)
    for name, channel in driven.machine.channels.items():
        if channel.counters.in_:
            twin = rebuilt_machine.find(name)  # one with nothing in it may be asleep
            assert isinstance(twin, Channel)
            assert {id_: record.body for id_, record in twin.live.items()} == {
                id_: record.body for id_, record in channel.live.items()
            }
            assert twin.balance == 0
            assert twin.seq == channel.seq
            settled = msgspec.structs.asdict(channel.counters)
            again = msgspec.structs.asdict(twin.counters)
            for counter in ("in_", "ack", "dead", "moved", "purged", "drop"):
                assert again[counter] == settled[counter], counter
    shutil.rmtree(data)
