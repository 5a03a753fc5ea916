"""A participant's connection: joining, losing it, and reconnecting under the same name."""

from __future__ import annotations

import asyncio
import json

import pytest

import penstock
from penstock.client.space import connection
from penstock.client.space.connection import PendingEnvelopes
from penstock.client.space.messages import SpaceError, read_message
from penstock.core.errors import PenstockError, Refusal
from tests.client.scripted_gateway import gateway
from tests.client.scripted_peer import run, until
from tests.client.space.test_client import both, joined


class TestJoining:
    @pytest.mark.promise(
        "Space client",
        "a join names space, id and token; a rejected join raises and is not retried",
    )
    def test_the_join_names_space_id_and_token_and_the_welcome_is_kept(self):
        async def go():
            others = [{"id": "jen", "capabilities": [{"kind": "mcp/*"}]}]
            streams = [{"stream_id": "stream-4", "owner": "jen", "target": ["sam"], "direction": "upload"}]
            welcome = {"participants": others, "active_streams": streams}
            async with joined(welcome=welcome) as (space, _, server):
                assert server.joins == [{"type": "join", "space": "demo", "participantId": "sam", "token": "secret"}]
                assert space.id == "sam" and space.capabilities == [{"kind": "chat"}]
                assert space.participants == {"jen": [{"kind": "mcp/*"}]}
                assert space.active_streams["stream-4"]["target"] == ["sam"]
                assert space.welcome["active_streams"] == streams

        run(go())

    @pytest.mark.promise(
        "Space client",
        "a join names space, id and token; a rejected join raises and is not retried",
    )
    def test_a_refused_join_is_raised_and_not_tried_again(self):
        async def go():
            async with gateway() as server:
                space = penstock.Space(server.url, space="demo", participant="sam", token="wrong")
                opening = asyncio.ensure_future(space.open())
                seat = await server.accept(welcome=False)
                payload = {
                    "error": "unauthorized",
                    "message": "the token is not known",
                    "code": "Unauthorized",
                }
                await seat.say("system/error", payload)
                with pytest.raises(penstock.SpaceError, match="the token is not known") as caught:
                    await opening
                assert (caught.value.error, caught.value.code) == ("unauthorized", "Unauthorized")
                await seat.over()
                assert len(server.seats) == 1

        run(go())


