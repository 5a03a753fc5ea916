"""The thread that writes lines: order, bounds, reports and rotation."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest

from penstock.server.files.line_writer import LineWriter, RotatingFile, TextSink


class SlowSink:
    """Takes nothing until it is released, and fails while it is full."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.entered = threading.Event()
        self.is_full = False
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.entered.set()
        assert self.released.wait(10)
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True


def writer_to(sink: SlowSink, *, waiting_max: int = 100, waiting_bytes_max: int = 1_000) -> LineWriter[int]:
    return LineWriter(
        sink,
        lambda number: b"%d" % number,
        waiting_max=waiting_max,
        waiting_bytes_max=waiting_bytes_max,
        linger_s=0,
        thread="test-writer",
    )


def test_lines_keep_their_order_and_close_writes_the_rest() -> None:
    sink = SlowSink()
    writer = writer_to(sink)
    for number in range(50):
        writer.put([number])
    sink.released.set()
    writer.close()
    assert b"".join(sink.writes).split() == [b"%d" % number for number in range(50)]
    assert (writer.written, writer.dropped, sink.is_closed) == (50, 0, True)


@pytest.mark.parametrize(("size", "fits"), [(0, 3), (500, 2)], ids=["number", "bytes"])
def test_what_waits_is_bounded_and_drops_are_reported(size: int, fits: int) -> None:
    sink = SlowSink()
    writer = writer_to(sink, waiting_max=3)
    writer.put([0])
    assert sink.entered.wait(10)  # the first is with the sink, the others wait
    for number in range(1, 11):
        writer.put([number], size)
    assert writer.dropped == 10 - fits
    sink.released.set()
    writer.close()
    *lines, report = b"".join(sink.writes).splitlines()
    assert lines == [b"%d" % number for number in range(1 + fits)]
    assert report == b'{"event":"log.dropped","count":%d,"total":%d}' % (10 - fits, 10 - fits)
    assert writer.written == 1 + fits


def test_an_empty_list_is_no_line() -> None:
    sink = SlowSink()
    sink.released.set()
    writer = writer_to(sink)
    writer.put([])
    writer.close()
    assert sink.writes == []


def test_a_full_disk_is_counted_and_the_next_write_reports_it() -> None:
    sink = SlowSink()
    sink.is_full = True
    writer = writer_to(sink)
    writer.put([1, 2])
    assert sink.entered.wait(10)
    sink.released.set()
    while not writer.dropped:
        pass
    sink.is_full = False
    writer.put([3])
    writer.close()
    assert b"".join(sink.writes).splitlines() == [b"3", b'{"event":"log.dropped","count":2,"total":2}']
    assert (writer.dropped, writer.written) == (2, 1)


def test_a_file_without_a_bound_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"old\n")
    file = RotatingFile(path)
    file.write(b"new\n" * 10_000)
    file.close()
    assert path.stat().st_size == 4 + 40_000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_full_file_is_put_aside_and_the_oldest_goes(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.log"
    file = RotatingFile(path, max_bytes=10, keep=keep)
    for number in range(5):
        file.write(b"line %d\n" % number)
    file.close()
    kept = sorted(tmp_path.iterdir())
    assert [each.name for each in kept] == ["a.log", "a.log.1", "a.log.2"][: keep + 1]
    assert [each.read_bytes() for each in kept] == [b"line 4\n", b"line 3\n", b"line 2\n"][: keep + 1]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("owned", [True, False])
def test_only_an_owned_stream_is_closed(owned: bool) -> None:
    stream = io.StringIO()
    sink = TextSink(stream, owned=owned)
    sink.write("é\n".encode())
    assert stream.getvalue() == "é\n"
    sink.close()
    assert stream.closed is owned
