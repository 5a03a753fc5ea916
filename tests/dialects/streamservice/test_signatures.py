"""Registrations: every check with its rejection, in an order that lets no stranger use up another signer's quota."""

from __future__ import annotations

from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penstock.core.errors import Refusal
from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.messages import (
    Claims,
    RequestEnvelope,
    ResponseEnvelope,
    StreamRegister,
    StreamScope,
)
from penstock.dialects.streamservice.relay_memory import NonceCache, UsedNonce
from penstock.dialects.streamservice.signatures import (
    ENVELOPE_MAX,
    LIFETIME_MAX_S,
    Registrar,
    Registration,
    SigningKey,
    TrustStore,
    check_response,
    seconds,
    sign,
    sign_registration,
    sign_response,
)
from penstock.dialects.streamservice.wire import FrameFault, Register, peek
from tests.dialects.streamservice.reference import NOW_MS, TOPIC, canonical_message, common, fill_envelope, scattered

KEY, OTHER, STRANGER = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
NOW_S = NOW_MS // 1000
EXP_S = NOW_S + 300
SCOPE = StreamScope("publish", "stream", TOPIC)
CLAIMS = Claims("svc", EXP_S, NOW_S, (SCOPE,))
AGE_MS, SKEW_MS = 300_000, 30_000


def registrar(**options: Any) -> Registrar:
    return Registrar(TrustStore({"svc": KEY.public, "other": OTHER.public}), **options)


def envelope(
    *,
    topic: str = TOPIC,
    exp: int = EXP_S,
    claims: Claims | None = CLAIMS,
    nonce: int = 0,
    at_ms: int = NOW_MS,
) -> RequestEnvelope:
    return RequestEnvelope(encode.register(StreamRegister(topic, exp)), nonce.to_bytes(16, "big"), at_ms, claims)


def register_of(frame: bytes) -> Register:
    seen = peek(frame)
    assert isinstance(seen, Register)
    return seen


def decide(subject: Registrar, request: RequestEnvelope, *, now_ms: int = NOW_MS, key: SigningKey = KEY) -> object:
    """What comes of a request: `ok`, or the one word of its refusal."""
    outcome = subject.admit(register_of(sign(request, key)), now_ms)
    return "ok" if isinstance(outcome, Registration) else outcome.ref


def test_a_good_registration() -> None:
    frame = sign_registration(TOPIC, EXP_S, KEY, nonce=b"n" * 16, now_ms=NOW_MS, sub="svc/tokens")
    outcome = registrar().admit(register_of(frame), NOW_MS)
    used = {"nonce": "6e" * 16, "timestamp_ms": NOW_MS}
    assert outcome == Registration(TOPIC.encode(), EXP_S, KEY.public, "svc", "svc/tokens", **used)
    assert isinstance(outcome, Registration)
    assert len(outcome.signer_hash) == 64


def test_the_layout_of_an_envelope_does_not_matter() -> None:
    dice = Random(11)
    for count in range(1, 8):
        frame = scattered(sign(envelope(), KEY), dice, count)
        assert isinstance(registrar().admit(register_of(frame), NOW_MS), Registration)


def test_an_envelope_that_pycapnp_built() -> None:
    request = envelope()
    data = canonical_message(encode.request(request))
    assert isinstance(data, bytes)
    builder = common.SignedEnvelope.new_message()
    builder.signerPubkey = KEY.public
    builder.signature = KEY.sign(data)
    fill_envelope(builder.init("envelope"), request)
    assert isinstance(registrar().admit(register_of(bytes(builder.to_bytes())), NOW_MS), Registration)


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a registration needs a trusted signer, a time, a signature, a nonce, claims and a scope",
)
def test_a_stranger_is_refused() -> None:
    assert decide(registrar(), envelope(), key=STRANGER) == "signer"
    frame = sign(envelope(), STRANGER).replace(STRANGER.public, KEY.public)
    outcome = registrar().admit(register_of(frame), NOW_MS)
    assert isinstance(outcome, Refusal)
    assert (outcome.code, outcome.ref) == ("Unauthorized", "signature")


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a registration needs a trusted signer, a time, a signature, a nonce, claims and a scope",
)
@pytest.mark.parametrize(
    ("at_ms", "expected"),
    [
        (NOW_MS - AGE_MS, "ok"),
        (NOW_MS - AGE_MS - 1, "timestamp"),
        (NOW_MS + SKEW_MS, "ok"),
        (NOW_MS + SKEW_MS + 1, "timestamp"),
        (0, "timestamp"),
        (-(2**63), "timestamp"),
        (2**63 - 1, "timestamp"),
    ],
)
def test_the_window_of_time(at_ms: int, expected: str) -> None:
    assert decide(registrar(), envelope(at_ms=at_ms)) == expected


