"""Child processes: their task, their end, restarts after failures, and the order of stopping."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from penstock.server.engine.child_supervisor import (
    ERRORS_MAX,
    EXIT_NOT_STARTED,
    LOGS_KEPT,
    AfterExit,
    Backoff,
    ChildError,
    ChildSupervisor,
    _send_task,
    run_child,
)

POLL_S = 0.01
QUICK = Backoff(first_s=0.001, max_s=0.004, stable_s=60.0)
Result = TypeVar("Result")


class Task(msgspec.Struct):
    word: str


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a module out of a script; `word` is the word of its task."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(script: str) -> str:
        head = "import json, os, signal, sys, time\nword = json.loads(sys.stdin.readline())['word']\n"
        (tmp_path / "a_child.py").write_text(head + script)
        return "a_child"

    return make


def run(work: Awaitable[Result]) -> Result:
    async def bounded() -> Result:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(bounded())


async def until(is_done: Callable[[], bool]) -> None:
    while not is_done():  # noqa: ASYNC110 - another process changes a file
        await asyncio.sleep(POLL_S)


def test_a_short_lived_child_answers_its_task(child: Callable[[str], str]) -> None:
    module = child("assert not sys.stdin.read()\nprint(word + os.environ['MORE'], end='')")
    assert run(run_child(module, Task("é"), {"MORE": "!"})) == "é!".encode()


def test_a_failure_carries_the_exit_code_and_the_end_of_stderr(child: Callable[[str], str]) -> None:
    module = child("sys.stderr.write('x' * 300_000 + 'the end')\nsys.exit(7)")
    with pytest.raises(ChildError) as failure:
        run(run_child(module, Task("a")))
    assert failure.value.exit_code == 7
    assert failure.value.errors.endswith("the end") and len(failure.value.errors) == ERRORS_MAX


def test_a_child_that_reads_no_task_is_no_error_of_ours(child: Callable[[str], str]) -> None:
    module = child("")
    Path(os.environ["PYTHONPATH"], "a_child.py").write_text("raise SystemExit(9)")
    with pytest.raises(ChildError) as failure:
        run(run_child(module, Task("a" * 10_000_000)))
    assert failure.value.exit_code == 9


def test_cancelling_kills_a_short_lived_child(child: Callable[[str], str], tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    module = child("open(word + '.new', 'w').write(str(os.getpid()))\nos.rename(word + '.new', word)\ntime.sleep(60)")

    async def cancel() -> None:
        work = asyncio.ensure_future(run_child(module, Task(str(pid_file))))
        await until(pid_file.exists)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    run(cancel())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_reports_are_read_until_stdout_closes(child: Callable[[str], str]) -> None:
    supervisor = ChildSupervisor(child("print(word)\nsys.exit(3)"), stdout="reports")
    lines: list[bytes] = []

    async def read(stdout: asyncio.StreamReader) -> None:
        lines.extend([line async for line in stdout])

    assert run(supervisor.run(Task("hello"), read)) == 3
    assert lines == [b"hello\n"]


def test_each_run_has_a_log_and_a_few_earlier_ones_are_kept(child: Callable[[str], str], tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    supervisor = ChildSupervisor(child("print(word)\nprint('e', file=sys.stderr)"), log=log, stdout="log")
    for number in range(LOGS_KEPT + 2):
        run(supervisor.run(Task(str(number))))
    logs = {path.name: sorted(path.read_text().split()) for path in tmp_path.glob("child.log*")}
    assert logs == {"child.log": ["4", "e"], **{f"child.log.{ago}": [str(4 - ago), "e"] for ago in (1, 2, 3)}}


def test_a_child_that_cannot_start_is_an_exit_code_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    supervisor = ChildSupervisor("json")
    assert run(supervisor.run(Task("a"))) == EXIT_NOT_STARTED
    assert "/nowhere/python" in supervisor.start_error


def keep(supervisor: ChildSupervisor, codes: list[int], verdicts: list[AfterExit]) -> list[tuple[int, float]]:
    """Let a supervisor restart runs that end with these codes; returns what it was asked each time."""
    asked: list[tuple[int, float]] = []

    async def once() -> int:
        return codes.pop(0)

    async def exited(code: int, pause_s: float) -> AfterExit:
        asked.append((code, pause_s))
        return verdicts.pop(0)

    run(supervisor.keep_running(QUICK, once, exited))
    return asked


def test_the_pause_doubles_up_to_its_bound_and_a_restart_resets_it() -> None:
    supervisor = ChildSupervisor("json")
    verdicts: list[AfterExit] = ["back_off", "back_off", "back_off", "back_off", "restart", "end"]
    asked = keep(supervisor, [1, 1, 1, 1, 4, 0], verdicts)
    assert asked == [(1, 0.001), (1, 0.002), (1, 0.004), (1, 0.004), (4, 0.004), (0, 0.001)]
    assert supervisor.restarts == 4


def test_stopping_ends_the_pause_before_a_restart() -> None:
    supervisor = ChildSupervisor("json")
    runs = 0

    async def once() -> int:
        nonlocal runs
        runs += 1
        return 1

    async def exited(_code: int, _pause_s: float) -> AfterExit:
        asyncio.get_running_loop().call_later(POLL_S, lambda: asyncio.ensure_future(supervisor.stop(0.0)))
        return "back_off"

    run(supervisor.keep_running(Backoff(first_s=60.0, max_s=60.0, stable_s=60.0), once, exited))
    assert runs == 1


def test_nothing_is_asked_once_it_is_stopping() -> None:
    supervisor = ChildSupervisor("json")
    assert run(supervisor.stop(0.0))
    assert keep(supervisor, [], []) == []


@pytest.mark.parametrize(
    ("script", "is_in_time"),
    [
        ("open(word, 'w').close()\nsys.stdin.read()", True),
        ("open(word, 'w').close()\ntime.sleep(60)", False),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(word, 'w').close()\ntime.sleep(60)", False),
    ],
    ids=["closed stdin is enough", "terminated", "killed"],
)
def test_a_child_is_asked_then_terminated_then_killed(
    child: Callable[[str], str], tmp_path: Path, script: str, is_in_time: bool
) -> None:
    pid_file = tmp_path / "pid"
    supervisor = ChildSupervisor(child(script))

    async def stop() -> bool:
        process = await supervisor.start(Task(str(pid_file)))
        await until(pid_file.exists)
        in_time = await supervisor.stop(5.0 if is_in_time else 0.05)
        assert process.returncode is not None
        return in_time

    assert run(stop()) is is_in_time


def test_stopping_what_never_started_is_fine() -> None:
    supervisor = ChildSupervisor("json")
    assert run(supervisor.stop(1.0))


def test_death_by_a_signal_is_not_taken_for_a_child_that_could_not_start(child: Callable[[str], str]) -> None:
    module = child("import signal\nos.kill(os.getpid(), signal.SIGUSR1)")
    supervisor = ChildSupervisor(module)
    code = run(supervisor.run(Task("a")))
    assert code == -signal.SIGUSR1 != EXIT_NOT_STARTED and supervisor.start_error == ""


def test_a_stop_during_the_start_ends_the_child(child: Callable[[str], str]) -> None:
    async def go() -> int:
        supervisor = ChildSupervisor(child("sys.stdin.read()"))
        running = asyncio.ensure_future(supervisor.run(Task("a")))
        await asyncio.sleep(0)  # the process is being started and not known yet
        await supervisor.stop(1.0)
        return await asyncio.wait_for(running, 30)

    assert run(go()) == 0


def test_a_cancelled_child_leaves_no_task_behind(child: Callable[[str], str]) -> None:
    async def go() -> int:
        before = len(asyncio.all_tasks())
        running = asyncio.ensure_future(run_child(child("import time\ntime.sleep(60)"), Task("a")))
        await asyncio.wait({running}, timeout=0.3)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return len(asyncio.all_tasks()) - before

    assert run(go()) == 0


def test_a_child_whose_pipe_is_closed_already_is_not_fed() -> None:
    """uvloop raises RuntimeError when a child exits before its task is written; the exit code must still be seen."""

    class Closed:
        def write(self, data: bytes) -> None:
            raise RuntimeError("unable to perform operation; the handler is closed")

    class Process:
        stdin = Closed()

    asyncio.run(_send_task(Process(), QUICK))  # type: ignore[arg-type]
