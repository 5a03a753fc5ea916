"""The client's decoding of Control v1 frames and results."""

from __future__ import annotations

import re

import msgspec
import pytest

from penstock.client.control.frames import (
    DeliverFrame,
    Error,
    ExpiredFrame,
    LiveFrame,
    Ok,
    Receipt,
    decode_frame,
    head,
    now_text,
)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"type":"ok","reqId":"1","result":{}}', Ok),
        (b'{"type":"error","reqId":"1","code":"Timeout","status":504,"detail":"late","hint":"x"}', Error),
        (b'{"type":"expired","subId":"s1","id":"e1","leaseId":"1.a","seq":1,"stream":"jobs"}', ExpiredFrame),
        (b'{"type":"live","subId":"v1"}', LiveFrame),
    ],
)
def test_each_kind_is_decoded(line, kind):
    assert isinstance(decode_frame(line), kind)


def test_a_delivery_keeps_the_bytes_of_its_envelope():
    frame = decode_frame(
        b'{"type":"deliver","subId":"s1","stream":"jobs","seq":7,"attempt":1,"leaseId":"1.a","env":{"id": "e1"}}'
    )
    assert isinstance(frame, DeliverFrame)
    assert (frame.seq, bytes(frame.env)) == (7, b'{"id": "e1"}')


def test_an_unknown_kind_is_a_validation_error_and_other_bytes_are_not_json():
    with pytest.raises(msgspec.ValidationError):
        decode_frame(b'{"type":"news"}')
    with pytest.raises(msgspec.DecodeError):
        decode_frame(b"HTTP/1.1 400 Bad Request")


def test_an_error_becomes_an_exception_and_an_unknown_code_becomes_internal():
    known = decode_frame(b'{"type":"error","reqId":"1","code":"QueueFull","status":429,"detail":"full","hint":"x"}')
    newer = decode_frame(b'{"type":"error","reqId":"1","code":"Newer","status":418,"detail":"new","hint":"x"}')
    assert "full" in str(known.exception())
    assert newer.exception().code == "Internal"


def test_a_head_lacks_its_brace_and_leaves_out_none():
    assert head("pull", stream="jobs", max=1, waitMs=None) == b'{"type":"pull","stream":"jobs","max":1'


def test_a_receipt_speaks_of_its_first_envelope():
    receipt = Receipt(["a", "b"], [4, 5], ["a"])
    assert (receipt.id, receipt.seq, receipt.duplicate) == ("a", 4, True)


def test_the_time_has_the_form_of_an_envelope():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", now_text())
