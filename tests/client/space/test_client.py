"""A participant against a scripted gateway: rejections, lost connections, old gateways, slow readers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client.space import connection
from penstock.client.space.feed import Feed
from penstock.client.space.messages import Frame, SpaceEnvelope, frame_bytes, read_message
from penstock.client.space.roster import Roster
from penstock.core.errors import PenstockError
from tests.client.scripted_gateway import gateway
from tests.client.scripted_peer import run, until


@asynccontextmanager
async def joined(**options):
    """A space that was joined, the gateway's end of its connection, and the gateway."""
    welcome = options.pop("welcome", {})
    async with gateway() as server:
        settings = {"space": "demo", "participant": "sam", "token": "secret"} | options
        space = penstock.Space(server.url, **settings)
        _, seat = await asyncio.gather(space.open(), server.accept(**welcome))
        try:
            yield space, seat, server
        finally:
            await space.close()


async def both(first, second):
    return await asyncio.gather(first, second)


class TestSending:
    @pytest.mark.promise(
        "Space client",
        "a send returns with its echo and raises a correlated error, which other participants cannot forge",
    )
    def test_send_returns_when_its_echo_is_back(self):
        async def go():
            async with joined() as (space, seat, _):
                sending = asyncio.ensure_future(space.chat("hello", to="jen"))
                envelope = await seat.read("chat")
                assert (envelope["from"], envelope["to"], envelope["payload"]) == (
                    "sam",
                    ["jen"],
                    {"text": "hello"},
                )
                await seat.say("chat", {"text": "other"}, **{"from": "jen"})
                async with space.envelopes("system/*") as mark:
                    await seat.say("system/presence", {"event": "join", "participant": {"id": "kim"}})
                    await mark.next()
                assert not sending.done()  # another participant's envelope is no echo
                await seat.echo(envelope)
                assert await sending == envelope["id"]

        run(go())

    @pytest.mark.promise(
        "Space client",
        "a send returns with its echo and raises a correlated error, which other participants cannot forge",
    )
    def test_a_correlated_error_is_raised(self):
        async def go():
            async with joined() as (space, seat, _):
                sending = asyncio.ensure_future(space.send("mcp/request", {"method": "x"}))
                envelope = await seat.read("mcp/request")
                await seat.refuse(envelope, "capability_violation", attempted_kind="mcp/request")
                with pytest.raises(penstock.SpaceError, match="you may not send `mcp/request`") as caught:
                    await sending
                assert (caught.value.code, caught.value.error) == ("Forbidden", "capability_violation")

        run(go())

    @pytest.mark.promise(
        "Space client",
        "a send returns with its echo and raises a correlated error, which other participants cannot forge",
    )
    def test_an_error_that_another_participant_wrote_is_none(self):
        async def go():
            async with joined() as (space, seat, _):
                sending = asyncio.ensure_future(space.chat("hello"))
                envelope = await seat.read("chat")
                forged = {"correlation_id": [envelope["id"]], "from": "mallory"}
                await seat.say("system/error", {"error": "no"}, **forged)
                await seat.echo(envelope)
                assert await sending == envelope["id"]

        run(go())

    def test_a_request_waits_for_what_is_correlated_to_it_and_not_for_its_echo(self):
        async def go():
            async with joined() as (space, seat, _):
                asking = asyncio.ensure_future(space.request("mcp/request", {"method": "x"}, to="jen"))
                envelope = await seat.read("mcp/request")
                await seat.echo(envelope)
                answer = {
                    "from": "jen",
                    "correlation_id": envelope["id"],
                }  # a scalar, as some agents write it
                await seat.say("mcp/response", {"result": 7}, **answer)
                found = await asking
                assert (found.sender, found.payload) == ("jen", {"result": 7})

        run(go())

    def test_an_unanswered_envelope_is_a_timeout_that_quotes_an_uncorrelated_error(self):
        async def go():
            async with joined() as (space, seat, _):
                await seat.say("system/error", {"error": "Chat message requires payload.text"})
                with pytest.raises(PenstockError, match=r"requires payload\.text") as caught:
                    await space.send("chat", {}, timeout=0.1)
                assert caught.value.code == "Timeout"

        run(go())

    def test_without_confirmation_nothing_is_waited_for(self):
        async def go():
            async with joined() as (space, seat, _):
                sent = await space.send("chat", {"text": "x"}, correlation_id="q", confirm=False)
                envelope = await seat.read("chat")
                assert (envelope["id"], envelope["correlation_id"]) == (sent, ["q"])

        run(go())

    def test_no_more_envelopes_are_open_at_once_than_allowed(self, monkeypatch):
        monkeypatch.setattr(connection, "OPEN_MAX", 2)

        async def go():
            async with joined() as (space, seat, _):
                sending = [asyncio.ensure_future(space.chat(str(n))) for n in range(3)]
                first, second = await seat.read(), await seat.read()
                await space.send("chat", {"text": "mark"}, confirm=False)
                assert (await seat.read())["payload"] == {"text": "mark"}  # and not the third
                await seat.echo(second)
                assert await sending[1] == second["id"]
                third = await seat.read()
                assert third["payload"] == {"text": "2"}
                for envelope in (first, third):
                    await seat.echo(envelope)
                await asyncio.gather(*sending)

        run(go())


