"""Signatures: who may open a topic, and authenticated answers.

Owns the checks of a registration, in this order: size, signer, time, signature, nonce, then the request. Nothing is remembered of a
signer before its signature is verified. The signature is Ed25519 over the canonical encoding of the request as received; unknown fields
are rejected.

A registration needs claims that allow `publish` on `stream` for its topic or for `*`, or the claims of an administrator. It expires at
the earliest of its own time, that of its claims, and the longest lifetime. Times are seconds; a number past the year 5000 is taken as
milliseconds. Knows no clock: the caller passes `now_ms`. Cost: about 100 us for a valid registration, less for an invalid one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from nacl import signing as ed25519
from nacl.exceptions import BadSignatureError

from penstock.core.errors import TABLE, Refusal
from penstock.dialects.streamservice import encode, messages
from penstock.dialects.streamservice.capnp_segments import REASONS, Message, WireError
from penstock.dialects.streamservice.decode import read_register, read_response, signed_envelope
from penstock.dialects.streamservice.encode import canonical
from penstock.dialects.streamservice.relay_memory import AGE_MAX_MS, SKEW_MAX_MS, NonceCache, Verdict
from penstock.dialects.streamservice.wire import KEY_SIZE, SIGNATURE_SIZE, FrameFault, Register, is_topic

ENVELOPE_MAX = 16_384
"""Bytes of a registration. One with a single scope has 500; a larger limit would let strangers cause work."""
LIFETIME_MAX_S = 86_400
"""The longest lifetime of a registration."""
SIGNERS_MAX = 10_000
"""Keys of a trust store."""
MILLISECONDS_FROM = 10**11
"""A larger number is taken as milliseconds."""
PUBLISH = ("publish", "stream")
REFUSED_MARK = b"\x04"
"""First byte of the second frame of the answer to a refused registration."""


REPLAYED = Refusal("Unauthorized", "the request was made before", "nonce", hint="sign each with a new nonce")
_NONCE_REFUSALS: dict[Verdict, Refusal | None] = {
    "fresh": None,
    "replayed": REPLAYED,
    "stale": Refusal("Unauthorized", "the request is too old", "timestamp", hint="sign it anew"),
    "quota": Refusal("QuotaExceeded", "the signer registers more than its share", "quota"),
    "full": Refusal("QuotaExceeded", "more is registered than we can remember", "full"),
}


class SigningKey:
    """A publisher's Ed25519 key."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_SIZE:
            raise ValueError(f"a signing key is made of {KEY_SIZE} bytes")
        self._key = ed25519.SigningKey(seed)
        self.public = bytes(self._key.verify_key)

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public.hex()})"

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes."""
        return self._key.sign(data).signature


class TrustStore:
    """The keys that may sign registrations, each with a name."""

    __slots__ = ("_keys", "_names")

    def __init__(self, signers: Mapping[str, bytes]) -> None:
        """`signers` are public keys by name."""
        if len(signers) > SIGNERS_MAX:
            raise ValueError(f"a trust store has at most {SIGNERS_MAX} keys")
        for name, key in signers.items():
            if len(key) != KEY_SIZE:
                raise ValueError(f"the key of `{name}` has {len(key)} bytes instead of {KEY_SIZE}")
        self._names = {key: name for name, key in signers.items()}
        self._keys = {key: ed25519.VerifyKey(key) for key in signers.values()}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, signer: bytes) -> bool:
        return signer in self._keys

    def name(self, signer: bytes) -> str:
        return self._names[signer]

    def is_signed(self, signer: bytes, signature: bytes, data: bytes) -> bool:
        """Whether the signature is that of one of the keys."""
        key = self._keys.get(signer)
        if key is None or len(signature) != SIGNATURE_SIZE:
            return False
        try:
            key.verify(data, signature)
        except BadSignatureError:
            return False
        return True


class Registration(msgspec.Struct, frozen=True):
    """An accepted registration: a topic, its signer and its expiry."""

    topic: bytes
    exp_s: int
    signer: bytes
    signer_name: str
    sub: str
    had_milliseconds: bool = False
    """Its time was in milliseconds, which is logged: other services would take it as seconds."""
    nonce: str = ""
    timestamp_ms: int = 0

    @property
    def signer_hash(self) -> str:
        """The signer's key as the journal has it."""
        return hashlib.sha256(self.signer).hexdigest()


