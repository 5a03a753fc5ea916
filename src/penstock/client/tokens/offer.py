"""How two ends agree on a stream that nobody between them can read the keys of.

The reader makes an offer, which is its half of a key; the publisher answers with its own half and where the stream is. Both are messages of
the protocol (StreamStartRequest, and StreamInfo in a signed ResponseEnvelope), here as text, so that they travel in the payload of
any envelope: a question on a Courier stream, a request in a MEW space, a line of a terminal. Whoever carries them learns
nothing; but somebody who can change them can put himself in between, unless the answer is signed and the reader knows by whom.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import NamedTuple

from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.decode import read_auth_response, read_info, read_start_request
from penstock.dialects.streamservice.keys import StreamKeys, Suite, agree
from penstock.dialects.streamservice.messages import StreamAuthResponse, StreamInfo, StreamStartRequest
from penstock.dialects.streamservice.ristretto import ENTROPY_SIZE, KeyPair, key_pair
from penstock.dialects.streamservice.signatures import SigningKey, TrustStore, check_response, sign_response
from penstock.dialects.streamservice.wire import FrameFault

TEXT_MAX = 16_384
"""Characters of an offer or an answer: real ones have a few hundred."""


class Agreement(NamedTuple):
    """What both ends have at last."""

    stream_id: str
    endpoint: str
    """Where the reader subscribes."""
    keys: StreamKeys


class Answer(NamedTuple):
    """What a publisher sends back, and what it keeps."""

    text: str
    """For the reader."""
    agreement: Agreement


class StreamOffer:
    """A reader's half of a key, good for one stream.

    Example:
        offer = penstock.StreamOffer()
        answer = penstock.answer_offer(offer.text, relay.pub, signer=relay.signer)  # at the publisher
        agreement = offer.accept(answer.text, signer=relay.signer.public)
    """

    def __init__(self, stream_id: str = "", *, suite: Suite = "sha256") -> None:
        self.stream_id = stream_id or secrets.token_hex(8)
        self._suite: Suite = suite
        self._pair = key_pair(secrets.token_bytes(ENTROPY_SIZE))
        # Any number would do: it ties an answer to this offer.
        self._request_id = int.from_bytes(self._pair.public[:8], "little")
        self.text = _text(encode.start_request(StreamStartRequest(self.stream_id, self._pair.public)))
        """What the publisher must get."""

    def accept(self, answer: str, *, signer: bytes | None) -> Agreement:
        """Read a publisher's answer. `signer` is its public key; None trusts whoever carried the answer."""
        frame = _bytes(answer)
        if signer is not None:
            payload = check_response(frame, self._request_id, TrustStore({"publisher": signer}))
            if isinstance(payload, Refusal):
                raise PenstockError(payload)
            frame = payload
        info = read_info(frame)
        if isinstance(info, FrameFault):
            raise _invalid("answer", info.message)
        return self._agree(info)

    def accept_key(self, answer: str, endpoint: str) -> Agreement:
        """Read a StreamAuthResponse, where the place of the stream is known and the way is trusted."""
        response = read_auth_response(_bytes(answer))
        if isinstance(response, FrameFault):
            raise _invalid("answer", response.message)
        return self._agree(StreamInfo(response.stream_id, endpoint, response.server_key))

    def _agree(self, info: StreamInfo) -> Agreement:
        if info.stream_id != self.stream_id:
            raise _invalid("streamId", "the answer is about another stream")
        keys = agree(self._pair, info.server_key, self._suite)
        if isinstance(keys, Refusal):
            raise PenstockError(keys)
        return Agreement(info.stream_id, info.endpoint, keys)


def answer_offer(offer: str, endpoint: str, *, signer: SigningKey | None, suite: Suite = "sha256") -> Answer:
    """A publisher's answer to an offer: `endpoint` is where readers subscribe. Without a signer the way must be trusted."""
    request, pair, agreement = _agree_on(offer, endpoint, suite)
    frame = encode.info(StreamInfo(request.stream_id, endpoint, pair.public))
    if signer is not None:
        frame = sign_response(int.from_bytes(request.client_key[:8], "little"), frame, signer)
    return Answer(_text(frame), agreement)


def answer_offer_with_key(offer: str, endpoint: str, *, suite: Suite = "sha256") -> Answer:
    """The same as a StreamAuthResponse, for readers that know the place of the stream, over a way that is trusted."""
    request, pair, agreement = _agree_on(offer, endpoint, suite)
    frame = encode.auth_response(StreamAuthResponse(request.stream_id, pair.public))
    return Answer(_text(frame), agreement)


def new_signing_key() -> SigningKey:
    """A publisher's key, made of fresh entropy. Its `public` half goes to `relay.signers` and to readers."""
    return SigningKey(secrets.token_bytes(32))


def _agree_on(offer: str, endpoint: str, suite: Suite) -> tuple[StreamStartRequest, KeyPair, Agreement]:
    request = read_start_request(_bytes(offer))
    if isinstance(request, FrameFault):
        raise _invalid("offer", request.message)
    pair = key_pair(secrets.token_bytes(ENTROPY_SIZE))
    keys = agree(pair, request.client_key, suite)
    if isinstance(keys, Refusal):
        raise PenstockError(keys)
    return request, pair, Agreement(request.stream_id, endpoint, keys)


def _text(frame: bytes) -> str:
    return b64encode(frame).decode()


def _bytes(text: str) -> bytes:
    if len(text) > TEXT_MAX:
        raise _invalid("text", f"more than {TEXT_MAX} characters")
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise _invalid("text", "not Base64") from None


def _invalid(ref: str, message: str) -> PenstockError:
    hint = "an offer is the `text` of a `StreamOffer`, an answer that of `answer_offer`"
    return PenstockError(
        Refusal("InvalidRequest", f"the key agreement failed: {message}", ref=ref, hint=hint)
    )