class TestPicture:
    @pytest.mark.promise("Space client", "the lists of participants, capabilities and open streams stay correct")
    def test_presence_grants_and_streams_change_it(self):
        async def go():
            async with joined() as (space, seat, _), space.envelopes() as feed:
                capabilities = [{"kind": "chat"}]
                participant = {"id": "jen", "capabilities": capabilities}
                await seat.say("system/presence", {"event": "join", "participant": participant})
                await feed.next()
                assert space.participants == {"jen": capabilities}
                await seat.say(
                    "stream/request",
                    {"direction": "upload", "description": "d", "target": ["kim"]},
                    **{"from": "jen", "id": "r1"},
                )
                opened = {"stream_id": "stream-7", "owner": "jen", "authorized_writers": ["jen"]}
                await seat.say("stream/open", opened, **{"from": "gateway", "correlation_id": ["r1"], "id": "o1"})
                await feed.next()
                await feed.next()
                # The target that was asked for is not the one that was given: there is none.
                assert space.active_streams == {"stream-7": {"direction": "upload", "description": "d", **opened}}
                granted = {"stream_id": "stream-7", "authorized_writers": ["jen", "sam"]}
                await seat.say("stream/write-granted", granted, **{"from": "gateway"})
                await feed.next()
                assert space.stream("stream-7").writers == ("jen", "sam")
                moved = {"stream_id": "stream-7", "new_owner": "sam", "authorized_writers": ["sam"]}
                await seat.say("stream/ownership-transferred", moved, **{"from": "gateway"})
                await feed.next()
                assert space.stream("stream-7").owner == "sam"
                you = {"id": "sam", "capabilities": [{"kind": "*"}]}
                await seat.say("system/welcome", {"you": you, "participants": [participant]})
                await feed.next()
                assert space.capabilities == [{"kind": "*"}]
                assert list(space.active_streams) == ["stream-7"]  # an update says nothing of streams
                await seat.say("stream/close", {}, **{"from": "jen", "correlation_id": ["o1"]})
                await seat.say("system/presence", {"event": "leave", "participant": {"id": "jen"}})
                await feed.next()
                await feed.next()
                assert (space.active_streams, space.participants) == ({}, {})

        run(go())

    @pytest.mark.promise("Space client", "the lists of participants, capabilities and open streams stay correct")
    def test_what_a_participant_forges_changes_nothing(self):
        async def go():
            async with joined() as (space, seat, _), space.envelopes() as feed:
                for kind, payload in (
                    ("system/welcome", {"you": {"id": "x", "capabilities": []}, "active_streams": []}),
                    ("system/presence", {"event": "join", "participant": {"id": "ghost"}}),
                    ("stream/open", {"stream_id": "stream-1", "owner": "mallory"}),
                ):
                    await seat.say(kind, payload, **{"from": "mallory"})
                    await feed.next()
                assert (space.id, space.participants, space.active_streams) == ("sam", {}, {})

        run(go())

    @pytest.mark.promise("Space client", "the lists of participants, capabilities and open streams stay correct")
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(
                    [
                        "system/welcome",
                        "system/presence",
                        "stream/request",
                        "stream/open",
                        "stream/close",
                        "stream/write-granted",
                    ]
                ),
                st.recursive(
                    st.none() | st.integers() | st.sampled_from(["a", "join", "leave"]),
                    lambda inner: (
                        st.lists(inner, max_size=3)
                        | st.dictionaries(
                            st.sampled_from(
                                [
                                    "you",
                                    "id",
                                    "participants",
                                    "participant",
                                    "event",
                                    "active_streams",
                                    "stream_id",
                                    "authorized_writers",
                                    "new_owner",
                                    "capabilities",
                                ]
                            ),
                            inner,
                            max_size=4,
                        )
                    ),
                    max_leaves=8,
                ),
            ),
            max_size=6,
        )
    )
    def test_no_shape_of_payload_breaks_it(self, told):
        roster = Roster()
        for kind, payload in told:
            fields = {"kind": kind, "id": "a", "from": "gateway", "correlation_id": ["a"], "payload": payload}
            envelope = read_message(msgspec.json.encode(fields))
            assert isinstance(envelope, SpaceEnvelope)
            roster.take(envelope)
            assert all(isinstance(name, str) for name in (*roster.streams, *roster.participants))