class TestLosses:
    @pytest.mark.promise(
        "Space client",
        "a lost connection is restored under the same name; a taken-over client does not fight for its name",
    )
    def test_a_lost_link_is_joined_again_under_the_same_name(self):
        async def go():
            async with joined() as (space, seat, server), space.envelopes("chat") as feed:
                waiting = asyncio.ensure_future(space.chat("lost"))
                await seat.read("chat")
                await seat.cut()
                with pytest.raises(PenstockError) as caught:
                    await waiting  # whether it was accepted is unknown
                assert caught.value.code == "Unreachable"
                later = asyncio.ensure_future(space.chat("later"))  # this one was not sent, and waits
                streams = [{"stream_id": "stream-9", "owner": "sam", "authorized_writers": ["sam"]}]
                again = await server.accept(active_streams=streams)
                envelope = await again.read("chat")
                await again.echo(envelope)
                assert await later == envelope["id"]
                assert server.joins[0] == server.joins[1] and space.reconnects == 1
                assert list(space.active_streams) == ["stream-9"]
                assert (await feed.next()).payload == {"text": "later"}

        run(go())

    def test_a_stream_that_did_not_survive_the_loss_is_closed(self):
        async def go():
            async with joined() as (space, seat, server):
                stream, _ = await both(space.open_stream(), seat.open())
                await seat.cut()
                await server.accept()
                await until(lambda: space.reconnects)
                with pytest.raises(PenstockError, match="is not open"):
                    await stream.write(b"x")

        run(go())

    def test_a_refused_comeback_is_final_and_raised_everywhere(self):
        async def go():
            async with joined() as (space, seat, server):
                feed = space.envelopes()
                await seat.cut()
                again = await server.accept(welcome=False)
                await again.say("system/error", {"error": "kicked", "message": "you were put out"})
                with pytest.raises(penstock.SpaceError, match="you were put out"):
                    await feed.next()
                with pytest.raises(penstock.SpaceError):
                    await space.chat("x")
                with pytest.raises(penstock.SpaceError):
                    await space.envelopes().next()
                await again.over()
                assert len(server.seats) == 2

        run(go())

    def test_a_gateway_that_shuts_down_is_tried_again(self):
        async def go():
            async with joined() as (space, seat, server):
                await seat.cut()
                busy = await server.accept(welcome=False)
                await busy.say("system/error", {"error": "draining", "code": "Draining"})
                await server.accept()
                await until(lambda: space.reconnects)

        run(go())

    @pytest.mark.promise(
        "Space client",
        "a lost connection is restored under the same name; a taken-over client does not fight for its name",
    )
    def test_a_takeover_of_our_name_is_final(self):
        async def go():
            async with joined() as (space, seat, server), space.envelopes() as feed:
                await seat.socket.close(code=connection.TAKEN_OVER)
                with pytest.raises(PenstockError, match="another connection joined under our name"):
                    await feed.next()
                assert len(server.seats) == 1

        run(go())

    def test_without_reconnect_the_loss_is_raised(self):
        async def go():
            async with joined(reconnect=False) as (space, seat, _), space.envelopes() as feed:
                await seat.cut()
                with pytest.raises(PenstockError) as caught:
                    await feed.next()
                assert caught.value.code == "Unreachable"

        run(go())

    def test_leaving_ends_everything_that_waits(self):
        async def go():
            async with joined() as (space, seat, _):
                feed, sending = space.envelopes(), asyncio.ensure_future(space.chat("x"))
                await seat.read("chat")
                await space.close()
                assert await feed.next() is None
                assert await space.frames().next() is None
                with pytest.raises(PenstockError, match="was left"):
                    await sending
                with pytest.raises(PenstockError, match="was left"):
                    await space.chat("y")
                await seat.over()

        run(go())

    def test_leaving_right_after_joining_closes_the_socket(self):
        async def go():
            async with gateway() as server:
                space = penstock.Space(server.url, participant="sam")

                async def visit():
                    await space.open()
                    await space.close()

                _, seat = await both(visit(), server.accept())
                await seat.over()

        run(go())

    def test_leaving_while_coming_back_ends_at_once(self):
        async def go():
            async with joined() as (space, seat, server):
                await seat.cut()
                await server.accept(welcome=False)
                await space.close()

        run(go())

    def test_a_space_that_was_not_joined_says_so(self):
        async def go():
            with pytest.raises(PenstockError, match="not joined"):
                await penstock.Space("http://localhost:1", participant="sam").chat("x")

        run(go())


def arrival(kind: str, *, id_: str = "x", sender: str = "bob", correlated: str = "", payload: object = None):
    fields = {"kind": kind, "id": id_, "from": sender, "payload": payload}
    return read_message(json.dumps(fields | ({"correlation_id": [correlated]} if correlated else {})).encode())


def test_an_echo_confirms_and_ids_are_never_the_same():
    async def go():
        pending = PendingEnvelopes()
        first, second = pending.begin("echo"), pending.begin("echo")
        assert first.id != second.id
        assert pending.take(arrival("chat", id_=first.id))
        assert (await first.future).kind == "chat"
        assert not second.future.done()

    run(go())


def test_an_answer_is_a_correlated_envelope_and_not_the_echo():
    async def go():
        pending = PendingEnvelopes()
        asked = pending.begin("answer")
        pending.take(arrival("mcp/request", id_=asked.id))
        assert not asked.future.done()
        pending.take(arrival("mcp/response", correlated=asked.id))
        assert (await asked.future).kind == "mcp/response"

    run(go())


def test_where_the_gateway_answers_participants_are_ignored():
    async def go():
        pending = PendingEnvelopes()
        asked = pending.begin("gateway")
        pending.take(arrival("stream/open", sender="liar", correlated=asked.id))
        assert not asked.future.done()
        pending.take(arrival("stream/open", sender="gateway", correlated=asked.id))
        assert (await asked.future).sender == "gateway"

    run(go())


def test_a_correlated_error_of_the_gateway_fails_it():
    async def go():
        pending = PendingEnvelopes()
        asked = pending.begin("echo")
        error = {"error": "capability_violation", "message": "no"}
        pending.take(arrival("system/error", sender="gateway", correlated=asked.id, payload=error))
        with pytest.raises(SpaceError, match="capability_violation"):
            await asked.future

    run(go())


def test_a_lost_connection_fails_all_and_an_ended_one_is_forgotten():
    async def go():
        pending = PendingEnvelopes()
        lost, ended = pending.begin("echo"), pending.begin("echo")
        pending.end(ended)
        pending.fail(PenstockError(Refusal("Unreachable", "lost")))
        with pytest.raises(PenstockError, match="lost"):
            await lost.future
        assert not pending.take(arrival("chat", id_=ended.id))

    run(go())