class Registrar:
    """Checks registrations, and remembers their nonces."""

    __slots__ = ("_lifetime_max_s", "nonces", "trust")

    def __init__(
        self, trust: TrustStore, nonces: NonceCache | None = None, *, lifetime_max_s: int = LIFETIME_MAX_S
    ) -> None:
        self.trust = trust
        self.nonces = NonceCache() if nonces is None else nonces
        if self.nonces.retention_ms < AGE_MAX_MS + SKEW_MAX_MS:
            raise ValueError("nonces must be remembered for as long as an envelope stays young")
        self._lifetime_max_s = lifetime_max_s

    def admit(self, register: Register, now_ms: int) -> Registration | Refusal:
        """Check a registration; the `ref` of a refusal is one of a few words, so that it can be a metric label."""
        if len(register.frame) > ENVELOPE_MAX:
            return Refusal("TooLarge", f"the registration has more than {ENVELOPE_MAX} bytes", ref="size")
        if register.signer not in self.trust:
            return _unauthorized("signer", "the signer is not trusted here", "add its key to `relay.signers`")
        try:
            signed, body = signed_envelope(Message(register.frame).root())
            envelope, signer = signed.envelope, hashlib.sha256(signed.signer).digest()
            if (refusal := _check_time(envelope.timestamp_ms, now_ms)) is not None:
                return refusal
            if self.nonces.is_used(signer, envelope.nonce):  # before the costly signature
                return REPLAYED
            data = canonical(body)
        except WireError as error:
            return Refusal("InvalidRequest", REASONS[error.reason], ref="message")
        if not self.trust.is_signed(signed.signer, signed.signature, data):
            return _unauthorized(
                "signature",
                "the signature is not the signer's",
                "it is made over the canonical encoding of the request, with no segment table",
            )
        verdict = self.nonces.take(signer, envelope.nonce, envelope.timestamp_ms, now_ms)
        return _NONCE_REFUSALS[verdict] or self._decide(signed, now_ms)

    def _decide(self, signed: messages.SignedEnvelope, now_ms: int) -> Registration | Refusal:
        register = read_register(signed.envelope.payload)
        if isinstance(register, FrameFault):
            return Refusal("InvalidRequest", f"the payload is no registration: {register.message}", ref="payload")
        topic = register.topic.encode()
        if not is_topic(topic):
            return Refusal("InvalidRequest", "the topic is not made of 64 lowercase hexadecimal digits", ref="topic")
        claims = signed.envelope.claims
        if claims is None:
            return _forbidden("claims", "the request has no claims", register.topic)
        if not claims.allow(*PUBLISH, register.topic):
            return _forbidden("scope", "the claims do not allow to publish on the topic", register.topic)
        now_s = now_ms // 1000
        exp_s = min(seconds(register.exp), seconds(claims.exp), now_s + self._lifetime_max_s)
        if exp_s <= now_s:
            return _unauthorized("exp", "the registration or its claims have expired", "times are in seconds")
        return Registration(
            topic,
            exp_s,
            signed.signer,
            self.trust.name(signed.signer),
            claims.sub,
            had_milliseconds=max(register.exp, claims.exp) > MILLISECONDS_FROM,
            nonce=signed.envelope.nonce.hex(),
            timestamp_ms=signed.envelope.timestamp_ms,
        )


