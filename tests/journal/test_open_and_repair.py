"""The watermark against the newest frame: a committed row is never treated as a torn tail."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.journal.disk import RealDisk
from penstock.journal.log import segment_name
from penstock.journal.open_and_repair import IDENTITY, WATERMARK, Opened
from penstock.journal.port import Committed
from penstock.journal.segments import DamageError

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
        assert log.commit([[record]], number) == [Committed(number - 1)]
        journal.publish()
    return folder / segment_name(0)


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


def test_without_a_watermark_the_segment_alone_decides(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / WATERMARK).unlink()
    assert opened(tmp_path).position.offset == 2


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
