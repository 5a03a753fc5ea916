"""A writer killed at any moment: its committed rows are there once, and the rest is written after a restart."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.spark.lake.table import LakeTable
from tests.server_process import environment
from tests.spark.lakes import APP, COUNTS, LATEST, NOTES, counted, offsets
from tests.tiers import first_of

ROUNDS = first_of((2, 5), 1)
COMMITS = 60

WRITER = """
import os, signal, sys, time
from pathlib import Path
import pyarrow as pa
from penstock.spark.lake.table import LakeTable, Progress
from tests.spark.lakes import APP, COUNTS, LATEST, NOTES, counts, notes

lake, commits, left = Path(sys.argv[1]), int(sys.argv[2]), 0

def die(event, arguments):  # at the n-th time that something happens to a file of the lake
    global left
    if event in ("open", "os.rename", "os.remove", "os.utime", "os.mkdir") and str(lake) in str(arguments[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def write():
    sys.addaudithook(die)
    appended, merged, latest = (LakeTable(lake, table) for table in (NOTES, COUNTS, LATEST))
    for number in range(commits):
        span = Progress(number, number + 1)
        for table in (appended, merged, latest):  # the batch is replayed whole: each table knows what it has
            if (table.progress(APP) or 0) > number:
                continue
            if table is appended:
                table.append(notes(number, number + 1), {APP: span})
            elif table is merged:
                table.merge(counts({("all", number // 5): number, ("one", number): number}), {APP: span})
            else:
                row = {"journal": "j1", "address": f"a{number % 4}", "offset": number, "tags": [str(number)]}
                table.merge(pa.Table.from_pylist([row], LATEST.schema), {APP: span})
        if number % 7 == 6:
            for table in (appended, merged):
                table.compact_files(files_min=2)
                table.log.sweep(time.time(), age_s=0)

for line in sys.stdin:
    left = int(line)
    child = os.fork()
    if child == 0:
        write()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[[int], int]]:
    """Runs a writer until it dies, at the n-th thing that it does to a file, or comes to its end; returns the exit code.

    The writers are forks of one process that has the code loaded.
    """
    words = [sys.executable, "-c", WRITER, str(tmp_path), str(COMMITS)]
    env = environment(PYTHONPATH=str(Path.cwd()))
    with subprocess.Popen(
        words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        asked, told = parent.stdin, parent.stdout

        def run(dies_at: int) -> int:
            asked.write(f"{dies_at}\n")
            return int(told.readline())

        yield run


@pytest.mark.promise("Spark: pipeline", "progress is stored in the table; killed writers lose and duplicate nothing")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_killed_writers_lose_nothing_and_double_nothing(tmp_path, write, rounds):
    dice = random.Random(7)
    for _ in range(rounds):
        assert write(dice.randrange(1, 120)) == -signal.SIGKILL
        table = LakeTable(tmp_path, NOTES)
        reached = table.progress(APP) or 0
        if table.delta() is not None:  # whatever is there is whole, at every moment
            assert offsets(table.rows()) == list(range(reached))
    assert 0 < reached < COMMITS  # it died in the middle
    assert write(0) == 0
    assert offsets(LakeTable(tmp_path, NOTES).rows()) == list(range(COMMITS))
    model = {("one", number): number for number in range(COMMITS)}
    model |= {("all", number // 5): number for number in range(COMMITS)}
    assert counted(LakeTable(tmp_path, COUNTS).rows()) == model
    newest = {row["address"]: row["tags"] for row in LakeTable(tmp_path, LATEST).rows().to_pylist()}
    assert newest == {f"a{number % 4}": [str(number)] for number in range(COMMITS - 4, COMMITS)}
    for table in (NOTES, COUNTS, LATEST):
        assert LakeTable(tmp_path, table).progress(APP) == COMMITS
