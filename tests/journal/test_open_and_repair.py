"""The watermark against the newest frame: a committed row is never treated as a torn tail."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.core.rows import Row
from penstock.journal.columns import SCHEMA, encode_rows
from penstock.journal.disk import RealDisk
from penstock.journal.log import segment_name
from penstock.journal.open_and_repair import IDENTITY, WATERMARK, Opened, last_live_row, live_name
from penstock.journal.port import Committed
from penstock.journal.segments import KIND_LIVE, DamageError, Header, Scan, encode_frame, encode_header
from penstock.testing.disk import LyingDisk, PowerLossError

CHANNEL = Channel("a", Policy())


def opened(folder: Path) -> Opened:
    found = Opened(RealDisk(folder), fresh_id="ab" * 16, sync="commit")
    for _ in found.live_rows():
        pass
    for _ in found.tail_rows():
        pass
    return found


def written(folder: Path, count: int) -> Path:
    """A journal of `count` commits whose process was killed; returns its segment."""
    journal = opened(folder)
    log = journal.log()
    for number in range(1, count + 1):
        record = Record(f"id-{number}", "t", b"{}")
        record.channel, record.seq = CHANNEL, number
        assert log.commit([[record]], number) == [Committed(number - 1, None, number)]
        journal.publish()
    return folder / segment_name(0)


def lose_watermark(folder: Path, content: bytes | None = None) -> None:
    (folder / WATERMARK).unlink()
    if content is not None:
        (folder / WATERMARK).write_bytes(content)


def _frame_ends(data: bytes) -> list[int]:
    return [frame.end for frame in Scan(data, "", is_last=True).frames()]


def test_a_committed_frame_that_cannot_be_read_is_damage_and_stays_where_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError, match="rows 2 to 2 were committed"):
        opened(tmp_path)
    assert path.read_bytes() == data


def test_a_frame_beyond_the_watermark_is_a_torn_tail(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    path.write_bytes(path.read_bytes() + b"half a frame")
    journal = opened(tmp_path)
    assert journal.position.offset == 3
    assert journal.torn_bytes == len(b"half a frame")


@pytest.mark.promise("Journal", "without its watermark a journal never passes as whole")
@pytest.mark.parametrize("mark", [None, b"", b"nonsense"])
def test_without_a_watermark_a_torn_tail_is_damage_because_it_may_have_been_committed(
    tmp_path: Path, mark: bytes | None
) -> None:
    path = written(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-1])
    lose_watermark(tmp_path, mark)
    before = path.read_bytes()
    with pytest.raises(DamageError, match=r"unknown whether the .* bytes from here were committed"):
        opened(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.promise("Journal", "without its watermark a journal never passes as whole")
def test_without_a_watermark_an_end_that_looks_whole_begins_a_new_epoch(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[: _frame_ends(whole)[-2]])
    lose_watermark(tmp_path)
    journal = opened(tmp_path)
    assert (journal.position.offset, journal.position.epoch) == (2, 1)
    assert journal.news is not None and (journal.news.event, WATERMARK in journal.news.reason) == ("epoch", True)
    log = journal.log()
    assert log.commit([[journal.news]], 9) == [Committed(2, None, 9)] and log.segment == segment_name(2)
    again = opened(tmp_path)
    assert (again.position.offset, again.position.epoch, again.news) == (3, 1, None)


def test_a_journal_that_was_never_written_needs_no_watermark(tmp_path: Path) -> None:
    opened(tmp_path).log().close()
    lose_watermark(tmp_path)
    assert opened(tmp_path).news is None


def test_a_live_file_alone_is_history_too(tmp_path: Path) -> None:
    written(tmp_path, 1).unlink()
    header = encode_header(Header("ab" * 16, 0, 0, 1, KIND_LIVE), SCHEMA)
    (tmp_path / live_name(1)).write_bytes(header + encode_frame(encode_rows([last_live_row(0, 1, 1)])))
    assert opened(tmp_path).news is None
    lose_watermark(tmp_path)
    assert opened(tmp_path).position.epoch == 1


def test_the_watermark_is_durable_before_the_first_commit() -> None:
    """Every cut of the power leaves the whole watermark of some commit, so a torn tail is always decided."""
    for seed in range(40):
        disk = LyingDisk(seed)
        journal = Opened(disk, fresh_id="ab" * 16, sync="commit")
        assert [*journal.live_rows(), *journal.tail_rows()] == []
        log = journal.log()
        for number in range(1, 4):
            record = Record(f"id-{number}", "t", b"{}", channel=CHANNEL, seq=number)
            log.commit([[record]], number)
            journal.publish()
        disk.steps_left = seed % 3
        with suppress(PowerLossError):
            log.commit([[Record("torn", "t", b"{}", channel=CHANNEL, seq=4)]], 4)
        found = Opened(disk.crash(), fresh_id="", sync="commit")
        rows = [*found.live_rows(), *found.tail_rows()]
        assert len(rows) >= 3 and found.news is None


# Accepting a loss


def accepted(folder: Path, floor: int = 0) -> tuple[Opened, list[Row]]:
    found = Opened(RealDisk(folder), fresh_id="", sync="commit", loss_floor=floor)
    return found, [*found.live_rows(), *found.tail_rows()]


@pytest.mark.promise("Journal", "a loss is accepted only by a command, and what was lost is a row of the journal")
@pytest.mark.parametrize("has_mark", [True, False])
def test_an_accepted_loss_ends_the_journal_before_the_damage(tmp_path: Path, has_mark: bool) -> None:
    path = written(tmp_path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    if not has_mark:
        lose_watermark(tmp_path)
    journal, rows = accepted(tmp_path)
    assert [row.id for row in rows] == ["id-1", "id-2"]
    assert journal.news is not None and journal.news.event == "repair"
    end = _frame_ends(whole)[-2]
    lost = msgspec.json.decode(journal.news.meta or "")
    assert lost == {"epoch": 1, "from": 2, "to": 2 if has_mark else None, "bytes": len(whole) - 1 - end}
    assert (tmp_path / f"lost-1-{segment_name(0)}").read_bytes() == whole[end:-1]
    log = journal.log()
    assert log.commit([[journal.news]], 9) == [Committed(2, None, 9)]
    assert opened(tmp_path).position.offset == 3


def test_segments_after_the_damage_are_set_aside_whole(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    log = journal.log()
    for number in range(1, 5):
        log.commit([[Record(f"id-{number}", "t", b"{}", channel=CHANNEL, seq=number)]], number)
        log.rotate()
    journal.publish()
    log.close()
    middle = tmp_path / segment_name(1)
    middle.write_bytes(b"x" + middle.read_bytes()[1:])
    sizes = sum((tmp_path / segment_name(offset)).stat().st_size for offset in (1, 2, 3, 4))
    journal, rows = accepted(tmp_path)
    assert [row.id for row in rows] == ["id-1"]
    assert journal.news is not None
    assert msgspec.json.decode(journal.news.meta or "") == {"epoch": 1, "from": 1, "to": 3, "bytes": sizes}
    assert sorted(path.name for path in tmp_path.glob("lost-*")) == [
        f"lost-1-{segment_name(offset)}" for offset in (1, 2, 3, 4)
    ]
    log = journal.log()
    assert log.commit([[journal.news]], 9) == [Committed(1, None, 9)]
    assert opened(tmp_path).position.offset == 2


def test_rows_that_the_table_has_are_never_cut(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-1])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(DamageError, match="the table has rows up to 2"):
        accepted(tmp_path, floor=3)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("size", [0, 5, 100])
def test_a_segment_cut_within_its_header_is_damage_when_rows_were_promised(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamageError, match="rows 0 to 2 were committed"):
        opened(tmp_path)
    assert path.stat().st_size == size


def test_a_journal_that_lost_its_only_segment_is_damaged(tmp_path: Path) -> None:
    written(tmp_path, 3).unlink()
    with pytest.raises(DamageError, match="rows 0 to 2 were committed"):
        opened(tmp_path)


@pytest.mark.parametrize("field", ['"id":"zz"', '"epoch":-1', '"epoch":4294967296', '"sync":"never"'])
def test_an_identity_that_no_server_wrote_is_damage(tmp_path: Path, field: str) -> None:
    written(tmp_path, 1)
    (tmp_path / IDENTITY).write_text(f'{{"id":"{"ab" * 16}",{field}}}')
    with pytest.raises(DamageError, match=IDENTITY):
        opened(tmp_path)
