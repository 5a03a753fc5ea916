"""A followed view: the table it builds, the credit it grants, and what it does when a message is missing."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock.core.errors import PenstockError
from tests.client.control.test_connection import linked
from tests.client.scripted_peer import peer, run, until
from tests.integration.serving import Http


def table(line, frame, watermark, **rows):
    """Answer `live`, and send its snapshot."""
    line.ok(frame)
    found = [{"addr": addr, "row": row} for addr, row in rows.items()]
    line.say({"type": "live", "subId": frame["subId"], "snapshot": {"rows": found, "watermark": watermark}})


def delta(line, version, addr, op="update", prev=None, **content):
    change = {"addr": addr, "op": op, "version": version, "prev": version - 1 if prev is None else prev, **content}
    line.say({"type": "live", "subId": line.sub_id, "delta": change})


async def followed(server, watermark=5, credit=4, **rows):
    """A client that follows `inflight`, and the server's end."""
    client, line = await linked(server)
    view = client.live("inflight", addr="jobs/*", credit=credit)
    opening = asyncio.ensure_future(view.open())
    frame = await line.read("live")
    line.sub_id = frame["subId"]
    assert (frame["view"], frame["addr"], frame["credit"]) == ("inflight", "jobs/*", credit)
    assert "since" not in frame
    table(line, frame, watermark, **rows)
    await opening
    return client, line, view


def read(change):
    return change.op, change.addr, change.row, change.version


@pytest.mark.promise("Views", "`client.live` and `penstock snapshot --live` continue across a restart")
def test_the_sdk_follows_a_view_across_a_restart(start_server):
    server = start_server()
    Http(server.http).enqueue("agents/sam/inbox", "a")

    async def work() -> None:
        nonlocal server
        # The HTTP port is free again after the kill, so the second server can have it.
        address = server.http.removeprefix("http://")
        async with penstock.connect(server.http) as client:
            found = await client.snapshot("latestPerAgent")
            assert [row["env"]["id"] for row in found["rows"]] == ["a"]
            async with client.live("latestPerAgent") as view:
                change = await view.next_change()
                assert (change.op, change.addr, change.row["id"]) == ("add", "agents/sam/inbox", "a")
                await client.send("jen", {"n": 1})
                change = await view.next_change()
                assert (change.op, change.row["type"]) == ("add", "message")
                server.kill()
                server = start_server("--http", address)
                await client.send("sam", {"n": 2})
                change = await view.next_change()
                assert (change.op, change.addr, change.row["payload"]) == (
                    "update",
                    "agents/sam/inbox",
                    {"n": 2},
                )
                assert {addr: env["payload"] for addr, env in view.rows.items()} == {
                    "agents/sam/inbox": {"n": 2},
                    "agents/jen/inbox": {"n": 1},
                }
            assert await view.next_change() is None
            with pytest.raises(penstock.PenstockError, match="UnknownView"):
                await client.live("nope").open()

    run(work())


def test_the_sdk_with_little_credit_ends_up_with_the_table(server):
    http = Http(server.http)

    async def work() -> None:
        async with (
            penstock.connect(server.control) as client,
            client.live("latestPerAgent", addr="agents/little*", credit=2) as view,
        ):
            for n in range(30):
                http.enqueue(f"agents/little{n % 5}/inbox", f"e{n}")
            expected = {f"agents/little{n % 5}/inbox": f"e{n}" for n in range(25, 30)}
            async for _ in view:
                if {addr: env["id"] for addr, env in view.rows.items()} == expected:
                    break

    run(work())


def test_rows_are_those_of_the_changes_read_so_far():
    async def go():
        async with peer() as server:
            client, line, view = await followed(server, a={"n": 1}, b={"n": 2})
            assert (view.rows, view.version) == ({}, 0)
            delta(line, 6, "a", row={"n": 3})
            delta(line, 7, "b", "remove")
            delta(line, 8, "c", "add", env={"id": "x"})
            assert [read(await view.next_change()) for _ in range(2)] == [
                ("add", "a", {"n": 1}, 5),
                ("add", "b", {"n": 2}, 5),
            ]
            assert view.rows == {"a": {"n": 1}, "b": {"n": 2}}
            assert [read(await view.next_change()) for _ in range(3)] == [
                ("update", "a", {"n": 3}, 6),
                ("remove", "b", None, 7),
                ("add", "c", {"id": "x"}, 8),
            ]
            assert (view.rows, view.version) == ({"a": {"n": 3}, "c": {"id": "x"}}, 8)
            await client.close()

    run(go())


