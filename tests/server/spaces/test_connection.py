"""Streams with `overflow: wait`: writers stop while a target is behind, and a target without progress is removed."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Limits
from penstock.dialects.mew.settings import StreamSettings
from tests.dialects.mew.driving import Client, GatewayDriver, error, participant, settings, token

LIMITS = Limits(space_wait_max=4_000, space_telemetry_max=4_000, answers_max=100)
PIECE = 1_000


def frame(stream: str, n: int) -> bytes:
    return f"#{stream}#{n:06}".encode() + bytes(PIECE)


def number(data: bytes) -> int:
    return int(data.split(b"#", 2)[2][:6])


@pytest.fixture
def driver() -> GatewayDriver:
    return GatewayDriver(limits=LIMITS)


def stop_reading(client: Client) -> None:
    client.wire.buffered = 100_000
    client.connection.congested(True)


def read_again(driver: GatewayDriver, client: Client) -> None:
    client.wire.buffered = 0
    client.connection.congested(False)
    driver.run()


def write_until_held(driver: GatewayDriver, writer: Client, stream: str, most: int = 100) -> int:
    """Write frames until the server reads no more; returns how many."""
    for n in range(most):
        writer.put(frame(stream, n))
        driver.run()
        if writer.wire.is_held:
            return n + 1
    raise AssertionError("the writer was never held")


def errors(client: Client, code: str) -> list[dict[str, Any]]:
    heard = [each for each in client.received() if isinstance(each, dict) and each["kind"] == "system/error"]
    return [each["payload"] for each in heard if each["payload"]["error"] == code]


@pytest.mark.promise("MEW gateway", "a stream with `overflow: wait` loses no frame of a reader that makes progress")
@pytest.mark.parametrize("asked", [{"overflow": "wait"}, {"expected_size_bytes": 5_000_000}])
def test_the_writer_waits_and_everything_arrives_in_order(driver: GatewayDriver, asked: dict[str, Any]) -> None:
    p1, p2 = driver.joined("p1", "p2")
    stream = driver.open_stream(p1, ["p2"], **asked)
    stop_reading(p2)
    count = write_until_held(driver, p1, stream)
    assert 3 <= count <= 5
    read_again(driver, p2)
    assert not p1.wire.is_held
    for n in range(count, 200):
        p1.put(frame(stream, n))
    driver.run()
    assert [number(each) for each in p2.frames()] == list(range(200))
    assert driver.space.router.counts()["dropped"] == 0


def test_other_streams_and_envelopes_pass_while_frames_of_one_stream_wait(driver: GatewayDriver) -> None:
    p1, p2, p3 = driver.joined("p1", "p2", "p3")
    slow, other = driver.open_stream(p1, ["p2"], overflow="wait"), driver.open_stream(p1, ["p3"], overflow="wait")
    stop_reading(p2)
    p1.put(frame(slow, 0), frame(other, 1), frame(slow, 2))
    driver.run()
    assert not p1.wire.is_held and [number(each) for each in p3.frames()] == [1]
    write_until_held(driver, p1, slow)
    p3.say("chat", {"text": "not concerned"})
    assert not p3.wire.is_held


@pytest.mark.promise(
    "MEW gateway", "a target without progress is removed from a stream that waits, and the owner knows"
)
def test_a_target_without_progress_is_removed_and_the_owner_is_notified(driver: GatewayDriver) -> None:
    p1, p2, p3 = driver.joined("p1", "p2", "p3")
    stream = driver.open_stream(p1, ["p2", "p3"], overflow="wait")
    stop_reading(p2)
    count = write_until_held(driver, p1, stream)
    p1.received()
    driver.advance(3_000)
    assert p1.wire.is_held, "the time is not over"
    driver.advance(3_000)
    assert not p1.wire.is_held
    (told,) = errors(p1, "target_removed")
    assert (told["stream_id"], told["targets"], told["frames"]) == (stream, ["p2"], count)
    assert driver.space.targets_removed == 1 and driver.space.router.counts()["dropped"] == count
    for n in range(count, 50):
        p1.put(frame(stream, n))
    driver.run()
    assert [number(each) for each in p3.frames()] == list(range(50)) and not p1.wire.is_held
    read_again(driver, p2)
    assert errors(p2, "target_removed") == [told] and p2.is_open
    p2.gone()
    p2 = driver.join("p2")
    p1.put(frame(stream, 50))
    driver.run()
    assert [number(each) for each in p2.frames()] == [50], "one that joins again is a target again"


def test_a_target_that_reads_slowly_stays(driver: GatewayDriver) -> None:
    p1, p2 = driver.joined("p1", "p2")
    stream = driver.open_stream(p1, ["p2"], overflow="wait")
    stop_reading(p2)
    write_until_held(driver, p1, stream)
    for _ in range(20):
        p2.wire.buffered -= 1_000
        driver.advance(3_000)
    assert p1.wire.is_held and driver.space.targets_removed == 0


@pytest.mark.promise("MEW gateway", "two streams that wait for each other end")
def test_two_streams_that_wait_for_each_other_end(driver: GatewayDriver) -> None:
    p1, p2 = driver.joined("p1", "p2")
    there, back = driver.open_stream(p1, ["p2"], overflow="wait"), driver.open_stream(p2, ["p1"], overflow="wait")
    stop_reading(p1)
    stop_reading(p2)
    write_until_held(driver, p1, there)
    write_until_held(driver, p2, back)
    driver.advance(7_000)
    assert not p1.wire.is_held and not p2.wire.is_held and driver.space.targets_removed == 2
    for client, stream in ((p1, there), (p2, back)):
        read_again(driver, client)
        assert [each["targets"] for each in errors(client, "target_removed") if each["stream_id"] == stream]
        assert client.is_open


def test_a_writer_that_does_not_read_its_own_broadcast_waits_for_itself(driver: GatewayDriver) -> None:
    p1, _p2 = driver.joined("p1", "p2")
    stream = driver.open_stream(p1, overflow="wait")
    stop_reading(p1)
    write_until_held(driver, p1, stream)
    driver.advance(7_000)
    assert not p1.wire.is_held
    assert [each.name for each in driver.space.router.receivers(driver.space.router.route(stream))] == ["p2"]  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["leaves", "closes", "revokes"])
def test_nothing_is_held_once_the_reason_is_gone(driver: GatewayDriver, how: str) -> None:
    p1, p2, p3 = driver.joined("p1", "p2", "p3")
    stream = driver.open_stream(p1, ["p2"], overflow="wait")
    p1.say("stream/grant-write", {"stream_id": stream, "participant_id": "p3"})
    stop_reading(p2)
    write_until_held(driver, p3, stream)
    match how:
        case "leaves":
            p2.gone()
        case "closes":
            driver.post("p1", {"kind": "stream/close", "payload": {"stream_id": stream}})
        case "revokes":
            payload = {"stream_id": stream, "participant_id": "p3"}
            driver.post("p1", {"kind": "stream/revoke-write", "payload": payload})
    assert not p3.wire.is_held


def test_a_blocked_writer_is_not_taken_for_dead_and_can_be_closed(driver: GatewayDriver) -> None:
    p1, p2 = driver.joined("p1", "p2")
    stream = driver.open_stream(p1, ["p2"], overflow="wait")
    stop_reading(p2)
    write_until_held(driver, p1, stream)
    for _ in range(30):  # the target takes a little all the time
        p2.wire.buffered -= 1_000
        p2.session.is_alive = True
        driver.advance(3_000, is_answering=False)
    assert p1.is_open and p1.wire.is_held
    driver.join("p1")
    assert p1.wire.closed == (4001, "taken_over")


def test_writers_that_cannot_be_held_cost_their_target_its_place() -> None:
    robot = participant("robot", is_pipeline=True)
    space = settings("p2", robot=robot, streams={"results": StreamSettings("robot", ("p2",), overflow="wait")})
    driver = GatewayDriver(space, limits=LIMITS)
    p2 = driver.join("p2")
    stop_reading(p2)
    for _ in range(10):
        assert driver.spaces.write("demo", "results", [bytes(PIECE)] * 10) is None
        driver.run()
    assert driver.space.targets_removed == 1 and p2.session.outbox.waits == 0


def test_one_that_polls_is_waited_for(driver: GatewayDriver) -> None:
    driver.ask("GET", "/participants/p2/messages", key=token("p2"))
    (p1,) = driver.joined("p1")
    stream = driver.open_stream(p1, ["p2"], overflow="wait")
    count = write_until_held(driver, p1, stream)
    _, answer = driver.ask("GET", "/participants/p2/messages", key=token("p2"))
    driver.run()
    assert len(answer["frames"]) == count and not p1.wire.is_held


@pytest.mark.promise("MEW gateway", "the owner of a stream knows how many of its frames were dropped")
def test_the_owner_of_telemetry_knows_how_many_frames_were_dropped(driver: GatewayDriver) -> None:
    p1, p2 = driver.joined("p1", "p2")
    quiet, stream = driver.open_stream(p1, ["p2"]), driver.open_stream(p1, ["p2"])
    stop_reading(p2)
    p1.put(frame(quiet, 0))
    driver.run()
    driver.advance(1_100)
    for n in range(20):
        p1.put(frame(stream, n))
        driver.run()
    driver.advance(1_100)
    told = {each["stream_id"]: each["frames"] for each in errors(p1, "frames_not_delivered")}
    lost = {route.id: route.dropped for route in driver.space.router.routes.values()}
    assert told == lost and lost[quiet] == 1 and lost[stream] > 10
    driver.advance(2_000)
    assert errors(p1, "frames_not_delivered") == []
    read_again(driver, p2)
    assert len(errors(p2, "frames_dropped")) == 2


def test_another_value_is_refused(driver: GatewayDriver) -> None:
    (p1,) = driver.joined("p1")
    fault = error(p1.say("stream/request", {"overflow": "block"}, id="r"))
    assert "`drop-oldest`, `wait` or `disconnect`" in fault["message"]


def test_a_restart_keeps_what_a_stream_does_when_it_overflows(driver: GatewayDriver) -> None:
    (p1,) = driver.joined("p1")
    driver.open_stream(p1, expected_size_bytes=1)
    stream = driver.again().space.state.streams["stream-1"]
    assert (stream.route.overflow, stream.route.waits, stream.route.sheds) == ("wait", True, False)
