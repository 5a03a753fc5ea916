"""Frames of Control v1 extend the HTTP requests and keep their own keys; a bad line names its request."""

import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.courier.operations.enqueue import SendRequest
from penstock.dialects.courier.operations.settle import SettleRequest
from penstock.dialects.courier.sessions.control import frames
from penstock.dialects.courier.sessions.pull import PullRequest


def test_a_frame_is_the_request_of_its_operation() -> None:
    frame = frames.decode_frame(b'{"type":"settle","id":"1","op":"nack","leaseId":"l","delayMs":5,"reqId":7}')
    assert isinstance(frame, SettleRequest)
    assert (frame.id, frame.op, frame.lease_id, frame.delay_ms) == ("1", "nack", "l", 5)
    assert frames.req_id_of(frame) == 7


def test_a_send_has_its_type_under_kind() -> None:
    frame = frames.decode_frame(b'{"type":"send","to":"sam","kind":"note","payload":{"x": 1},"from":"jen"}')
    assert isinstance(frame, SendRequest)
    assert (frame.to, frame.kind, frame.from_, bytes(frame.payload)) == ("sam", "note", "jen", b'{"x": 1}')


def test_http_and_control_spell_a_pull_differently() -> None:
    frame = frames.decode_frame(b'{"type":"pull","stream":"a","waitMs":9,"leaseMs":8}')
    assert isinstance(frame, PullRequest) and (frame.wait_ms, frame.lease_ms) == (9, 8)
    request = msgspec.json.decode(b'{"stream":"a","wait_ms":9,"lease_ms":8}', type=PullRequest)
    assert (request.wait_ms, request.lease_ms) == (9, 8)


def test_unknown_fields_are_ignored_in_frames_and_rejected_over_http() -> None:
    assert isinstance(frames.decode_frame(b'{"type":"pull","stream":"a","more":1}'), frames.PullFrame)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"stream":"a","more":1}', type=PullRequest)


@pytest.mark.parametrize(
    ("line", "req_id", "code"),
    [
        (b"[1]", None, "InvalidJSON"),
        (b'{"type":"dance","reqId":3}', 3, "UnknownOp"),
        (b'{"type":"enqueue"}', "enqueue", "InvalidRequest"),
        (b'{"type":"grant","n":"many","reqId":"g"}', "g", "InvalidCredit"),
        (b'{"type":"redrive","stream":"a","max":0,"reqId":1}', 1, "InvalidRequest"),
    ],
)
def test_a_bad_line_names_its_request(line: bytes, req_id: object, code: str) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        frames.decode_frame(line)
    reference, refusal = frames.refusal_of(line, caught.value)
    assert (frames.name_of(reference), refusal.code) == (req_id, code)


DEEP = b"[" * 3000 + b"]" * 3000


