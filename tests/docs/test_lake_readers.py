"""The page about other programs that read the lake: each block in a directory with sealed history."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.spark.lake.schemas import QUEUE_MINUTES
from penstock.spark.lake.table import LakeTable
from tests.docs.documents import blocks
from tests.spark.journals import Written
from tests.tiers import first_of

PAGE = "docs/how-to/lake.md"
PROGRAMS = ["pandas", "duckdb", "polars", "datafusion"]
"""The first two are quick to load."""


@pytest.mark.promise("Spark: pipeline", "pandas, DuckDB, polars and DataFusion read the tables as documented")
@pytest.mark.parametrize("program", first_of(PROGRAMS, 2))
def test_other_programs_read_the_tables(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Written(tmp_path / "penstock-data")
    journal.add(5)
    journal.add(3, channel="other")
    journal.seal()
    monkeypatch.chdir(tmp_path)
    [(language, code)] = blocks(PAGE, program)
    assert language == "python"
    names: dict[str, object] = {}
    exec(compile(code, PAGE, "exec"), names)
    shown = str(names["sent"])
    assert all(text in shown for text in ("jobs", "5", "other", "3"))


def test_delta_rs_reads_the_changes_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = LakeTable(tmp_path / "penstock-data" / "lake", QUEUE_MINUTES)
    key = {"journal": "j1", "date": date(2026, 3, 1), "channel": "jobs", "minute": datetime(2026, 3, 1, tzinfo=UTC)}
    for count in (1, 2):
        minutes.merge(pa.Table.from_pylist([{**key, "enqueued": count}], QUEUE_MINUTES.schema), {})
    monkeypatch.chdir(tmp_path)
    [(_, code)] = blocks(PAGE, "changes")
    names: dict[str, object] = {}
    exec(compile(code, PAGE, "exec"), names)
    changes = names["changes"]
    assert isinstance(changes, pa.Table)
    assert sorted(changes.column("enqueued").to_pylist()) == [1, 1, 2]