class TestPeople:
    def test_an_invitation_carries_the_token_and_hides_it(self):
        async def go():
            async with joined() as (space, seat, _):
                inviting = asyncio.ensure_future(space.invite("jen", [{"kind": "chat"}], "welcome"))
                envelope = await seat.read("space/invite")
                assert envelope["payload"] == {
                    "participant_id": "jen",
                    "initial_capabilities": [{"kind": "chat"}],
                    "reason": "welcome",
                }
                told = {
                    "status": "created",
                    "participant_id": "jen",
                    "token": "t0k",
                    "connection_url": "ws://h/",
                }
                await seat.say("space/invite-ack", told, correlation_id=[envelope["id"]])
                invitation = await inviting
                assert (invitation.token, invitation.url) == ("t0k", "ws://h/")
                assert "t0k" not in repr(invitation)

        run(go())

    def test_a_present_participant_is_not_invited_again(self):
        async def go():
            async with joined() as (space, seat, _):
                inviting = asyncio.ensure_future(space.invite("jen"))
                envelope = await seat.read("space/invite")
                told = {"status": "already_exists", "participant_id": "jen", "error": "jen is known"}
                await seat.say("space/invite-ack", told, correlation_id=[envelope["id"]])
                with pytest.raises(penstock.SpaceError, match="jen is known") as caught:
                    await inviting
                assert caught.value.error == "already_exists"

        run(go())

    def test_a_kick_is_an_envelope(self):
        async def go():
            async with joined() as (space, seat, _):
                kicking = asyncio.ensure_future(space.kick("jen", "spam"))
                envelope = await seat.read("space/kick")
                assert envelope["payload"] == {"participant_id": "jen", "reason": "spam"}
                await seat.echo(envelope)
                await kicking

        run(go())


