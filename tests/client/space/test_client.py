"""A participant against a scripted gateway: rejections, lost connections, old gateways, slow readers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client.space import feed as space_feed
from penstock.client.space import pending, transport
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

    def test_a_missing_gateway_is_unreachable(self):
        async def go():
            async with gateway() as server:
                url = server.url
            with pytest.raises(PenstockError) as caught:
                await penstock.Space(url, participant="sam").open()
            assert caught.value.code == "Unreachable"

        run(go())

    def test_a_control_address_is_recognised(self):
        async def go():
            with pytest.raises(PenstockError, match="not the URL of a gateway"):
                penstock.Space("tcp://127.0.0.1:9787", participant="sam")

        run(go())

    def test_a_gateway_that_says_nothing_is_not_waited_for_forever(self):
        async def go():
            async with gateway() as server:
                space = penstock.Space(server.url, participant="sam", connect_timeout=0.05)
                with pytest.raises(PenstockError, match="did not answer in time"):
                    await space.open()

        run(go())


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
        monkeypatch.setattr(pending, "OPEN_MAX", 2)

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


class TestStreams:
    def test_a_targeted_stream_is_opened_written_and_closed(self):
        async def go():
            async with joined() as (space, seat, _):
                opening = space.open_stream(["agg", "agg"], content_type="text/plain", metadata={"unit": "C"})
                stream, request = await both(opening, seat.open(target=["agg"]))
                assert request["payload"] == {
                    "direction": "upload",
                    "target": ["agg"],
                    "content_type": "text/plain",
                    "metadata": {"unit": "C"},
                }
                assert (stream.id, stream.target, stream.owner) == ("stream-1", ("agg",), "sam")
                assert stream.info["metadata"] == {"unit": "C"}
                await stream.write(b"\x00#\xff")
                await stream.write("text")
                assert await seat.read_frame() == b"#stream-1#\x00#\xff"
                assert await seat.read_frame() == b"#stream-1#text"
                closing = asyncio.ensure_future(stream.close())
                envelope = await seat.read("stream/close")
                assert envelope["payload"] == {"stream_id": "stream-1"}
                await seat.echo(envelope)
                await closing
                assert not stream.is_open
                with pytest.raises(PenstockError, match="is not open"):
                    await stream.write(b"late")
                await stream.close()  # nothing is left to do

        run(go())

    @pytest.mark.promise("Space client", "the client detects a gateway without targets before it sends a frame")
    @pytest.mark.parametrize("echoed", [{}, {"target": []}, {"target": None}])
    def test_a_gateway_that_does_not_know_targets_is_detected(self, echoed):
        async def go():
            async with joined() as (space, seat, _):
                opening = asyncio.ensure_future(space.open_stream("agg"))
                await seat.open(**echoed)
                envelope = await seat.read("stream/close")
                assert envelope["payload"]["stream_id"] == "stream-1"
                await seat.echo(envelope)
                with pytest.raises(penstock.TargetUnsupported, match="does not support targets") as caught:
                    await opening
                assert caught.value.code == "Unsupported"
                assert space.active_streams == {}
                assert seat.arrived.empty()  # no frame was sent

        run(go())

    def test_a_broadcast_needs_no_echo_of_a_target(self):
        async def go():
            async with joined() as (space, seat, _):
                stream, request = await both(space.open_stream(), seat.open())
                assert "target" not in request["payload"] and stream.target == ()

        run(go())

    def test_an_answer_of_another_participant_opens_no_stream(self):
        async def go():
            async with joined() as (space, seat, _):
                opening = asyncio.ensure_future(space.open_stream("agg"))
                request = await seat.read("stream/request")
                forged = {"from": "mallory", "correlation_id": [request["id"]]}
                await seat.say("stream/open", {"stream_id": "stream-666", "target": ["agg"]}, **forged)
                told = {"stream_id": "stream-1", "owner": "sam", "target": ["agg"]}
                await seat.say("stream/open", told, **{"from": "gateway", "correlation_id": [request["id"]]})
                assert (await opening).id == "stream-1"

        run(go())

    def test_missing_targets_are_named(self):
        async def go():
            async with joined() as (space, seat, _):
                opening = asyncio.ensure_future(space.open_stream(["agg", "nobody"]))
                request = await seat.read("stream/request")
                await seat.refuse(request, "target_not_found", targets=["nobody"], message="not there")
                with pytest.raises(penstock.SpaceError) as caught:
                    await opening
                assert caught.value.payload["targets"] == ["nobody"]
                assert "not there: nobody (`target_not_found`)" in str(caught.value)

        run(go())

    @pytest.mark.promise("Space client", "the SDK manages writers, owners, invitations and kicks")
    def test_a_refused_frame_is_raised_by_the_next_write_once(self):
        async def go():
            async with joined() as (space, seat, _), space.envelopes("system/error") as errors:
                stream, _ = await both(space.open_stream(), seat.open())
                await stream.write(b"1")
                refused = {"error": "unauthorized_stream_write", "stream_id": "stream-1", "message": "no"}
                await seat.say("system/error", refused, **{"from": "gateway"})
                await errors.next()
                with pytest.raises(penstock.SpaceError) as caught:
                    await stream.write(b"2")
                assert caught.value.error == "unauthorized_stream_write"
                await stream.write(b"3")
                assert [await seat.read_frame(), await seat.read_frame()] == [b"#stream-1#1", b"#stream-1#3"]

        run(go())

    def test_frames_beyond_the_rate_are_refused_by_the_next_write_of_any_stream(self):
        async def go():
            async with joined() as (space, seat, _), space.envelopes("system/error") as errors:
                stream, _ = await both(space.open_stream(), seat.open())
                await seat.say("system/error", {"error": "rate_limited", "message": "too fast"})
                await errors.next()
                with pytest.raises(penstock.SpaceError, match="too fast") as caught:
                    await stream.write(b"1")
                assert caught.value.code == "RateLimited"

        run(go())

    def test_a_target_that_left_is_reported_and_does_not_reject_frames(self):
        async def go():
            async with joined() as (space, seat, _), space.envelopes("system/error") as errors:
                stream, request = await both(space.open_stream("agg"), seat.open(target=["agg"]))
                told = {"error": "target_disconnected", "stream_id": "stream-1", "targets": ["agg"]}
                await seat.say("system/error", told, correlation_id=[request["id"]])
                assert (await errors.next()).payload == told
                await stream.write(b"1")
                assert await seat.read_frame() == b"#stream-1#1"
                assert space.last_error is not None and space.last_error.error == "target_disconnected"

        run(go())

    def test_writers_and_owners_are_changed_by_asking_the_gateway(self):
        async def go():
            async with joined() as (space, seat, _):
                stream, _ = await both(space.open_stream(), seat.open())
                for call, kind, payload in (
                    (stream.grant_write("jen"), "stream/grant-write", {"participant_id": "jen"}),
                    (
                        stream.revoke_write("jen", "over"),
                        "stream/revoke-write",
                        {"participant_id": "jen", "reason": "over"},
                    ),
                    (stream.transfer("kim"), "stream/transfer-ownership", {"new_owner": "kim"}),
                ):
                    asking = asyncio.ensure_future(call)
                    envelope = await seat.read(kind)
                    assert envelope["payload"] == {"stream_id": "stream-1", **payload}
                    await seat.say(
                        "stream/ack",
                        {"stream_id": "stream-1"},
                        **{"from": "gateway", "correlation_id": [envelope["id"]]},
                    )
                    await asking

        run(go())


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
        monkeypatch.setattr(space_feed, "FRAMES_MAX", 3)

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
        monkeypatch.setattr(space_feed, "FRAMES_MAX", 3)

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
        monkeypatch.setattr(space_feed, "FRAMES_MAX", 1)

        async def go():
            async with joined() as (space, seat, _):
                readers, mark = [space.frames(overflow="wait")], space.envelopes()
                for number in range(10):
                    await seat.frame("stream-1", b"%d" % number)
                await seat.say("chat", {"text": "end"})
                await until(lambda: readers[0].is_full)
                readers.clear()
                assert (await mark.next()).kind == "chat"

        run(go())

    @pytest.mark.promise(
        "Space client",
        "feeds are bounded: old frames are dropped and counted, envelopes are never dropped silently",
    )
    def test_envelopes_are_never_dropped_silently(self, monkeypatch):
        monkeypatch.setattr(space_feed, "ENVELOPES_MAX", 2)

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
                    feed.put(Frame("s", b"%d" % put))
                    put += 1
                if step is None and put - taken - feed.dropped:
                    frame = await feed.next()
                    assert int(frame.data) > last
                    last = int(frame.data)
                    taken += 1
                assert put - taken - feed.dropped <= bound

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(space_feed, "FRAMES_MAX", bound)
            asyncio.run(go())


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
                await seat.socket.close(code=transport.TAKEN_OVER)
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


class TestWithoutAsync:
    def test_the_sync_twin_says_writes_and_reads(self):
        def visit(url):
            with penstock.SyncSpace(url, space="demo", participant="sam", token="secret") as space:
                feed = space.envelopes("chat")
                sent = space.chat("hello")
                first = feed.next()
                assert first is not None and first.id == sent
                stream = space.open_stream("agg")
                assert (stream.target, repr(stream)) == (("agg",), "<SpaceStream stream-1 to agg>")
                with space.frames() as frames:
                    stream.write(b"ping")
                    assert next(frames) == Frame("stream-1", b"pong")
                stream.close()
                assert (space.id, space.active_streams, space.dropped) == ("sam", {}, 0)
                feed.close()
                assert list(feed) == []

        async def go():
            async with gateway() as server:
                visiting = asyncio.ensure_future(asyncio.to_thread(visit, server.url))
                seat = await server.accept()
                await seat.echo(await seat.read("chat"))
                await seat.open(target=["agg"])
                assert await seat.read_frame() == b"#stream-1#ping"
                await seat.frame("stream-1", b"pong")
                await seat.echo(await seat.read("stream/close"))
                await visiting

        run(go())
