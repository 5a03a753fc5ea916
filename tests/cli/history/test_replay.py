"""`penstock replay`: known envelopes are duplicates, and pauses scale with the speed."""

from __future__ import annotations

import asyncio

import pytest

from penstock.cli.history.replay import _play


@pytest.mark.promise("Journal", "`penstock replay` enqueues history again")
def test_replay_stores_again_only_what_is_not_known(cli, story, busy):
    part = [*story, "--json"]
    (same,) = cli("replay", *part)
    assert (same["stored"], same["duplicates"], same["refused"]) == (0, 4, 0)
    (moved,) = cli("replay", "--prefix", "again/", "--channel", "jobs/*", "--speed", "1000", *part)
    assert (moved["stored"], moved["duplicates"]) == (3, 0)
    (fresh,) = cli("replay", "--kind", "mail.new", "--new-ids", "--to-url", busy.control, *part)
    assert fresh["stored"] == 1
    rows = cli("log", "cat", "--kind", "mail.new", "--event", "enqueue", "--json")
    assert len({row["id"] for row in rows}) == len(rows) == 2
    assert [row["body"]["payload"] for row in rows] == [{"n": 1}] * 2
    assert [row["sender"] for row in rows] == ["sam"] * 2


@pytest.mark.promise("Journal", "`penstock replay` enqueues history again")
def test_replay_keeps_the_pauses_scaled_by_its_speed():
    class Clocked:
        def __init__(self):
            self.times = []

        async def put(self, *row):
            self.times.append(asyncio.get_running_loop().time())

        async def flush(self):
            return None

    rows = [{"recorded_at": at_us, "event": "enqueue", "channel": "c", "body": b"{}"} for at_us in (0, 0, 80_000)]
    feed = Clocked()
    asyncio.run(_play(iter(rows), feed, 2.0))
    first, second, third = feed.times
    assert second - first < third - second and third - first >= 0.039