def _check_time(timestamp_ms: int, now_ms: int) -> Refusal | None:
    if now_ms - timestamp_ms > AGE_MAX_MS:
        return _unauthorized("timestamp", "the request is too old", "sign it anew; are the clocks right?")
    if timestamp_ms - now_ms > SKEW_MAX_MS:
        return _unauthorized("timestamp", "the request comes from the future", "are the clocks right?")
    return None


def answer_refused(register: Register, refusal: Refusal) -> tuple[bytes, bytes] | None:
    """The answer to a refused registration: its topic, and 0x04, the nonce and the refusal as JSON; None if it names no topic."""
    try:
        envelope = signed_envelope(Message(register.frame).root())[0].envelope
    except WireError:
        return None
    wanted = read_register(envelope.payload)
    if isinstance(wanted, FrameFault) or not is_topic(wanted.topic.encode()):
        return None
    members = {name: value for name, value in msgspec.structs.asdict(refusal).items() if value is not None}
    return wanted.topic.encode(), REFUSED_MARK + envelope.nonce + msgspec.json.encode(members)


def read_refused(answer: bytes, nonce: bytes) -> Refusal | None:
    """The refusal of our own registration; the nonce shows that the answer is to it."""
    head = REFUSED_MARK + nonce
    if not answer.startswith(head):
        return None
    try:
        found = msgspec.json.decode(answer[len(head) :], type=Refusal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    code = found.code if found.code in TABLE else "Forbidden"
    return Refusal(code, f"the relay refused the stream: {found.message}", found.ref, hint=found.hint)


def seconds(time: int) -> int:
    """A time in seconds, from seconds or milliseconds."""
    return time // 1000 if time > MILLISECONDS_FROM else time


def sign(envelope: messages.RequestEnvelope, key: SigningKey) -> bytes:
    """A SignedEnvelope, ready to be sent."""
    data = canonical(Message(encode.request(envelope)).root())
    return encode.signed(envelope, key.sign(data), key.public)


def sign_registration(topic: str, exp_s: int, key: SigningKey, *, nonce: bytes, now_ms: int, sub: str) -> bytes:
    """A registration of one topic, with claims for that topic only."""
    claims = messages.Claims(sub, exp_s, now_ms // 1000, (messages.StreamScope(*PUBLISH, topic),))
    payload = encode.register(messages.StreamRegister(topic, exp_s))
    return sign(messages.RequestEnvelope(payload, nonce, now_ms, claims), key)


def sign_response(request_id: int, payload: bytes, key: SigningKey) -> bytes:
    """An answer whose signature covers the request's number and the payload."""
    signature = key.sign(_response_data(request_id, payload))
    return encode.response(messages.ResponseEnvelope(request_id, payload, signature, key.public))


def check_response(frame: bytes, request_id: int, trust: TrustStore) -> bytes | Refusal:
    """The payload of an answer to our request, if a trusted key signed it."""
    response = read_response(frame)
    if isinstance(response, FrameFault):
        return Refusal("InvalidRequest", response.message, ref="message")
    if response.request_id != request_id:
        return Refusal("InvalidRequest", "the answer is to another request", ref="requestId")
    if response.signer not in trust:
        return _unauthorized("signer", "the answer's signer is not trusted here", "add its key")
    if not trust.is_signed(response.signer, response.signature, _response_data(request_id, response.payload)):
        return _unauthorized("signature", "the signature is not the signer's", "the answer was changed on its way")
    return response.payload


def _response_data(request_id: int, payload: bytes) -> bytes:
    return request_id.to_bytes(8, "little") + payload


def _unauthorized(ref: str, message: str, hint: str) -> Refusal:
    return Refusal("Unauthorized", message, ref=ref, hint=hint)


def _forbidden(ref: str, message: str, topic: str) -> Refusal:
    scope = ":".join((*PUBLISH, topic))
    return Refusal("Forbidden", message, ref=ref, hint=f"the claims need the scope `{scope}`")
