"""The frame recorder: whole lines in both directions, bounded, without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.scopes import ANONYMOUS
from penstock.server.courier.frame_recorder import FRAME_COST, HIDDEN, Recorder, open_control
from tests.dialects.courier.talking import Broker, ListWire, envelope, line


def rows(file: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(row) for row in file.read_bytes().splitlines()]


def recorder_at(file: Path, *, redact: bool = True, waiting_max: int = 1 << 20) -> Recorder:
    return Recorder(str(file), redact=redact, waiting_max=lambda: waiting_max)


@pytest.mark.promise("Limits, reload and HTTP details", "frames are recorded whole, within a bound, without tokens")
@settings(max_examples=25)
@given(st.lists(st.integers(1, 40), max_size=12))
def test_lines_are_recorded_whole_wherever_they_are_cut(tmp_path_factory: Any, cuts: list[int]) -> None:
    file = tmp_path_factory.mktemp("recorded") / "frames.jsonl"
    broker, recorder = Broker(), recorder_at(file)
    connection = open_control(broker.runtime, recorder, ListWire(), ANONYMOUS, "test")
    said = b"\n" + b"".join(line(type_="enqueue", to="s", env=envelope(f"{n}"), reqId=n) for n in range(3))
    rest = said
    for cut in cuts:
        connection.received(rest[:cut] or b"\n")
        rest = rest[cut:]
    connection.received(rest or b"\n")
    broker.run()
    recorder.close()
    found = rows(file)
    heard = [row["frame"] for row in found if row["dir"] == "in"]
    assert heard == [msgspec.json.decode(part) for part in said.splitlines() if part]
    assert [row["frame"]["reqId"] for row in found if row["dir"] == "out"] == [0, 1, 2]
    assert recorder.dropped == 0


def test_tokens_are_left_out_unless_they_are_asked_for(tmp_path: Path) -> None:
    for redact, token in ((True, HIDDEN), (False, "secret")):
        file = tmp_path / f"{redact}.jsonl"
        recorder = recorder_at(file, redact=redact)
        recorder.record(0, "in", 1, b'{"type":"hello","token":"secret"}')
        recorder.close()
        assert rows(file) == [
            {
                "ts": "1970-01-01T00:00:00.000Z",
                "dir": "in",
                "frame": {"type": "hello", "token": token},
                "link": 1,
            }
        ]


@pytest.mark.promise("Limits, reload and HTTP details", "frames are recorded whole, within a bound, without tokens")
def test_what_does_not_fit_is_dropped_and_counted(tmp_path: Path) -> None:
    recorder = recorder_at(tmp_path / "frames.jsonl", waiting_max=FRAME_COST + 20)
    recorder.record(0, "in", 1, b'"' + b"x" * 50 + b'"')
    recorder.record(0, "in", 1, b'"fits"')
    recorder.close()
    assert recorder.dropped == 1
    assert [row["frame"] for row in rows(tmp_path / "frames.jsonl")] == ["fits"]
