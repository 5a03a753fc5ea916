"""The control channel: only the reader can stop a publisher, once with each message."""

from __future__ import annotations

import pytest

from penstock.dialects.streamservice.chain import ControlChannel
from tests.dialects.streamservice.attacker import keys_of

KEYS = keys_of("control")


@pytest.fixture
def reader() -> ControlChannel:
    return ControlChannel(KEYS)


@pytest.fixture
def publisher() -> ControlChannel:
    return ControlChannel(KEYS)


def test_what_is_said_is_heard(reader: ControlChannel, publisher: ControlChannel) -> None:
    assert publisher.open(reader.seal("ping", 5)) == "ping"
    assert publisher.open(reader.seal("cancel", 5)) == "cancel"


@pytest.mark.promise(
    "Token streams: publisher and reader", "only the reader cancels, and each cancel message works once"
)
def test_a_copy_is_worth_nothing(reader: ControlChannel, publisher: ControlChannel) -> None:
    first, second = reader.seal("ping", 1), reader.seal("cancel", 2)
    assert publisher.open(second) == "cancel"
    assert publisher.open(second) is None
    assert publisher.open(first) is None, "an older one came late, or was kept back"
    assert publisher.refused == 2


def test_a_reader_that_was_started_anew_is_heard(publisher: ControlChannel) -> None:
    assert publisher.open(ControlChannel(KEYS).seal("ping", 1_000)) == "ping"
    assert publisher.open(ControlChannel(KEYS).seal("cancel", 1_001)) == "cancel"


def test_a_clock_that_goes_back_does_not_silence_a_reader(reader: ControlChannel, publisher: ControlChannel) -> None:
    assert publisher.open(reader.seal("ping", 1_000)) == "ping"
    assert publisher.open(reader.seal("cancel", 3)) == "cancel"


@pytest.mark.promise(
    "Token streams: publisher and reader", "only the reader cancels, and each cancel message works once"
)
@pytest.mark.parametrize("part", [0, 1, 2])
def test_nothing_may_be_changed(reader: ControlChannel, publisher: ControlChannel, part: int) -> None:
    sealed = list(reader.seal("cancel", 9))
    for at in range(len(sealed[part])):
        changed = bytearray(sealed[part])
        changed[at] ^= 1
        assert publisher.open([*sealed[:part], bytes(changed), *sealed[part + 1 :]]) is None
    assert publisher.open(sealed) == "cancel"


def test_the_topic_alone_stops_no_publisher(publisher: ControlChannel) -> None:
    sealed = ControlChannel(keys_of("somebody else")).seal("cancel", 10**9)
    assert publisher.open((KEYS.ctrl_topic.encode(), *sealed[1:])) is None
    for parts in ((), (publisher.topic,), (publisher.topic, b"", b""), (publisher.topic, sealed[1], b"")):
        assert publisher.open(parts) is None


def test_a_message_of_the_stream_is_no_command() -> None:
    """Its MAC key is another one."""
    assert KEYS.ctrl_mac_key != KEYS.mac_key and KEYS.ctrl_topic != KEYS.topic
