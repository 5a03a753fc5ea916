"""Messages of a gateway: their structure is checked, and errors get a code and a hint."""

from __future__ import annotations

import json

import pytest

from penstock.client.space.messages import (
    Frame,
    SpaceEnvelope,
    SpaceError,
    TargetUnsupported,
    envelope_text,
    frame_bytes,
    join_message,
    read_message,
)
from penstock.core.errors import PenstockError


def test_an_envelope_survives_the_way():
    text = envelope_text("e1", "ann", "chat", {"text": "hello"}, ["bob"], ["e0"])
    found = read_message(text.encode())
    assert isinstance(found, SpaceEnvelope)
    assert (found.id, found.sender, found.kind, found.to) == ("e1", "ann", "chat", ("bob",))
    assert (found.correlation_id, found.payload, found.size) == (("e0",), {"text": "hello"}, len(text))
    assert not found.is_from_gateway


def test_a_frame_survives_the_way_and_may_hold_any_bytes():
    assert read_message(frame_bytes("stream-1", b"#\x00#")) == Frame("stream-1", b"#\x00#")
    assert frame_bytes("stream-1", "text") == b"#stream-1#text"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"id":"x"}', b'{"kind":7}', b"[" * 100_000])
def test_what_is_neither_is_none(data):
    assert read_message(data) is None


def test_fields_of_the_wrong_type_count_as_absent():
    found = read_message(b'{"kind":"chat","id":7,"from":null,"to":[1,"bob"],"correlation_id":"e0"}')
    assert (found.id, found.sender, found.to, found.correlation_id) == ("", "", ("bob",), ("e0",))


def test_a_join_leaves_out_what_is_not_given():
    assert json.loads(join_message(None, "ann", None)) == {"type": "join", "participantId": "ann"}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"error": "stream_not_found", "message": "no such stream"}, "UnknownStream"),
        ({"error": "something_new"}, "InvalidRequest"),
        ({"error": "something_new", "code": "RateLimited"}, "RateLimited"),
        ({}, "InvalidRequest"),
    ],
)
def test_an_error_of_the_gateway_has_one_of_our_codes_and_a_hint(payload, code):
    error = SpaceError(payload)
    assert error.code == code
    assert error.payload == payload
    assert "hint:" in str(error)


def test_unauthorized_is_about_the_token_only_in_a_join():
    assert SpaceError({"error": "unauthorized"}, is_join=True).code == "Unauthorized"
    assert SpaceError({"error": "unauthorized"}).code == "Forbidden"


def test_an_ignored_target_names_the_stream_and_the_targets():
    error = TargetUnsupported(["ann", "bob"], "stream-7")
    assert error.code == "Unsupported"
    assert "`stream-7`" in str(error) and "`ann`, `bob`" in str(error)


@pytest.mark.promise("SDK and command line", "NaN and infinities are refused, never stored as null")
def test_a_number_that_json_cannot_express_is_refused():
    with pytest.raises(PenstockError, match=r"`payload\.mean` is nan"):
        envelope_text("e", "ada", "chat", {"mean": float("nan")})
    assert json.loads(envelope_text("e", "ada", "chat", {"mean": None}))["payload"] == {"mean": None}
