"""How full a stream may be, and how far it may be purged."""

from penstock.core.cluster.reader import LogEnd
from penstock.core.cluster.stream_space import StreamSpace, purge_point


def test_the_last_tenth_of_a_stream_is_for_settles() -> None:
    space = StreamSpace(1_000_000)
    space.measured(899_000)
    assert not space.is_short
    space.kept(744)
    assert space.is_short
    assert space.takes(80_000)
    assert not space.takes(90_000), "the markers of an owner need room"
    space.measured(10_000)
    assert not space.is_short


def test_a_stream_is_purged_behind_the_newest_stored_live_file() -> None:
    assert purge_point([], []) == 0
    assert purge_point([LogEnd(seq=7, offset=70), LogEnd(seq=9, offset=90)], []) == 9


def test_a_reader_holds_back_what_it_has_not_read() -> None:
    files = [LogEnd(seq=7, offset=70), LogEnd(seq=9, offset=90)]
    assert purge_point(files, [200, 90]) == 9
    assert purge_point(files, [200, 89]) == 7
    assert purge_point(files, [69]) == 0
