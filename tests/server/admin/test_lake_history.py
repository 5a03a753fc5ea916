"""The history beyond the rings: rows of the lake before those of the server, in one answer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.core.clock import Now
from penstock.server.admin.lake import LakeHistory, SqlEndpoint
from penstock.server.config.sections import ConsoleSection
from penstock.server.metrics.history import DAY_S, WEEK_S, HistoryQuery, MetricsHistory

IN, DEPTH = "penstock_q_in_total", "penstock_q_depth"
NOW_S = 1_800_000_000 // 60 * 60
NOW = Now(5_000_000, NOW_S * 1_000_000)


def write_minutes(folder: Path, rows: list[dict[str, Any]], now_s: int = NOW_S) -> None:
    """Write rows of `queue_minutes`: a channel, how many minutes before `now_s`, and what differs from an empty minute."""
    counts = dict.fromkeys(("enqueued", "delivered", "acked", "dead"), 0)
    found = []
    for row in rows:
        at = datetime.fromtimestamp(now_s - 60 * row["ago"], UTC)
        depths = {"ready": None, "leased": None, "delayed": None}
        found.append(
            {
                "journal": "mine",
                "date": at.date(),
                "minute": at,
                **counts,
                **depths,
                **{k: v for k, v in row.items() if k != "ago"},
            }
        )
    schema = pa.schema(
        [
            ("journal", pa.string()),
            ("date", pa.date32()),
            ("minute", pa.timestamp("us", "UTC")),
            ("channel", pa.string()),
        ]
        + [(name, pa.int64()) for name in (*counts, "ready", "leased", "delayed")]
    )
    write_deltalake(folder / "lake" / "queue_minutes", pa.Table.from_pylist(found, schema))


def history_of(data: Path | None, rings: MetricsHistory | None = None) -> LakeHistory:
    return LakeHistory(rings or MetricsHistory(), SqlEndpoint(data, ConsoleSection), data, "mine")


@pytest.mark.promise("Console", "plots reach back seven days and over restarts, from the lake")
def test_rows_of_the_lake_come_before_those_of_the_server(tmp_path: Path) -> None:
    write_minutes(
        tmp_path,
        [
            {"channel": "jobs", "ago": 60 * 24 * 6, "enqueued": 840},
            {"channel": "jobs", "ago": 40, "enqueued": 120, "ready": 7},
            {"channel": "it's", "ago": 40, "enqueued": 60, "ready": 1},
            {"channel": "jobs", "ago": 37, "enqueued": 60},
            {"channel": "jobs", "ago": 37, "enqueued": 600, "ready": 9, "journal": "of another server"},
            {"channel": "jobs", "ago": 60 * 24 * 9, "enqueued": 5},
        ],
    )
    rings = MetricsHistory()
    for at_s, count in ((0, 10), (5, 60)):
        rings.server.add(at_s, {IN: count, DEPTH: 3})
    history = history_of(tmp_path, rings)

    async def ask(**query: Any) -> Any:
        return await history.reply(HistoryQuery(**query), NOW)

    async def work() -> None:
        hour = await ask()
        assert [NOW_S - time for time in hour.times] == [2_400, 2_340, 2_280, 2_220, 5, 0]
        assert hour.columns[IN] == [3, 0, 0, 1, None, 10] and hour.note is None
        assert hour.columns[DEPTH] == [None] * 4 + [3, 3], "depths of several streams are not added up"
        jobs = await ask(stream="jobs")
        assert jobs.columns[IN] == [2, 0, 0, 1] and jobs.columns[DEPTH] == [7, 7, 7, 7] and not jobs.sampled
        assert (await ask(stream="it's")).columns[IN] == [1]
        assert len((await ask(seconds=DAY_S)).times) == 2 + 2
        week = await ask(seconds=WEEK_S)
        assert week.columns[IN][0] == 1 and week.times[0] <= NOW_S - 6 * DAY_S
        assert len(week.times) <= 720 + 2

    asyncio.run(work())


def test_an_answer_of_the_lake_is_kept_for_a_minute(tmp_path: Path) -> None:
    write_minutes(tmp_path, [{"channel": "jobs", "ago": 10, "enqueued": 60}])
    history = history_of(tmp_path)

    async def work() -> None:
        first, second = await asyncio.gather(*(history.reply(HistoryQuery(), NOW) for _ in range(2)))
        assert first.times and first == second
        (tmp_path / "lake").rename(tmp_path / "gone")
        assert (await history.reply(HistoryQuery(), NOW)).times
        later = Now(NOW.us + 61_000_000, NOW.wall_us + 61_000_000)
        assert "queue_minutes" in str((await history.reply(HistoryQuery(), later)).note)

    asyncio.run(work())


def test_without_a_lake_the_answer_says_so() -> None:
    reply = asyncio.run(history_of(None).reply(HistoryQuery(), NOW))
    assert reply.times == [] and reply.note == "this server keeps no tables"
