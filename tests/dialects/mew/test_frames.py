"""Frames: exact bytes, rejections, and their order with envelopes that wait for a commit."""

from __future__ import annotations

import pytest

from tests.dialects.mew.driving import (
    GatewayDriver,
    envelope,
    error,
    kinds,
    participant,
    settings,
)


class TestRouting:
    @pytest.mark.promise("MEW gateway", "envelopes are broadcast with echo, in strict order for each connection")
    def test_frames_and_envelopes_of_one_connection_stay_in_order(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p2.received()
        p1.received()
        for n in range(5):
            p1.put(envelope("chat", {"text": str(n)}), f"#{id_}#{n}")
        driver.run()
        for client in (p1, p2):
            seen = [each if isinstance(each, bytes) else each["payload"]["text"] for each in client.received()]
            assert seen == [each for n in range(5) for each in (str(n), f"#{id_}#{n}".encode())]

    def test_frames_wait_for_their_own_connections_envelopes_only(self, driver: GatewayDriver) -> None:
        p1, p2, p3 = driver.joined("p1", "p2", "p3")
        driver.open_stream(p1, ["p3"])
        driver.open_stream(p2, ["p3"])
        p3.received()
        driver.journal.is_by_hand = True
        p1.put(envelope("chat", {"text": "slow"}), b"#stream-1#behind")
        p2.put(b"#stream-2#at once")
        driver.run()
        assert p3.received() == [b"#stream-2#at once"]
        driver.journal.commit()
        driver.run()
        chat, frame = p3.received()
        assert (chat["kind"], frame) == ("chat", b"#stream-1#behind")

    @pytest.mark.promise("MEW gateway", "envelopes are broadcast with echo, in strict order for each connection")
    def test_a_frame_right_behind_its_request_is_accepted(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        p1.put(envelope("stream/request", {"direction": "upload"}), b"#stream-1#x")
        driver.run()
        received = p2.received()
        assert kinds(received[:2]) == ["stream/request", "stream/open"] and received[2:] == [b"#stream-1#x"]


class TestFrames:
    @pytest.mark.promise("MEW gateway", "frames are byte-exact")
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"text",
            b"a#b##c#",
            b"\x00\xff\xfe\x80",
            "é".encode(),
            b"x" * 125,
            b"x" * 126,
            b"x" * 65_536,
            b"\n{}",
        ],
        ids=len,
    )
    def test_they_are_byte_exact_and_always_binary(self, driver: GatewayDriver, data: bytes) -> None:
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p2.received()
        sent = b"#" + id_.encode() + b"#" + data
        p1.put(sent)
        driver.run()
        assert p2.wire.data[:1] == b"\x82"
        assert p2.received() == [sent]
        assert p1.frames() == [sent]

    def test_envelopes_are_always_text(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        p1.put(b'{"kind":"chat","payload":{"text":"sent as binary"}}')
        driver.run()
        assert p2.wire.data[:1] == b"\x81"

    def test_no_capability_is_needed_to_write(self) -> None:
        driver = GatewayDriver(settings("p1", mute=participant("mute", {"kind": "nothing"})))
        p1, mute = driver.joined("p1", "mute")
        id_ = driver.open_stream(p1)
        p1.say("stream/grant-write", {"stream_id": id_, "participant_id": "mute"})
        p1.received()
        mute.put(f"#{id_}#x")
        driver.run()
        assert p1.frames() == [b"#stream-1#x"]

    def test_a_frame_of_a_non_writer_gets_an_error_and_is_not_delivered(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p2.received()
        said = error(p2.send(f"#{id_}#x"))
        assert (said["error"], said["stream_id"]) == ("unauthorized_stream_write", id_)
        assert p1.received() == []

    def test_a_frame_after_the_close_is_refused(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        id_ = driver.open_stream(p1)
        p1.put(envelope("stream/close", {"stream_id": id_}), f"#{id_}#x")
        driver.run()
        assert kinds(p1.heard()) == ["stream/close", "system/error"]