def test_a_nonce_counts_once_for_each_signer() -> None:
    subject = registrar()
    assert decide(subject, envelope(nonce=7)) == "ok"
    assert decide(subject, envelope(nonce=7)) == "nonce"
    assert decide(subject, envelope(nonce=7, exp=EXP_S + 1)) == "nonce"
    assert decide(subject, envelope(nonce=7), key=OTHER) == "ok"
    assert decide(subject, envelope(nonce=8)) == "ok"


@pytest.mark.promise("Token streams: bytes, keys and signatures", "nonces cannot be poisoned, flooded or evicted early")
def test_a_nonce_is_not_used_up_without_a_signature() -> None:
    subject = registrar()
    good = sign(envelope(nonce=7), KEY)
    forged = sign(envelope(nonce=7), STRANGER).replace(STRANGER.public, KEY.public)
    for _ in range(50):
        outcome = subject.admit(register_of(forged), NOW_MS)
        assert isinstance(outcome, Refusal)
        assert outcome.ref == "signature"
    assert len(subject.nonces) == 0
    assert isinstance(subject.admit(register_of(good), NOW_MS), Registration)


@pytest.mark.promise("Token streams: bytes, keys and signatures", "nonces cannot be poisoned, flooded or evicted early")
def test_a_replay_is_refused_for_as_long_as_it_is_young() -> None:
    """A clock that is ahead by the whole skew makes an envelope that stays young for the age and the skew together."""
    subject = registrar()
    request = envelope(at_ms=NOW_MS + SKEW_MS, exp=NOW_S + 9_000, claims=Claims("s", NOW_S + 9_000, 0, (SCOPE,)))
    assert decide(subject, request) == "ok"
    assert decide(subject, request, now_ms=NOW_MS + AGE_MS + SKEW_MS) == "nonce"
    assert decide(subject, request, now_ms=NOW_MS + AGE_MS + SKEW_MS + 1) == "timestamp"


