"""Custom queries: found in their files, restarted when they fail, and reported. `test_sensors.py` runs them in Spark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.pipeline.queries import (
    PAUSE_MAX_S,
    STABLE_S,
    QueryError,
    UserQuery,
    load_queries,
    repair_checkpoint,
)

SPARK: Any = object()


class Query:
    """Stands for one of Spark's."""

    def __init__(self) -> None:
        self.isActive = True
        self.failure: Exception | None = None

    def exception(self) -> Exception | None:
        return self.failure

    def fail(self, failure: Exception | None) -> None:
        self.isActive, self.failure = False, failure


class QueryDriver:
    """One user query, and the starts that were asked of it."""

    def __init__(self) -> None:
        self.started: list[tuple[Any, Any, str]] = []
        self.queries: list[Query] = []
        self.failures: list[Exception] = []
        self.own = UserQuery("own-x", self._start)

    def _start(self, spark: Any, place: Any, checkpoint: str) -> Any:
        self.started.append((spark, place, checkpoint))
        if self.failures:
            raise self.failures.pop()
        self.queries.append(Query())
        return self.queries[-1]

    def check(self, now_s: float) -> int:
        self.own.check(now_s, SPARK, {"path": "/data"}, Path("/lake/_checkpoints"), str)
        return len(self.started)


def test_a_query_is_started_once_with_its_place_and_its_checkpoint() -> None:
    driver = QueryDriver()
    assert [driver.check(now_s) for now_s in (0.0, 1.0, 500.0)] == [1, 1, 1]
    assert driver.started == [(SPARK, {"path": "/data"}, "/lake/_checkpoints/own-x")]
    assert driver.own.state == "running"
    assert driver.own.query is driver.queries[0]


@pytest.mark.promise(
    "Spark: pipeline",
    "custom queries run in the pipeline's session, and a failing one disturbs no other",
)
def test_one_that_fails_is_started_again_later_each_time() -> None:
    driver = QueryDriver()
    driver.failures = [RuntimeError("no such stream") for _ in range(12)]
    starts = []
    for now_s in range(2_000):
        before = len(driver.started)
        if driver.check(float(now_s)) > before:
            starts.append(now_s)
    pauses = [later - sooner for sooner, later in pairwise(starts)]
    assert pauses[:5] == [2, 4, 8, 16, 32]
    assert set(pauses[5:]) == {int(PAUSE_MAX_S)}
    assert driver.own.state == "running"


@pytest.mark.promise(
    "Spark: pipeline",
    "custom queries run in the pipeline's session, and a failing one disturbs no other",
)
def test_the_reason_it_does_not_run_is_reported() -> None:
    driver = QueryDriver()
    driver.check(0.0)
    driver.queries[0].fail(RuntimeError("no such stream"))
    driver.check(1.0)
    assert driver.own.state == "no such stream; next attempt after 2 s"
    assert driver.own.query is None
    assert driver.check(2.9) == 1
    assert driver.check(3.0) == 2
    driver.queries[1].fail(None)
    driver.check(4.0)
    assert driver.own.state == "it ended by itself; next attempt after 4 s"


def test_one_that_ran_long_is_tried_again_soon() -> None:
    driver = QueryDriver()
    driver.failures = [RuntimeError("not yet")] * 3
    now_s = 0.0
    while not driver.queries:
        driver.check(now_s)
        now_s += 1
    driver.queries[0].fail(RuntimeError("a hiccup"))
    driver.check(now_s + STABLE_S)
    assert driver.own.state == "a hiccup; next attempt after 2 s"


@pytest.mark.promise(
    "Spark: pipeline",
    "custom queries run in the pipeline's session, and a failing one disturbs no other",
)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "which does not exist"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("begin = 1", r"has no function `start\(spark, place, checkpoint\)`"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(QueryError, match=said):
        load_queries([str(file)])


def test_two_files_of_one_name_would_share_a_checkpoint(tmp_path: Path) -> None:
    files = [tmp_path / folder / "mine.py" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("def start(spark, place, checkpoint): ...")
    assert [own.name for own in load_queries([str(files[0])])] == ["own-mine"]
    with pytest.raises(QueryError, match=r"two files `mine.py`"):
        load_queries([str(file) for file in files])


@pytest.mark.promise(
    "Spark: pipeline",
    "custom queries run in the pipeline's session, and a failing one disturbs no other",
)
def test_what_an_interrupted_first_batch_left_does_not_keep_a_query_from_starting(tmp_path: Path) -> None:
    offsets = tmp_path / "own-x" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.d320ac9c.tmp").write_text("v1")
    (offsets / "..0.d320ac9c.tmp.crc").write_text("crc")
    driver = QueryDriver()
    driver.own.check(0.0, SPARK, {}, tmp_path, str)
    assert len(driver.started) == 1
    assert list(offsets.iterdir()) == []


@pytest.mark.promise(
    "Spark: pipeline",
    "custom queries run in the pipeline's session, and a failing one disturbs no other",
)
def test_a_checkpoint_with_a_batch_is_left_as_it_is(tmp_path: Path) -> None:
    offsets = tmp_path / "own-x" / "offsets"
    offsets.mkdir(parents=True)
    for name in ("0", ".0.crc", ".1.d320ac9c.tmp"):
        (offsets / name).write_text("v1")
    QueryDriver().own.check(0.0, SPARK, {}, tmp_path, str)
    assert repair_checkpoint(tmp_path / "own-x") == []
    assert sorted(file.name for file in offsets.iterdir()) == [".0.crc", ".1.d320ac9c.tmp", "0"]
    assert repair_checkpoint(tmp_path / "nowhere") == []
