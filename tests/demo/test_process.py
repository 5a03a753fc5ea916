"""The process of the demo: its parts, restarts after failures, and its end with its input."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from penstock.core.errors import PenstockError, Refusal
from penstock.demo import process
from penstock.demo.sensors import SENSORS
from penstock.demo.task import DemoTask, SpaceTask, StoryTask

PATIENCE_S = 20.0
NOWHERE = "tcp://127.0.0.1:1"
AGENTS = ["architect", "jen", "ops", "sam", "kim"]


class Flaky:
    """A part that fails a few times in its own way."""

    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.over = asyncio.Event()

    async def __call__(self) -> None:
        if not self._failures:
            self.over.set()
            await asyncio.Event().wait()
        failure = self._failures.pop(0)
        if failure is not None:
            raise ExceptionGroup("in a group", [failure])


@pytest.mark.promise(
    "SDK and command line",
    "the demo runs agents with a trigger, sensors and a story; it stops with its server and restarts after any failure",
)
def test_a_part_that_fails_begins_again_and_says_why_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PAUSE_FIRST_S", 0.001)
    gone = PenstockError(Refusal("Unreachable", "the server is gone"))

    async def run() -> None:
        part = Flaky(gone, gone, ValueError("not JSON"), None)
        task = asyncio.create_task(process.keep("sam", part))
        async with asyncio.timeout(PATIENCE_S):
            await part.over.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run())
    said = capfd.readouterr().err.splitlines()
    assert said == ["sam: Unreachable: the server is gone", "sam: not JSON", "sam: it ended by itself"]


def test_without_a_space_or_a_relay_only_the_agents_act() -> None:
    assert [name for name, _ in process.parts(DemoTask("tcp://127.0.0.1:1"))] == [
        "architect",
        "jen",
        "ops",
        "sam",
        "kim",
    ]


def test_a_space_adds_its_participants_and_a_collector_unless_spark_collects() -> None:
    tokens = dict.fromkeys(("collector", "dashboard", *SENSORS), "secret")
    for collector, first in (("python", ["collector"]), ("spark", [])):
        task = DemoTask(NOWHERE, space=SpaceTask("http://127.0.0.1:1", tokens, collector))  # type: ignore[arg-type]
        assert [name for name, _ in process.parts(task)] == [*AGENTS, *first, *SENSORS, "dashboard"]


@pytest.mark.parametrize("console", ["http://127.0.0.1:8787", None])
def test_a_relay_adds_the_story_and_a_console_its_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], console: str | None
) -> None:
    file = tmp_path / "publisher.key"
    file.write_text("ab" * 32)
    relay = StoryTask("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", str(file), console)
    assert [name for name, _ in process.parts(DemoTask(NOWHERE, relay=relay))] == [*AGENTS, "story"]
    shown = capsys.readouterr().out
    assert shown == "" if console is None else shown.startswith(f"  story    {console}/#/tokens?topic=")


def pauses(monkeypatch: pytest.MonkeyPatch, *runs_s: float) -> list[float]:
    """The pauses after runs of these lengths."""
    slept: list[float] = []

    async def go() -> None:
        loop, sleep = asyncio.get_running_loop(), asyncio.sleep
        lengths, is_over, clock_s = list(runs_s), asyncio.Event(), loop.time()

        async def part() -> None:
            nonlocal clock_s
            if not lengths:
                is_over.set()
                await loop.create_future()
            clock_s += lengths.pop(0)
            raise ValueError("always the same")

        async def note(pause_s: float) -> None:
            slept.append(pause_s)
            await sleep(0)

        monkeypatch.setattr(process, "asyncio", SimpleNamespace(get_running_loop=lambda: clock, sleep=note))
        clock = SimpleNamespace(time=lambda: clock_s)
        task = asyncio.ensure_future(process.keep("sam", part))
        await is_over.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(go())
    return slept


def test_pauses_double_up_to_a_bound_and_begin_again_after_a_long_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert pauses(monkeypatch, *[0.0] * 7) == [0.5, 1, 2, 4, 8, 10, 10]
    assert capfd.readouterr().err == "sam: always the same\n"
    assert pauses(monkeypatch, 0, 0, process.STABLE_S, 0) == [0.5, 1, 0.5, 1]
    assert capfd.readouterr().err == "sam: always the same\n" * 2, "a failure after a long run is news"


def test_the_process_ends_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    line = msgspec.json.encode(DemoTask(NOWHERE)) + b"\n"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(line)))
    assert process.main() == 0


def test_a_task_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"{}\n")))
    with pytest.raises(msgspec.ValidationError, match="url"):
        process.main()
