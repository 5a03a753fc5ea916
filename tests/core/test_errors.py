"""The error table and its form for clients."""

from __future__ import annotations

import pytest

from penstock.core.errors import MESSAGE_MAX, TABLE, PenstockError, Refusal

STATUSES = {
    "InvalidJSON": 400, "InvalidEnvelope": 400, "InvalidCredit": 400, "UnknownOp": 400,
    "AddressMismatch": 400, "Unauthorized": 401, "Forbidden": 403, "UnknownStream": 404, "UnknownView": 404,
    "UnknownEnvelope": 404, "AlreadyAcked": 409, "LeaseExpired": 409, "NotLeaseHolder": 409,
    "IdConflict": 409, "TooLarge": 413, "RateLimited": 429, "StreamFull": 429, "QuotaExceeded": 429,
    "Internal": 500, "Draining": 503, "Timeout": 504,
}  # fmt: skip
CLOSES = {"InvalidJSON": 1007, "Unauthorized": 1008, "TooLarge": 1009, "Internal": 1011, "Draining": 1001}


@pytest.mark.promise("Foundations", "HTTP, WebSocket, command line and documentation share one error table")
@pytest.mark.parametrize(("code", "status"), STATUSES.items())
def test_codes_have_the_statuses_clients_rely_on(code: str, status: int) -> None:
    assert Refusal(code, "x").status == status


@pytest.mark.parametrize(("code", "close"), CLOSES.items())
def test_codes_that_end_a_socket(code: str, close: int) -> None:
    assert TABLE[code].close == close


@pytest.mark.parametrize("code", TABLE)
def test_every_row_is_complete(code: str) -> None:
    kind = TABLE[code]
    assert kind.code == code
    assert 400 <= kind.status <= 599
    assert kind.meaning and kind.hint
    is_lasting = code == "JournalDamaged"  # a bug of ours may pass, a broken disk does not
    assert kind.retryable is (kind.status in (429, 500, 503, 504) and not is_lasting)


def test_the_wire_shape() -> None:
    bare = Refusal("StreamFull", "full").wire()
    assert bare == {
        "code": "StreamFull",
        "message": "full",
        "status": 429,
        "retryable": True,
        "hint": TABLE["StreamFull"].hint,
    }
    full = Refusal("StreamFull", "full", ref="a", retry_after_ms=7, hint="wait").wire()
    assert full == {**bare, "ref": "a", "retryAfterMs": 7, "hint": "wait"}


@pytest.mark.promise(
    "The document's testing strategy",
    "errors quote at most a kilobyte of the input; messages on a subscribe socket are bounded",
)
def test_what_is_quoted_to_a_peer_is_bounded() -> None:
    wire = Refusal("UnknownEnvelope", "no envelope " + "x" * 10**6, ref="y" * 10**6).wire()
    assert [len(str(wire[part])) for part in ("message", "ref")] == [MESSAGE_MAX] * 2
    longest = "z" * MESSAGE_MAX
    assert Refusal("UnknownEnvelope", longest, ref=longest).wire()["ref"] == longest


def test_the_exception_carries_the_refusal() -> None:
    error = PenstockError(Refusal("Draining", "bye"))
    assert (error.code, error.retryable) == ("Draining", True)
    assert str(error).splitlines() == ["Draining: bye", f"hint: {TABLE['Draining'].hint}"]


@pytest.mark.promise("SDK and command line", "every error is a `PenstockError` with a hint, and a subclass by its code")
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("Timeout", "Timeout"), ("Unauthorized", "Unauthorized"), ("Unreachable", "Unreachable"), ("Forbidden", "Forbidden"),
        ("StreamFull", "StreamFull"), ("LeaseExpired", "LeaseLost"), ("NotLeaseHolder", "LeaseLost"),
        ("UnknownStream", "NotFound"), ("UnknownEnvelope", "NotFound"), ("IdConflict", "IdConflict"),
        ("InvalidEnvelope", "InvalidRequest"), ("QuotaExceeded", "RateLimited"), ("Draining", "Unavailable"),
        ("HandlerFailed", "HandlerFailed"), ("Internal", "PenstockError"),
    ],
)  # fmt: skip
def test_an_error_is_made_as_the_class_of_its_code(code: str, kind: str) -> None:
    error = PenstockError(Refusal(code, "x"))
    assert type(error).__name__ == kind and isinstance(error, PenstockError)
    assert (error.code, error.message, error.hint) == (code, "x", TABLE[code].hint)
    assert PenstockError(Refusal(code, "x", hint="do y")).hint == "do y"


def test_the_codes_of_the_classes_are_codes_of_the_table() -> None:
    assert set(PenstockError._classes) <= set(TABLE)
