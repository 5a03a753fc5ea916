"""The reader's rule: which messages of a log count."""

import msgspec
import pytest

from penstock.core.cluster.messages import LogMessage
from penstock.core.cluster.reader import LogDamage, LogEnd, LogFrame, ShardReader
from tests.core.cluster.logs import LONG, Log


@pytest.fixture
def log() -> Log:
    """An epoch with a commit of two rows."""
    log = Log()
    log.begin(1, "a")
    log.write("rows", b"two", rows=2)
    return log


def damage(log: Log, message: LogMessage | None) -> str:
    """What a reader says about a message that must not follow."""
    end = log.reader.end
    found = log.reader.accept(end.seq + 1, message)
    assert isinstance(found, LogDamage)
    assert (found.stream, found.seq) == ("s", end.seq + 1)
    assert log.reader.end == end, "damage changes nothing"
    return str(found)


def test_frames_follow_one_another(log: Log) -> None:
    assert log.write("rows", b"three", rows=3) == LogFrame("rows", 1, 2, 3, b"three")
    assert log.write("idle").rows == 0
    assert log.reader.end.offset == 5
    assert log.reader.end.owner == "a"


def test_a_commit_counts_when_its_last_part_is_there(log: Log) -> None:
    first, last = log.make("rows", LONG, rows=1)
    assert log.add(first) is None
    assert log.reader.whole.seq == 2
    assert log.add(last) == LogFrame("rows", 1, 2, 1, LONG)
    assert log.reader.whole == log.reader.end


def test_a_higher_epoch_drops_an_unfinished_commit_and_goes_on_at_its_offset(log: Log) -> None:
    log.add(log.make("rows", LONG, rows=1)[0])
    log.begin(3, "b")
    assert (log.reader.unfinished, log.reader.end.owner) == (1, "b")
    assert log.write("rows", b"x", rows=1).first == 2


def test_a_lower_epoch_is_void_and_counted(log: Log) -> None:
    late = log.make("rows", b"late", rows=1)[0]
    log.begin(2, "b")
    assert log.add(late) is None
    assert log.reader.voids == 1
    assert log.write("rows", b"x", rows=1).first == 2


def test_a_released_epoch_ends(log: Log) -> None:
    log.write("released")
    assert log.reader.end.is_released
    assert "goes on after its end" in damage(log, log.make("idle")[0])
    log.begin(2, "b")
    assert not log.reader.end.is_released


def test_a_reader_goes_on_where_another_has_a_whole_frame(log: Log) -> None:
    log.add(log.make("rows", LONG, rows=1)[0])
    other = ShardReader("s", log.reader.whole)
    assert other.accept(3, log.messages[2]) is None
    assert other.end == log.reader.end


def test_a_hole_is_damage(log: Log) -> None:
    found = log.reader.accept(4, log.make("idle")[0])
    assert str(found) == "stream `s` is damaged at message 4: message 3 is missing"


def test_a_foreign_message_is_damage(log: Log) -> None:
    assert "not written by a node" in damage(log, None)


def test_a_bit_that_flipped_is_damage(log: Log) -> None:
    message = log.make("rows", b"three", rows=3)[0]
    assert "checksum" in damage(log, msgspec.structs.replace(message, payload=b"threE"))


def test_a_message_that_another_one_replaced_is_damage(log: Log) -> None:
    """A frame was written, lost, and written again with other rows: what continues the lost one does not fit."""
    other = Log()
    other.begin(1, "a")
    other.write("rows", b"TWO", rows=2)
    assert "continues another message than number 2" in damage(log, other.make("idle")[0])


def test_an_epoch_without_its_marker_is_damage(log: Log) -> None:
    assert "without its marker" in damage(log, log.make("rows", b"x", rows=1, epoch=2)[0])


def test_a_second_marker_of_an_epoch_is_damage(log: Log) -> None:
    assert "belongs here" in damage(log, log.make("epoch", b"b 00", epoch=1)[0])


def test_a_skipped_part_is_damage(log: Log) -> None:
    assert "belongs here" in damage(log, relinked(log.make("rows", LONG, rows=1)[1], log.reader.end))


def test_a_part_of_another_commit_is_damage(log: Log) -> None:
    log.add(log.make("rows", LONG, rows=1)[0])
    last = log.make("rows", LONG, rows=7)[1]
    assert "another commit" in damage(log, relinked(last, log.reader.end))


def test_rows_at_another_offset_are_damage(log: Log) -> None:
    message = log.make("rows", b"x", rows=1)[0]
    assert "row 9 where row 2 belongs" in damage(log, sound(msgspec.structs.replace(message, first=9)))


def relinked(message: LogMessage, end: LogEnd) -> LogMessage:
    return sound(msgspec.structs.replace(message, previous=end.check))


def sound(message: LogMessage) -> LogMessage:
    """The message with the checksum of what it says."""
    import google_crc32c

    place = message.header.rpartition(" ")[0]
    check = google_crc32c.extend(google_crc32c.value(place.encode()), message.payload)
    return msgspec.structs.replace(message, check=check)