class TestReading:
    def test_feeds_choose_by_kind_and_by_stream_and_keep_the_order(self):
        async def go():
            async with joined() as (space, seat, _):
                everything, chats = space.arrivals(), space.envelopes(["chat", "mcp/*"])
                ones = space.frames("stream-1")
                await seat.say("chat", {"text": "a"}, **{"from": "jen"})
                await seat.frame("stream-1", b"1")
                await seat.frame("stream-2", b"2#x")
                await seat.say("mcp/request", {}, **{"from": "jen"})
                await seat.say("reasoning/start", {}, **{"from": "jen"})
                found = [await everything.next() for _ in range(5)]
                assert [item if isinstance(item, Frame) else item.kind for item in found] == [
                    "chat",
                    Frame("stream-1", b"1"),
                    Frame("stream-2", b"2#x"),
                    "mcp/request",
                    "reasoning/start",
                ]
                assert [(await chats.next()).kind, (await chats.next()).kind] == ["chat", "mcp/request"]
                assert await ones.next() == Frame("stream-1", b"1")
            assert [item async for item in everything] == []  # leaving ends it

        run(go())

    @pytest.mark.promise(
        "Space client",
        "feeds are bounded: old frames are dropped and counted, envelopes are never dropped silently",
    )
    def test_a_slow_reader_loses_the_oldest_frames_and_they_are_counted(self, monkeypatch):
        monkeypatch.setattr("penstock.client.space.feed.FRAMES_MAX", 3)

        async def go():
            async with joined() as (space, seat, _):
                slow, mark = space.frames(), space.envelopes()
                for number in range(10):
                    await seat.frame("stream-1", b"%d" % number)
                await seat.say("chat", {"text": "end"})
                await mark.next()
                assert (slow.dropped, space.dropped) == (7, 7)
                assert [(await slow.next()).data for _ in range(3)] == [b"7", b"8", b"9"]

        run(go())

    @pytest.mark.promise(
        "Space client",
        "feeds are bounded: old frames are dropped and counted, envelopes are never dropped silently",
    )
    def test_one_that_wants_every_frame_holds_the_socket(self, monkeypatch):
        monkeypatch.setattr("penstock.client.space.feed.FRAMES_MAX", 3)

        async def go():
            async with joined() as (space, seat, _):
                careful, mark = space.frames(overflow="wait"), space.envelopes()
                for number in range(50):
                    await seat.frame("stream-1", b"%d" % number)
                await seat.say("chat", {"text": "end"})
                found = [(await careful.next()).data for _ in range(50)]
                assert found == [b"%d" % number for number in range(50)]
                assert (await mark.next()).kind == "chat" and space.dropped == 0

        run(go())

    def test_a_blocking_reader_that_is_gone_blocks_no_other(self, monkeypatch):
        monkeypatch.setattr("penstock.client.space.feed.FRAMES_MAX", 1)

        async def go():
            async with joined() as (space, seat, _):
                readers, mark = [space.frames(overflow="wait")], space.envelopes()
                for number in range(10):
                    await seat.frame("stream-1", b"%d" % number)
                await seat.say("chat", {"text": "end"})
                await until(lambda: readers[0]._is_full)
                readers.clear()
                assert (await mark.next()).kind == "chat"

        run(go())

    @pytest.mark.promise(
        "Space client",
        "feeds are bounded: old frames are dropped and counted, envelopes are never dropped silently",
    )
    def test_envelopes_are_never_dropped_silently(self, monkeypatch):
        monkeypatch.setattr("penstock.client.space.feed.ENVELOPES_MAX", 2)

        async def go():
            async with joined() as (space, seat, _):
                slow, mark = space.envelopes("chat"), space.envelopes("system/*")
                for number in range(4):
                    await seat.say("chat", {"text": str(number)})
                await seat.say("system/presence", {})
                await mark.next()
                assert [(await slow.next()).payload["text"] for _ in range(2)] == ["0", "1"]
                with pytest.raises(PenstockError) as caught:
                    await slow.next()
                assert caught.value.code == "SlowConsumer"

        run(go())

    def test_what_is_no_message_is_passed_over(self):
        async def go():
            async with joined() as (space, seat, _), space.envelopes() as feed:
                for text in ("#abc", "[1]", "{}", '{"kind": 7}', "nonsense", "[" * 100_000):
                    await seat.socket.send_str(text)
                await seat.say("chat", {"text": "end"})
                assert (await feed.next()).payload == {"text": "end"}

        run(go())

    @given(st.text(st.characters(exclude_characters="#", exclude_categories=("Cs",)), min_size=1), st.binary())
    def test_any_bytes_survive_in_a_frame(self, stream_id, data):
        assert read_message(frame_bytes(stream_id, data)) == Frame(stream_id, data)

    @pytest.mark.promise(
        "Space client",
        "feeds are bounded: old frames are dropped and counted, envelopes are never dropped silently",
    )
    @given(
        st.lists(st.integers(0, 3) | st.none()),
        st.integers(1, 5),
    )
    def test_a_feed_holds_no_more_than_its_bound_and_counts_what_it_drops(self, steps, bound):
        async def go():
            feed = Feed(lambda _: True)
            put = taken = 0
            last = -1
            for step in steps:
                for _ in range(step or 0):
                    feed._put(Frame("s", b"%d" % put))
                    put += 1
                if step is None and put - taken - feed.dropped:
                    frame = await feed.next()
                    assert int(frame.data) > last
                    last = int(frame.data)
                    taken += 1
                assert put - taken - feed.dropped <= bound

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.client.space.feed.FRAMES_MAX", bound)
            asyncio.run(go())
