"""Lost links, late answers and bad bytes, which a real server cannot produce."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock.client.control import pending
from penstock.core.errors import PenstockError
from tests.client.scripted_peer import peer, run, until


async def linked(server, **options):
    """A client, and the server's end of its connection."""
    client, line = await asyncio.gather(_open(server.url, **options), server.accept())
    return client, line


async def _open(url, **options):
    return await penstock.connect(url, **options)


def test_answers_match_their_requests_in_any_order_and_any_chunks():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            tasks = [asyncio.ensure_future(client.snapshot(name)) for name in "abc"]
            frames = [await line.read("snapshot") for _ in "abc"]
            answers = b"".join(
                b'{"type":"ok","reqId":"%b","result":{"name":"%b"}}\n'
                % (frame["reqId"].encode(), frame["view"].encode())
                for frame in reversed(frames)
            )
            for byte in answers:
                line.raw(bytes([byte]))
                await line.writer.drain()
            assert [(await task)["name"] for task in tasks] == ["a", "b", "c"]
            await client.close()

    run(go())


def test_requests_of_one_turn_leave_in_one_write():
    async def go():
        async with peer() as server:
            client, _ = await linked(server)
            writes = []
            link = client._connection._transport
            link.send_lines = writes.append
            tasks = [asyncio.ensure_future(client.enqueue("jobs", {"id": str(n)})) for n in range(50)]
            await until(lambda: writes)
            assert len(writes) == 1 and len(writes[0]) == 50
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()

    run(go())


def test_a_cut_in_the_middle_of_an_answer_repeats_the_enqueue_unchanged():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            storing = asyncio.ensure_future(client.enqueue("jobs", {"id": "m1", "type": "t", "payload": 1}))
            first = await line.read("enqueue")
            line.raw(b'{"type":"ok","reqId":"%b","result":{"id":"m1",' % first["reqId"].encode())
            await line.cut()
            line = await server.accept()
            again = await line.read("enqueue")
            assert again == first
            line.ok(again, id="m1", seq=1, duplicate=True)
            receipt = await storing
            assert (receipt.id, receipt.seq, receipt.duplicate) == ("m1", 1, True)
            assert client._connection.reconnects == 1
            await client.close()

    run(go())


def test_a_pull_in_flight_is_not_repeated():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            pulling = asyncio.ensure_future(client.pull("jobs"))
            await line.read("pull")
            await line.cut()
            with pytest.raises(PenstockError) as caught:
                await pulling
            assert caught.value.code == "Unreachable" and caught.value.retryable
            await client.close()

    run(go())


def test_a_request_made_while_the_link_is_down_waits_for_it():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            await line.cut()
            await until(lambda: not client._connection._is_ready)
            pulling = asyncio.ensure_future(client.pull("jobs"))
            line = await server.accept()
            line.ok(await line.read("pull"), deliveries=[])
            assert await pulling == []
            await client.close()

    run(go())


def test_a_request_that_kills_every_connection_is_given_up():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            asking = asyncio.ensure_future(client.snapshot("jobs"))
            for attempt in range(pending.SENDS_MAX):
                if attempt:
                    line = await server.accept()
                await line.read("snapshot")
                await line.cut()
            with pytest.raises(PenstockError) as caught:
                await asking
            assert caught.value.code == "Unreachable"
            await client.close()

    run(go())


def test_a_late_answer_is_a_timeout_and_then_ignored():
    async def go():
        async with peer() as server:
            client, line = await linked(server, timeout=0.05)
            asking = asyncio.ensure_future(client.snapshot("jobs"))
            late = await line.read("snapshot")
            with pytest.raises(PenstockError) as caught:
                await asking
            assert caught.value.code == "Timeout"
            line.ok(late, depth=1)
            asking = asyncio.ensure_future(client.snapshot("other"))
            line.ok(await line.read("snapshot"), depth=2)
            assert await asking == {"depth": 2}
            await client.close()

    run(go())


def test_frames_of_an_unknown_kind_are_counted_and_skipped():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            line.say({"type": "weather", "sky": "blue"})
            asking = asyncio.ensure_future(client.ping())
            line.ok(await line.read("ping"))
            await asking
            assert client._connection.unread_frames == 1
            await client.close()

    run(go())


def test_bytes_that_are_not_json_end_the_link_and_the_client_comes_back():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            asking = asyncio.ensure_future(client.snapshot("jobs"))
            await line.read("snapshot")
            line.raw(b"HTTP/1.1 400 Bad Request\n")
            line = await server.accept()
            line.ok(await line.read("snapshot"), depth=3)
            assert await asking == {"depth": 3}
            await client.close()

    run(go())


def test_without_reconnect_the_loss_is_the_end_and_says_why():
    async def go():
        async with peer() as server:
            client, line = await linked(server, reconnect=False)
            asking = asyncio.ensure_future(client.snapshot("jobs"))
            await line.read("snapshot")
            line.say({"type": "error", "reqId": "req", "code": "Draining", "detail": "going down"})
            await line.cut()
            with pytest.raises(PenstockError, match="going down"):
                await asking
            with pytest.raises(PenstockError):
                await client.ping()
            await client.close()

    run(go())


