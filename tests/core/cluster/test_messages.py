"""Messages of a shard's log: what their headers say, and how frames are cut."""

import msgspec
import pytest

from penstock.core.cluster.messages import MESSAGE_MAX, PARTS_MAX, LogMessage, cut, parse_message


def frame(payload: bytes, **more: int) -> list[LogMessage]:
    return cut("rows", payload, **{"epoch": 7, "number": 42, "first": 1000, "rows": 12, "previous": 0xAB, **more})


def test_a_header_says_where_a_message_belongs() -> None:
    [message] = frame(b"rows")
    assert message.header == "7.42.1/1 rows 1000+12 000000ab 55e91c81"
    assert message.is_sound
    assert parse_message(message.header, b"rows") == message


def test_a_long_frame_is_cut_into_messages_that_continue_one_another() -> None:
    payload = bytes(range(256)) * (MESSAGE_MAX // 128) + b"end"
    messages = frame(payload)
    assert [(message.part, message.parts, len(message.payload)) for message in messages] == [
        (1, 3, MESSAGE_MAX),
        (2, 3, MESSAGE_MAX),
        (3, 3, 3),
    ]
    assert b"".join(message.payload for message in messages) == payload
    assert [message.previous for message in messages] == [0xAB, messages[0].check, messages[1].check]


def test_an_empty_frame_is_one_message() -> None:
    assert [message.payload for message in frame(b"", rows=0)] == [b""]


def test_a_frame_that_no_segment_can_hold_is_not_cut() -> None:
    with pytest.raises(ValueError, match="messages, at most"):
        frame(bytes(MESSAGE_MAX * PARTS_MAX + 1))


@pytest.mark.parametrize(
    "change",
    [{"epoch": 8}, {"number": 43}, {"part": 2}, {"first": 999}, {"rows": 11}, {"previous": 1}, {"payload": b"Rows"}],
    ids=str,
)
def test_a_change_anywhere_breaks_the_checksum(change: dict[str, object]) -> None:
    assert not msgspec.structs.replace(frame(b"rows")[0], **change).is_sound


@pytest.mark.parametrize(
    "header", [None, "", "7.42.1/1", "7.42.1/1 rows 1000+12 ab 55e91c81", "7.42.1/1 gone 0+0 000000ab 55e91c81"]
)
def test_a_foreign_message_is_none_of_ours(header: str | None) -> None:
    assert parse_message(header, b"") is None
