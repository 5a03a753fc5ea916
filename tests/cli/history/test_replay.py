"""`penstock replay`: known envelopes are duplicates, and pauses scale with the speed."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import penstock
from penstock.cli.history.replay import EnqueueFeed, FeedCounts, _play
from tests.client.scripted_peer import run
from tests.server_process import ServerProcess


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


def body(id_: str, to: str, number: int = 1) -> bytes:
    return msgspec.json.encode(
        {"to": to, "id": id_, "ts": "2026-01-01T00:00:00Z", "type": "note", "payload": {"n": number}}
    )


def fed(
    server: ServerProcess, stream: str, *bodies: bytes, **options: object
) -> tuple[FeedCounts, list[penstock.Delivery]]:
    """The counts of a feed of enqueues of one stream, and what a consumer of its target then gets."""

    async def go() -> tuple[FeedCounts, list[penstock.Delivery]]:
        async with penstock.connect(server.control) as client:
            feed = EnqueueFeed(client, **options)  # type: ignore[arg-type]
            for one in bodies:
                await feed.put("enqueue", stream, one)
            await feed.flush()
            target = options.get("to") or f"{options.get('prefix', '')}{stream}"
            return feed.counts, await client.pull(str(target), max=100)

    found: tuple[FeedCounts, list[penstock.Delivery]] = run(go())
    return found


def test_every_envelope_is_stored_in_order_across_batches(
    server: ServerProcess, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.history.replay.BATCH_ENVELOPES", 2)
    counts, got = fed(server, stream, *(body(f"e{number}", stream) for number in range(5)))
    assert (counts.stored, counts.duplicates, counts.refused) == (5, 0, 0)
    assert [delivery.id for delivery in got] == [f"e{number}" for number in range(5)]


def test_known_envelopes_are_duplicates_and_one_conflict_rejects_no_other(server: ServerProcess, stream: str) -> None:
    fed(server, stream, body("a", stream))
    counts, _ = fed(server, stream, body("a", stream), body("b", stream))
    assert (counts.stored, counts.duplicates) == (1, 1)
    counts, _ = fed(server, stream, body("a", stream, 2), body("c", stream))
    assert (counts.stored, counts.refused, counts.reasons) == (1, 1, {"IdConflict": 1})
    assert str(counts) == "stored 1, 1 refused (IdConflict)"


def test_a_new_address_and_new_ids_are_the_only_changes(server: ServerProcess, stream: str) -> None:
    target = f"{stream}/copy"
    counts, got = fed(server, stream, body("a", stream, 7), to=target, new_ids=True)
    assert counts.stored == 1
    (delivery,) = got
    assert delivery.id != "a" and delivery.payload == {"n": 7}


def test_rows_that_no_producer_sent_are_skipped(server: ServerProcess, stream: str) -> None:
    async def go() -> FeedCounts:
        async with penstock.connect(server.control) as client:
            feed = EnqueueFeed(client)
            await feed.put("ack", stream, None)
            await feed.put("enqueue", f"dlq/{stream}", body("a", f"dlq/{stream}"))
            await feed.put("enqueue", stream, None)
            await feed.flush()
            return feed.counts

    counts: FeedCounts = run(go())
    assert (counts.skipped, counts.stored) == (3, 0)


def test_an_envelope_of_the_server_is_refused_and_rejects_no_other(server: ServerProcess, stream: str) -> None:
    notice = msgspec.json.encode({**msgspec.json.decode(body("n", stream)), "from": "system/courier"})
    counts, got = fed(server, stream, notice, body("a", stream))
    assert (counts.stored, counts.refused, counts.reasons) == (1, 1, {"Forbidden": 1})
    assert [delivery.id for delivery in got] == ["a"]
