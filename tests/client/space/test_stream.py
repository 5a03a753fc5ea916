"""Streams of a space: opening, writing, closing, and changing writers and owners."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock.core.errors import PenstockError
from tests.client.scripted_peer import run
from tests.client.space.test_client import both, joined


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