def test_half_the_credit_is_granted_again_when_it_was_read():
    async def go():
        async with peer() as server:
            client, line, view = await followed(server, credit=4, a={"n": 1})
            for version in range(6, 10):
                delta(line, version, "a", row={"n": version})
            await view.next_change()  # of the snapshot, which uses no credit
            await view.next_change()
            asking = asyncio.ensure_future(client.ping())
            line.ok(await line.read("ping"))
            await asking
            await view.next_change()
            frame = await line.read("grant")
            assert (frame["n"], frame["subId"]) == (2, line.sub_id)
            await client.close()

    run(go())


def test_a_missing_message_asks_for_a_new_snapshot():
    async def go():
        async with peer() as server:
            client, line, view = await followed(server, a={"n": 1})
            assert (await view.next_change()).addr == "a"
            delta(line, 8, "a", prev=7, row={"n": 8})
            assert (await line.read("unsubscribe"))["subId"] == line.sub_id
            frame = await line.read("live")
            assert "since" not in frame
            table(line, frame, 9, a={"n": 9})
            assert read(await view.next_change()) == ("update", "a", {"n": 9}, 9)
            delta(line, 10, "a", "remove")
            assert read(await view.next_change()) == ("remove", "a", None, 10)
            await client.close()

    run(go())


def test_after_a_cut_it_goes_on_where_it_was_with_the_credit_that_is_free():
    async def go():
        async with peer() as server:
            client, line, view = await followed(server, credit=4)
            delta(line, 6, "a", "add", row={"n": 6})
            delta(line, 7, "b", "add", row={"n": 7})
            await until(lambda: len(view._changes) == 2)
            assert (await view.next_change()).addr == "a"
            await line.cut()
            line = await server.accept()
            frame = await line.read("live")
            line.sub_id = frame["subId"]
            assert (frame["since"], frame["credit"]) == (7, 3), "one change is still unread"
            line.ok(frame)
            delta(line, 8, "c", "add", row={"n": 8})
            assert [(await view.next_change()).addr for _ in "bc"] == ["b", "c"]
            await client.close()

    run(go())


def test_a_new_snapshot_becomes_the_changes_that_lead_to_it():
    async def go():
        async with peer() as server:
            client, line, view = await followed(server, a={"n": 1}, b={"n": 2}, c={"n": 3})
            for _ in "abc":
                await view.next_change()
            delta(line, 6, "unread", "add", row={})
            await until(lambda: view._changes)
            await line.cut()
            line = await server.accept()
            table(line, await line.read("live"), 20, a={"n": 1}, b={"n": 9}, d={"n": 4})
            await until(lambda: view._received == 20)
            assert [read(await view.next_change()) for _ in range(3)] == [
                ("remove", "c", None, 20),
                ("update", "b", {"n": 9}, 20),
                ("add", "d", {"n": 4}, 20),
            ]
            assert view.rows == {"a": {"n": 1}, "b": {"n": 9}, "d": {"n": 4}}
            await client.close()

    run(go())


def test_a_view_that_is_refused_or_lost_raises_where_it_is_read():
    async def go():
        async with peer() as server:
            client, line = await linked(server, reconnect=False)
            opening = asyncio.ensure_future(client.live("secret").open())
            line.refuse(await line.read("live"), "Forbidden")
            with pytest.raises(PenstockError) as caught:
                await opening
            assert caught.value.code == "Forbidden"
            view = client.live("inflight")
            reading = asyncio.ensure_future(view.next_change())
            table(line, await line.read("live"), 1, a={})
            assert (await reading).addr == "a"
            reading = asyncio.ensure_future(view.next_change())
            await line.cut()
            with pytest.raises(PenstockError) as caught:
                await reading
            assert caught.value.code == "Unreachable"
            await client.close()

    run(go())


def test_a_closed_view_ends_its_reader_and_unsubscribes_once():
    async def go():
        async with peer() as server:
            client, line, view = await followed(server)
            reading = asyncio.ensure_future(anext(view, None))
            closing = asyncio.ensure_future(view.close())
            line.ok(await line.read("unsubscribe"))
            await closing
            assert await reading is None
            await view.close()
            await client.close()
            assert await line.reader.read() == b"", "nothing more was sent"

    run(go())
