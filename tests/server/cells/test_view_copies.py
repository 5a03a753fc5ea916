"""Views of all shards, copied for the followers of a front."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.core.limits import Limits
from penstock.core.queue.views import INFLIGHT, View
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from penstock.server.cells.view_copies import ViewCopies, copy_rows
from tests.dialects.courier.talking import Broker

A, B = "jobs/a", "jobs/b"
SHARDS = shard_of_stream(A), shard_of_stream(B)


def snapshot(*rows: tuple[str, object]) -> bytes:
    return msgspec.json.encode({"rows": [{"addr": addr, "row": data} for addr, data in rows], "watermark": 1})


def test_a_copy_has_what_the_shards_have() -> None:
    view = View(INFLIGHT, "row", Limits())
    copy_rows(view, {SHARDS[0]: snapshot(("jobs/a#1", {"n": 1})), SHARDS[1]: snapshot(("jobs/b#1", 1))})
    assert {addr: (entry.stream, entry.data) for addr, entry in view.rows.items()} == {
        "jobs/a#1": (A, b'{"n":1}'),
        "jobs/b#1": (B, b"1"),
    }
    version = view.version
    copy_rows(view, {SHARDS[0]: snapshot(("jobs/a#1", {"n": 1}))})
    assert view.version == version, "nothing changed, and rows of a shard that is down stay"
    copy_rows(view, {SHARDS[0]: snapshot()})
    assert list(view.rows) == ["jobs/b#1"]


def test_a_full_copy_takes_no_new_rows() -> None:
    view = View(INFLIGHT, "row", Limits(view_rows_max=1))
    rows = {SHARDS[0]: snapshot(("jobs/a#1", 1), ("jobs/a#2", 2))}
    copy_rows(view, rows)
    version = view.version
    copy_rows(view, rows)
    assert (list(view.rows), view.version) == (["jobs/a#1"], version)


def test_only_followed_views_are_read() -> None:
    async def talk() -> None:
        broker = Broker()
        asked: asyncio.Queue[str] = asyncio.Queue()

        async def read(name: str) -> dict[int, bytes]:
            asked.put_nowait(name)
            return {SHARDS[0]: snapshot(("jobs/a#1", 1))}

        copies = ViewCopies(broker.runtime, read)
        client = broker.control()
        client.say(type_="live", view=INFLIGHT, reqId=1)
        running = asyncio.create_task(copies.run())
        assert await asked.get() == INFLIGHT
        running.cancel()
        await copies.refresh(INFLIGHT)
        assert list(broker.runtime.machine.views.inflight.rows) == ["jobs/a#1"]

    asyncio.run(talk())