def test_a_token_refused_on_the_way_back_ends_the_client():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            asking = asyncio.ensure_future(client.snapshot("jobs"))
            await line.read("snapshot")
            await line.cut()
            line = await server.accept(greet=False)
            line.refuse(await line.read("hello"), "Unauthorized")
            with pytest.raises(PenstockError) as caught:
                await asking
            assert caught.value.code == "Unauthorized"
            await client.close()

    run(go())


def test_a_line_the_server_would_not_take_is_refused_here():
    async def go():
        async with peer() as server:
            client, _ = await linked(server)
            with pytest.raises(PenstockError) as caught:
                await client.enqueue("jobs", {"id": "m", "payload": "x" * pending.FRAME_MAX})
            assert caught.value.code == "TooLarge"
            await client.close()

    run(go())


def test_a_server_that_does_not_read_makes_callers_wait_within_bounds():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            line.reader._transport.pause_reading()
            body = b'{"id":"m","ts":"2026-01-01T00:00:00Z","type":"t","payload":"' + b"x" * 1_000_000 + b'"}'
            storing = [asyncio.ensure_future(client.enqueue("jobs", body)) for _ in range(200)]
            held = client._connection._requests
            await until(lambda: held._waiters)
            assert held._bytes <= pending.REQUESTS_BYTES + 2 * len(body)
            line.reader._transport.resume_reading()
            for seq in range(200):
                line.ok(await line.read("enqueue"), id="m", seq=seq)
            assert [(await task).seq for task in storing] == list(range(200))
            await client.close()

    run(go())


def test_a_refusal_with_a_time_is_retried_after_it():
    async def go():
        async with peer() as server:
            client, line = await linked(server, retries=1)
            storing = asyncio.ensure_future(client.enqueue("jobs", {"id": "m1"}))
            line.refuse(await line.read("enqueue"), "StreamFull", retryAfterMs=1)
            line.ok(await line.read("enqueue"), id="m1", seq=7)
            assert (await storing).seq == 7
            await client.close()

    run(go())


def test_a_refusal_shows_its_time_when_there_are_no_retries():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            storing = asyncio.ensure_future(client.enqueue("jobs", {"id": "m1"}))
            line.refuse(await line.read("enqueue"), "StreamFull", retryAfterMs=250)
            with pytest.raises(PenstockError) as caught:
                await storing
            assert caught.value.refusal.retry_after_ms == 250 and caught.value.retryable
            await client.close()

    run(go())


def test_a_code_newer_than_this_client_is_shown():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            asking = asyncio.ensure_future(client.ping())
            line.refuse(await line.read("ping"), "TooTired")
            with pytest.raises(PenstockError, match="TooTired"):
                await asking
            await client.close()

    run(go())


def test_envelopes_given_as_bytes_stay_one_line():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            body = b'{\n "id": "m1",\n "payload": "a\\nb"\n}'
            storing = asyncio.ensure_future(client.enqueue("jobs", [body, body]))
            frame = await line.read("enqueue")
            assert frame["env"] == [{"id": "m1", "payload": "a\nb"}] * 2
            line.ok(frame, ids=["m1", "m1"], seqs=[1, 1], duplicates=["m1"])
            assert (await storing).seqs == [1, 1]
            await client.close()

    run(go())


def test_agent_fills_from_id_and_time_but_keeps_what_is_there():
    async def go():
        async with peer() as server:
            client, line = await linked(server, agent="sam")
            storing = asyncio.ensure_future(client.enqueue("jobs", {"type": "t", "payload": 1}))
            frame = await line.read("enqueue")
            assert frame["env"]["from"] == "sam" and frame["env"]["id"] and frame["env"]["ts"].endswith("Z")
            line.ok(frame, id="x", seq=1)
            await storing
            given = {"id": "i", "ts": "2026-01-01T00:00:00Z", "from": "jen", "type": "t", "payload": 1}
            storing = asyncio.ensure_future(client.enqueue("jobs", given, delay_ms=5))
            frame = await line.read("enqueue")
            assert frame["env"] == given and frame["delayMs"] == 5
            line.ok(frame, id="x", seq=1)
            await storing
            await client.close()

    run(go())


def test_a_send_whose_answer_was_lost_finds_its_first_copy():
    async def go():
        async with peer() as server:
            client, line = await linked(server, agent="sam")
            sending = asyncio.ensure_future(client.send("jen", {"n": 1}, type="note"))
            first = await line.read("send")
            assert (first["to"], first["kind"], first["from"]) == ("jen", "note", "sam")
            await line.cut()
            line = await server.accept()
            line.refuse(await line.read("send"), "IdConflict")
            where = await line.read("where")
            assert where["id"] == first["id"]
            line.ok(where, places=[{"stream": "agents/jen/inbox", "state": "ready", "seq": 4}])
            sent = await sending
            assert (sent.id, sent.seq, sent.to) == (first["id"], 4, "agents/jen/inbox")
            await client.close()

    run(go())
