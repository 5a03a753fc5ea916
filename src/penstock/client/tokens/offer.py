"""The key agreement of two ends of a stream, over a channel that may be read by others.

The reader makes an offer, its half of a key; the publisher answers with its own half and the endpoint of the stream. Both are messages of
the protocol (StreamStartRequest, and StreamInfo in a signed ResponseEnvelope) as text, so that they fit into the payload of any envelope.
A party that only reads them learns no key. A party that can change them could impersonate both ends, unless the answer is signed and the
reader knows the signer. The server on this machine always trusts the signing key in its run directory: `local_relay` finds both.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from pathlib import Path
from typing import NamedTuple

from penstock.client.address import read_endpoints
from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.decode import read_auth_response, read_info, read_start_request
from penstock.dialects.streamservice.keys import StreamKeys, Suite, agree
from penstock.dialects.streamservice.messages import StreamAuthResponse, StreamInfo, StreamStartRequest
from penstock.dialects.streamservice.ristretto import ENTROPY_SIZE, KeyPair, key_pair
from penstock.dialects.streamservice.signatures import SigningKey, TrustStore, check_response, sign_response
from penstock.dialects.streamservice.wire import FrameFault

TEXT_MAX = 16_384
"""The most characters of an offer or an answer; real ones have a few hundred."""


class Agreement(NamedTuple):
    """The result of the agreement, equal at both ends."""

    stream_id: str
    endpoint: str
    """Where the reader subscribes."""
    keys: StreamKeys


class Answer(NamedTuple):
    """The publisher's answer to an offer: `text` to send back, `agreement` to keep."""

    text: str
    """Send this to the reader."""
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
        # Ties an answer to this offer; any number would do.
        self._request_id = int.from_bytes(self._pair.public[:8], "little")
        self.text = _text(encode.start_request(StreamStartRequest(self.stream_id, self._pair.public)))
        """Send this to the publisher."""

    def accept(self, answer: str, *, signer: bytes | None) -> Agreement:
        """Accept a publisher's answer. `signer` is its public key; None trusts the channel. Raises PenstockError if it is not valid."""
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
        """Accept a StreamAuthResponse, if you know the endpoint of the stream and trust the channel."""
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
    """Answer a reader's offer. `endpoint` is the relay's endpoint for readers. Without a signer the channel must be trusted."""
    request, pair, agreement = _agree_on(offer, endpoint, suite)
    frame = encode.info(StreamInfo(request.stream_id, endpoint, pair.public))
    if signer is not None:
        frame = sign_response(int.from_bytes(request.client_key[:8], "little"), frame, signer)
    return Answer(_text(frame), agreement)


def answer_offer_with_key(offer: str, endpoint: str, *, suite: Suite = "sha256") -> Answer:
    """Answer with a StreamAuthResponse, for readers that know the endpoint, over a trusted channel."""
    request, pair, agreement = _agree_on(offer, endpoint, suite)
    frame = encode.auth_response(StreamAuthResponse(request.stream_id, pair.public))
    return Answer(_text(frame), agreement)


def new_signing_key() -> SigningKey:
    """A new signing key of a publisher. Put its `public` half into `relay.signers`, and give it to readers."""
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
    return PenstockError(Refusal("InvalidRequest", f"the key agreement failed: {message}", ref=ref, hint=hint))


DATA = Path("penstock-data")


class LocalRelay(NamedTuple):
    """The endpoints of a relay, and a key that it trusts."""

    pub: str
    """The endpoint for readers."""
    push: str
    """The endpoint for publishers."""
    signer: SigningKey
    """The server's own publisher key, from a file that only its owner can read."""


def local_relay(data: Path | str = DATA) -> LocalRelay:
    """The relay of the server on a data directory. Raises `Unreachable` when none runs there."""
    run = Path(data) / "run"
    endpoints = read_endpoints(run / "endpoints.json")
    if endpoints is None or endpoints.pub is None or endpoints.pull is None:
        refusal = Refusal("Unreachable", f"no server with a relay runs on `{data}`", hint="`penstock up` starts one")
        raise PenstockError(refusal)
    return LocalRelay(endpoints.pub, endpoints.pull, load_signing_key(run / "publisher.key"))


def load_signing_key(file: Path | str) -> SigningKey:
    """Read a publisher's key from a file of 64 hexadecimal digits, as `penstock token signer-keygen` prints it."""
    try:
        return SigningKey(bytes.fromhex(Path(file).read_text("utf-8").strip()))
    except (OSError, ValueError) as error:
        hint = "`penstock token signer-keygen` makes one"
        raise PenstockError(
            Refusal("InvalidRequest", f"`{file}` contains no signing key: {error}", hint=hint)
        ) from None