@pytest.mark.promise("Token streams: bytes, keys and signatures", "nonces cannot be poisoned, flooded or evicted early")
def test_quotas_refuse_and_forget_nothing() -> None:
    subject = registrar(nonces=NonceCache(total_max=5, signer_max=3))
    assert [decide(subject, envelope(nonce=n)) for n in range(4)] == ["ok", "ok", "ok", "quota"]
    assert [decide(subject, envelope(nonce=n), key=OTHER) for n in range(3)] == ["ok", "ok", "full"]
    assert [decide(subject, envelope(nonce=n)) for n in range(3)] == ["nonce"] * 3
    later = NOW_MS + AGE_MS + SKEW_MS + 1
    fresh = envelope(nonce=9, at_ms=later, exp=later // 1000 + 9, claims=Claims("s", later // 1000 + 9, 0, (SCOPE,)))
    assert decide(subject, fresh, now_ms=later) == "ok"


def test_a_registrar_does_not_forget_nonces_too_early() -> None:
    with pytest.raises(ValueError, match="nonces must be remembered"):
        registrar(nonces=NonceCache(age_max_ms=1_000, skew_max_ms=1_000))


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a registration needs a trusted signer, a time, a signature, a nonce, claims and a scope",
)
@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (None, "claims"),
        (Claims("svc", EXP_S), "scope"),
        (CLAIMS, "ok"),
        (Claims("svc", EXP_S, 0, (StreamScope("publish", "stream", "*"),)), "ok"),
        (Claims("svc", EXP_S, 0, (StreamScope("publish", "stream", "f" * 64), SCOPE)), "ok"),
        (Claims("svc", EXP_S, 0, (), is_admin=True), "ok"),
        (Claims("svc", EXP_S, 0, (StreamScope("publish", "stream", "f" * 64),)), "scope"),
        (Claims("svc", EXP_S, 0, (StreamScope("publish", "stream", TOPIC[:-1] + "*"),)), "scope"),
        (Claims("svc", EXP_S, 0, (StreamScope("subscribe", "stream", TOPIC),)), "scope"),
        (Claims("svc", EXP_S, 0, (StreamScope("publish", "model", TOPIC),)), "scope"),
        (Claims("svc", EXP_S, 0, (StreamScope("*", "*", "*"),)), "scope"),
        (Claims("svc", NOW_S, 0, (SCOPE,)), "exp"),
        (Claims("svc", 0, 0, (), is_admin=True), "exp"),
    ],
)
def test_claims(claims: Claims | None, expected: str) -> None:
    assert decide(registrar(), envelope(claims=claims)) == expected


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a registration needs a trusted signer, a time, a signature, a nonce, claims and a scope",
)
@pytest.mark.parametrize(
    ("exp", "claims_exp", "expected"),
    [
        (EXP_S, EXP_S + 50, EXP_S),
        (EXP_S + 50, EXP_S, EXP_S),
        (EXP_S * 1000, EXP_S + 50, EXP_S),
        (EXP_S + 50, EXP_S * 1000 + 999, EXP_S),
        (2**63 - 1, 2**63 - 1, NOW_S + LIFETIME_MAX_S),
        (NOW_S + 1, EXP_S, NOW_S + 1),
        (NOW_S, EXP_S, None),
        (NOW_MS, EXP_S, None),
        (0, EXP_S, None),
        (-5, EXP_S, None),
    ],
)
def test_when_a_registration_ends(exp: int, claims_exp: int, expected: int | None) -> None:
    request = envelope(exp=exp, claims=Claims("svc", claims_exp, 0, (SCOPE,)))
    outcome = registrar().admit(register_of(sign(request, KEY)), NOW_MS)
    if expected is None:
        assert isinstance(outcome, Refusal)
        assert outcome.ref == "exp"
    else:
        assert isinstance(outcome, Registration)
        assert outcome.exp_s == expected
        assert outcome.had_milliseconds == (max(exp, claims_exp) > 10**11)


def test_seconds_and_milliseconds() -> None:
    assert seconds(10**11) == 10**11
    assert seconds(10**11 + 1) == 10**8
    assert seconds(EXP_S) == seconds(EXP_S * 1000) == EXP_S


@pytest.mark.parametrize("topic", [TOPIC.upper(), TOPIC[:-1], TOPIC + "0", "", "ü" * 64, TOPIC[:-1] + "\0"])
def test_topics_have_one_form(topic: str) -> None:
    claims = Claims("svc", EXP_S, 0, (StreamScope("publish", "stream", topic), StreamScope("publish", "stream", "*")))
    assert decide(registrar(), envelope(topic=topic, claims=claims)) == "topic"


def test_a_payload_that_is_no_registration() -> None:
    for payload in (b"", b"nonsense", encode.resume(TOPIC.encode(), b"m" * 32)):
        request = RequestEnvelope(payload, b"n" * 16, NOW_MS, CLAIMS)
        assert decide(registrar(), request) == "payload"


