"""Logs: one line an event, no tokens, and no blocking of the loop."""

import io
import json
import logging
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.config.sections import LogsSection
from penstock.server.logging import logs

PENSTOCK = logging.getLogger("penstock")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Stuck(io.StringIO):
    """A stream whose first write waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.go_on.wait(30)
        return super().write(text)


class Broken(io.StringIO):
    """A stream that fails until it is repaired."""

    broken = True

    def __init__(self) -> None:
        super().__init__()
        self.failed = threading.Event()

    def write(self, text: str) -> int:
        if self.broken:
            self.failed.set()
            raise OSError(28, "no space left")
        return super().write(text)


@pytest.fixture(autouse=True)
def quiet_root() -> Iterator[None]:
    """Each test leaves logging as it found it."""
    before = (logging.getLogger().level, PENSTOCK.level)
    yield
    assert (logging.getLogger().level, PENSTOCK.level) == before
    assert not any(isinstance(handler, logs.LogWriter) for handler in logging.getLogger().handlers)


def lines(emit: Callable[[], None], settings: LogsSection | None = None) -> list[dict[str, Any]]:
    stream = io.StringIO()
    writer = logs.setup(settings or LogsSection(), stream)
    emit()
    writer.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def text_of(emit: Callable[[], None], stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    writer = logs.setup(LogsSection(format="text"), stream)
    emit()
    writer.close()
    return stream.getvalue()


@pytest.mark.promise("Foundations", "logs are structured and never contain a token")
def test_an_event_is_one_json_line() -> None:
    (line,) = lines(lambda: logs.event("conn.open", link=7, peer="127.0.0.1", tags=["a"], name="x", none=None))
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "event": "conn.open",
        "link": 7,
        "peer": "127.0.0.1",
        "tags": ["a"],
        "name": "x",
        "none": None,
    }


def test_events_keep_their_order() -> None:
    def emit() -> None:
        for n in range(1_000):
            logs.event("tick", n=n)

    assert [line["n"] for line in lines(emit)] == list(range(1_000))


def test_the_level_decides_what_is_written() -> None:
    def emit() -> None:
        logs.detail("a")
        logs.event("b")
        logs.warning("c")
        logs.error("d")

    assert [line["event"] for line in lines(emit, LogsSection(level="debug"))] == ["a", "b", "c", "d"]
    assert [line["event"] for line in lines(emit, LogsSection(level="warning"))] == ["c", "d"]
    assert [line["level"] for line in lines(emit)] == ["info", "warning", "error"]


def test_before_the_set_up_events_go_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    logs.event("conn.open")
    assert capsys.readouterr() == ("", "")


def test_an_error_carries_its_traceback() -> None:
    (line,) = lines(lambda: logs.error("bug", exc=RuntimeError("boom"), link=1))
    assert line["error"] == "RuntimeError: boom" and line["link"] == 1


def test_lines_of_other_libraries_come_along() -> None:
    other = logging.getLogger("some.library")

    def emit() -> None:
        other.info("not important")
        other.warning("slow by %d ms, Authorization: Bearer %s", 5, "abc")
        try:
            raise ValueError("inside")
        except ValueError:
            other.exception("failed")

    slow, failed = lines(emit)
    assert (slow["event"], slow["message"]) == (
        "some.library",
        "slow by 5 ms, Authorization: Bearer [hidden]",
    )
    assert "ValueError: inside" in failed["error"]


@pytest.mark.parametrize(
    "fields",
    [
        {"token": "hunter2"},
        {"Authorization": "hunter2"},
        {"operator_token": "hunter2"},
        {"headers": {"authorization": "Bearer hunter2", "Cookie": "hunter2", "x": [{"token": "hunter2"}]}},
        {"why": "sent Bearer hunter2, which we do not know"},
        {"why": "sent bearer.hunter2"},
        {"url": "/v1/subscribe?stream=a&access_token=hunter2&credit=1"},
        {"raw": b"authorization: bearer hunter2"},
        {"error": "x\ny Bearer hunter2"},
        {"pair": ("Bearer hunter2", 1)},
    ],
)
def test_a_token_never_appears(fields: dict[str, Any]) -> None:
    def emit() -> None:
        logs.event("conn.open", **fields)

    (line,) = lines(emit)
    assert "hunter2" not in str(line) and logs.HIDDEN in str(line)
    assert "hunter2" not in text_of(emit)


def test_a_payload_appears_only_when_asked_for() -> None:
    def emit() -> None:
        logs.event("enqueue", id="e-1", payload={"a": 1})

    assert "payload" not in lines(emit)[0]
    assert lines(emit, LogsSection(payload=True))[0]["payload"] == {"a": 1}


def test_a_field_cannot_pose_as_the_head_of_a_line() -> None:
    (line,) = lines(lambda: logs.event("real", event="forged", level="forged", ts="forged"))
    assert (line["event"], line["level"]) == ("real", "info") and line["ts"] != "forged"


def test_values_are_bounded() -> None:
    (line,) = lines(lambda: logs.event("big", text="x" * 100_000, many=list(range(10_000))))
    assert len(line["text"]) == logs.VALUE_MAX + 1 and len(line["many"]) == 100


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError


def test_a_value_that_cannot_be_shown_costs_only_its_line() -> None:
    def emit() -> None:
        logs.event("odd", value=Unprintable())
        logs.event("half", value="\ud800", big=2**100)
        logs.event("fine")

    assert [line["event"] for line in lines(emit)] == ["log.unprintable", "half", "fine"]


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3))
def test_text_is_always_one_printable_line(fields: dict[str, str]) -> None:
    record = logging.LogRecord("penstock", logging.INFO, "", 0, "conn.open", None, None)
    record.fields = {key: value for key, value in fields.items() if key.isidentifier()}
    assert logs.TextLine(colour=False).format(record).isprintable()


def test_json_has_no_character_that_controls_a_terminal() -> None:
    text = "\x9b2J \u202etxt \x7f \U000e0001 caf\xe9"
    record = logging.LogRecord("penstock", logging.INFO, "", 0, "conn.open", None, None)
    record.fields = {"name": text}
    line = logs.JsonLine().format(record)
    assert line.isprintable() and "caf\xe9" in line and r"\u202etxt" in line
    assert json.loads(line)["name"] == text


def test_text_quotes_what_could_be_mistaken() -> None:
    text = text_of(lambda: logs.event("conn.open", a="plain", b="two words", c="", d="\x1b[31m", e=[1, "x"], f=True))
    assert text.endswith('info    conn.open a=plain b="two words" c="" d=\\x1b[31m e=[1,"x"] f=true\n')


def test_text_shows_a_traceback_below_its_line() -> None:
    text = text_of(lambda: logs.event("bug", error="Traceback\n  File \x1b[2J", link=1))
    assert text.endswith("info    bug link=1\nTraceback\n  File \\x1b[2J\n")


def test_a_terminal_gets_coloured_text_and_a_file_gets_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    writer = logs.setup(LogsSection(), terminal)
    logs.warning("disk.full")
    writer.close()
    assert "\x1b[33mwarning\x1b[0m disk.full" in terminal.getvalue()
    assert "\x1b" not in text_of(lambda: logs.event("x"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in text_of(lambda: logs.event("x"), Terminal())


def test_a_file_is_appended_to_and_private(tmp_path: Path) -> None:
    path = tmp_path / "penstock.log"
    for name in ("first", "second"):
        writer = logs.setup(LogsSection(file=str(path)))
        logs.event(name)
        writer.close()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["first", "second"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_stuck_stream_drops_and_counts_but_does_not_wait() -> None:
    stream = Stuck()
    writer = logs.setup(LogsSection(), stream)
    logs.event("first")
    assert stream.reached.wait(30)
    for n in range(logs.QUEUE_MAX + 25):
        logs.event("tick", n=n)
    assert writer.dropped == 25
    stream.go_on.set()
    writer.close()
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    ticks = [line["n"] for line in found if line["event"] == "tick"]
    assert ticks == list(range(logs.QUEUE_MAX))
    reports = [line for line in found if line["event"] == "log.dropped"]
    assert [(line["count"], line["total"]) for line in reports] == [(25, 25)]


def test_a_broken_stream_counts_its_losses_and_reports_them_after_recovery() -> None:
    stream = Broken()
    writer = logs.setup(LogsSection(), stream)
    logs.event("lost")
    assert stream.failed.wait(30)
    stream.broken = False
    logs.event("found")
    writer.close()
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in found] == ["found", "log.dropped"]
    assert found[1]["count"] == writer.dropped == 1


def test_closing_twice_is_harmless() -> None:
    writer = logs.setup(LogsSection(), io.StringIO())
    writer.close()
    writer.close()


def test_the_last_lines_are_written_at_exit() -> None:
    program = (
        "from penstock.server.logging import logs\n"
        "from penstock.server.config.sections import LogsSection\n"
        "logs.setup(LogsSection())\n"
        "for n in range(3000): logs.event('tick', n=n)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 3000