@pytest.mark.parametrize(
    ("line", "req_id", "is_request"),
    [
        (rb'{"type":"enqueue","to":"a","env":{"payload":"\ud800"},"reqId":7}', 7, True),
        (rb'{"type":"enqueue","to":"a","env":{"payload":"\\\udc00"},"reqId":"r"}', "r", True),
        (rb'{"type":"enqueue","to":"a","env":{"payload":"\ud800"}}', "enqueue", True),
        (rb'{"type":"subscribe","stream":"\ud800"}', None, True),
        (rb'{"type":"stats","reqId":"\ud83d\ude00"}', "\U0001f600", True),
        (b'{"type":"stats","stream":"x\xff","reqId":7}', 7, True),
        (b'{"type":"enqueue","to":"a","reqId":7,"env":%b}' % DEEP, 7, True),
        (b'{"type":"enqueue","to":"a","env":%b,"reqId":7}' % DEEP, 7, True),
        (b'{"type":"enqueue","to":"a","env":{"n":NaN},"reqId":7}', 7, True),
        (b'{"type":"enqueue","to":"a","env":{"reqId":"of another"', "enqueue", True),
        (b'{"to":"a","env":{"n":NaN,"reqId":"of another"}}', None, False),
        (b'{"to":"a","env":"{\\"reqId\\":7}', None, False),
        (b'{"env":NaN,"reqId":"\xff"}', None, False),
        (b"GET / HTTP/1.1", None, False),
        (b'["reqId"]', None, False),
        (b'{"reqId"', None, False),
    ],
)  # fmt: skip
def test_what_can_be_read_of_a_broken_line(line: bytes, req_id: object, is_request: bool) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError, RecursionError)) as caught:
        frames.decode_frame(line)
    reference, _ = frames.refusal_of(line, caught.value)
    assert (frames.name_of(reference), reference is not None) == (req_id, is_request)


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text())), st.text() | st.integers(-(2**50), 2**50))
def test_a_payload_never_names_the_request(payload: dict[str, object], req_id: str | int) -> None:
    """An error must not reach another user of a gateway, whatever one of them sends."""
    env = msgspec.json.encode({**payload, "reqId": "victim", "inner": {"reqId": "victim"}, "type": "hello"})
    for members in ([b'"env":' + env, b'"reqId":' + msgspec.json.encode(req_id)], [b'"env":' + env]):
        line = b"{" + b",".join([b'"bad":NaN', *members]) + b"}"
        for cut in (len(line), *range(1, len(line), 7)):
            found = frames.name_of(frames.scan_reference(line[:cut], is_whole=cut == len(line)))
            assert found in ((req_id, None) if len(members) == 2 else (None,))


SIZE = 1024 * 1024
HOSTILE = {
    "surrogates": rb'{"a":"' + rb"\ud800" * (SIZE // 6) + b'"}',
    "backslashes": b'{"a":"' + b"\\" * SIZE,
    "open escapes": b'{"a":"' + b'\\"' * (SIZE // 2),
    "quotes": b'"' * SIZE,
    "braces": b"{" * SIZE,
    "members": b"{" + b',"reqId":"' * (SIZE // 10),
    "spaces": b'{,"reqId":1' + b" " * SIZE,
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_reading_a_broken_line_costs_little(shape: str) -> None:
    """The CPU of a refusal, compared with one decode of plain JSON of the same size."""
    line = HOSTILE[shape]
    plain = msgspec.json.encode(["plain text "] * (SIZE // 14))

    def cost(work: Callable[[], object]) -> int:
        times = []
        for _ in range(3):
            start = time.process_time_ns()
            work()
            times.append(time.process_time_ns() - start)
        return min(times)

    error = msgspec.DecodeError("broken")
    assert cost(lambda: frames.refusal_of(line, error)) < 10 * cost(lambda: msgspec.json.decode(plain))


@pytest.mark.parametrize("value", [b"9" * 50_000, b"1e" + b"9" * 50_000, b'[{"a":0.1},' * 5_000 + b"1" + b"]" * 5_000])
def test_a_reqId_that_is_no_short_number_and_no_text_names_nothing(value: bytes) -> None:
    reference, _ = frames.refusal_of(b'{"type":"enqueue","reqId":%b}' % value, msgspec.ValidationError("broken"))
    assert frames.name_of(reference) == "enqueue"


def test_a_reqId_that_is_no_text_is_not_decoded() -> None:
    """The CPU of a large one, compared with the same value in a member that is skipped."""
    value = msgspec.json.encode([{f"k{no}": [no / 7, "x"]} for no in range(5_000)])

    def cost(member: bytes) -> int:
        line, times = b'{"type":"x","%b":%b}' % (member, value), []
        for _ in range(5):
            start = time.process_time_ns()
            frames.name_of(frames.reference_of(line))
            times.append(time.process_time_ns() - start)
        return min(times)

    assert cost(b"reqId") < 2 * cost(b"other")


@pytest.mark.parametrize("req_id", ["", "r" * 5_000, 0, -7, 2**62])
def test_a_reqId_is_named_as_it_was_sent(req_id: str | int) -> None:
    line = msgspec.json.encode({"type": "x", "reqId": req_id})
    assert frames.name_of(frames.reference_of(line)) == req_id