def test_an_envelope_that_is_too_large_is_not_even_read() -> None:
    request = RequestEnvelope(bytes(ENVELOPE_MAX), b"n" * 16, NOW_MS, CLAIMS)
    assert decide(registrar(), request) == "size"


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a registration needs a trusted signer, a time, a signature, a nonce, claims and a scope",
)
def test_what_is_signed_must_be_understood_whole() -> None:
    """A newer writer's field would count as signed although this code does not read it."""
    plain = encode._request(envelope())
    for body in (
        encode.Body(plain.data + (1).to_bytes(8, "little"), *plain.pointers),
        encode.Body(plain.data, *plain.pointers, b"more"),
    ):
        data = canonical_message(encode.framed(body))
        assert isinstance(data, bytes)
        frame = encode.framed(encode.Body(b"", body, KEY.sign(data), KEY.public))
        outcome = registrar().admit(register_of(frame), NOW_MS)
        assert isinstance(outcome, Refusal)
        assert outcome.ref == "message"
    roomy = encode.Body(plain.data + bytes(8), *plain.pointers, None)
    data = canonical_message(encode.framed(roomy))
    assert isinstance(data, bytes)
    frame = encode.framed(encode.Body(b"", roomy, KEY.sign(data), KEY.public))
    assert isinstance(registrar().admit(register_of(frame), NOW_MS), Registration)


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a registration needs a trusted signer, a time, a signature, a nonce, claims and a scope",
)
@given(st.integers(0, 10**9))
def test_no_change_of_a_bit_gets_anything_else_admitted(place: int) -> None:
    frame = bytearray(sign(envelope(), KEY))
    place %= len(frame) * 8
    frame[place // 8] ^= 1 << place % 8
    seen = peek(bytes(frame))
    if isinstance(seen, Register):
        outcome = registrar().admit(seen, NOW_MS)
        wanted = Registration(TOPIC.encode(), EXP_S, KEY.public, "svc", "svc", nonce="00" * 16, timestamp_ms=NOW_MS)
        assert isinstance(outcome, Refusal) or outcome == wanted


def test_every_rejection_has_a_hint() -> None:
    subject = registrar()
    requests = [
        envelope(claims=None),
        envelope(at_ms=0),
        envelope(topic="x", nonce=1),
        envelope(exp=1, nonce=2),
    ]
    for request in requests:
        outcome = subject.admit(register_of(sign(request, KEY)), NOW_MS)
        assert isinstance(outcome, Refusal)
        assert outcome.wire()["hint"]


def test_answers_are_signed_for_one_request() -> None:
    trust = TrustStore({"svc": KEY.public})
    frame = sign_response(7, b"payload", KEY)
    assert check_response(frame, 7, trust) == b"payload"
    cases = [
        (check_response(frame, 8, trust), "requestId"),
        (check_response(frame.replace(b"payload", b"paXload"), 7, trust), "signature"),
        (check_response(sign_response(7, b"payload", STRANGER), 7, trust), "signer"),
        (check_response(frame[:-8], 7, trust), "message"),
        (
            check_response(encode.response(ResponseEnvelope(7, b"payload", b"", KEY.public)), 7, trust),
            "signature",
        ),
        (check_response(encode.response(ResponseEnvelope(7, b"payload")), 7, trust), "signer"),
        (
            check_response(frame.replace((7).to_bytes(8, "little"), (8).to_bytes(8, "little")), 8, trust),
            "signature",
        ),
    ]
    for outcome, ref in cases:
        assert isinstance(outcome, Refusal)
        assert outcome.ref == ref


def test_trust_stores_take_whole_keys_only() -> None:
    with pytest.raises(ValueError, match="the key of `svc` has 31 bytes"):
        TrustStore({"svc": bytes(31)})
    with pytest.raises(ValueError, match="32 bytes"):
        SigningKey(bytes(31))
    assert not TrustStore({}).is_signed(KEY.public, KEY.sign(b"x"), b"x")
    assert "01" * 32 not in repr(KEY)


def test_nothing_is_signed_where_there_is_no_canonical_form() -> None:
    assert isinstance(canonical_message(b"nonsense"), FrameFault)


@pytest.mark.promise("Relay", "a registration cannot be replayed after a restart")
def test_a_nonce_of_an_earlier_run_is_refused_before_the_signature_is_verified() -> None:
    first, second = registrar(), registrar()
    outcome = first.admit(register_of(sign(envelope(nonce=7), KEY)), NOW_MS)
    assert isinstance(outcome, Registration)
    second.nonces.restore([UsedNonce(outcome.signer_hash, outcome.nonce, outcome.timestamp_ms)], NOW_MS + 5)
    assert decide(second, envelope(nonce=7)) == "nonce"
    forged = sign(envelope(nonce=7), STRANGER).replace(STRANGER.public, KEY.public)
    refusal = second.admit(register_of(forged), NOW_MS)
    assert isinstance(refusal, Refusal) and refusal.ref == "nonce"
    assert decide(second, envelope(nonce=8)) == "ok"
