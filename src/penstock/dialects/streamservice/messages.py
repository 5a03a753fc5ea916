"""The messages of token streams as values: payloads, key agreement and signed requests.

Owns the types that `decode.py` and `encode.py` share. Knows nothing of bytes on a wire.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

SCOPE_ANY = "*"


class Token(msgspec.Struct, frozen=True, gc=False):
    """A piece of generated text."""

    text: str
    stream_id: str = ""


class Complete(msgspec.Struct, frozen=True, gc=False):
    """The stream ended successfully, with its statistics."""

    tokens: int = 0
    finish_reason: str = "stop"
    generation_ms: int = 0
    tokens_per_second: float = 0.0
    perplexity: float = 0.0
    entropy: float = 0.0
    stream_id: str = ""


class StreamFailure(msgspec.Struct, frozen=True, gc=False):
    """The stream ended with an error."""

    message: str
    code: str = "internal"
    details: str = ""
    stream_id: str = ""


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """The publisher is alive and has no payload."""

    stream_id: str = ""


Payload: TypeAlias = Token | Complete | StreamFailure | Heartbeat


class Block(msgspec.Struct, frozen=True):
    """Payloads under one MAC, and the previous MAC."""

    prev: bytes
    payloads: list[Payload]


class ChunkBody(msgspec.Struct, frozen=True, gc=False):
    """A chunk with its data, a framed payload."""

    topic: bytes
    data: bytes
    mac: bytes
    prev: bytes


class StreamInfo(msgspec.Struct, frozen=True, gc=False):
    """The endpoint of a stream, and the publisher's half of the key agreement."""

    stream_id: str
    endpoint: str
    server_key: bytes


class StreamStartRequest(msgspec.Struct, frozen=True, gc=False):
    """A client's half of the key agreement."""

    stream_id: str
    client_key: bytes


class StreamAuthResponse(msgspec.Struct, frozen=True, gc=False):
    """A publisher's half, when the endpoint is already known."""

    stream_id: str
    server_key: bytes


class StreamRegister(msgspec.Struct, frozen=True, gc=False):
    """A topic to open, and its expiry, usually in seconds."""

    topic: str
    exp: int


class Local(msgspec.Struct, frozen=True, gc=False):
    """A user of the same machine."""

    user: str


class ApiToken(msgspec.Struct, frozen=True, gc=False):
    """The holder of a token."""

    user: str
    token_name: str


class Peer(msgspec.Struct, frozen=True, gc=False):
    """The holder of a CURVE key."""

    name: str
    curve_key: bytes


class Anonymous(msgspec.Struct, frozen=True, gc=False):
    """An unnamed user."""


Identity: TypeAlias = Local | ApiToken | Peer | Anonymous


class StreamScope(msgspec.Struct, frozen=True, gc=False):
    """One permission of claims."""

    action: str
    resource: str
    identifier: str

    def covers(self, action: str, resource: str, identifier: str) -> bool:
        return self.action == action and self.resource == resource and self.identifier in (identifier, SCOPE_ANY)

    def __str__(self) -> str:
        return f"{self.action}:{self.resource}:{self.identifier}"


class Claims(msgspec.Struct, frozen=True):
    """The subject of a request, its expiry and its permissions; times in seconds."""

    sub: str
    exp: int
    iat: int = 0
    scopes: tuple[StreamScope, ...] = ()
    is_admin: bool = False

    def allow(self, action: str, resource: str, identifier: str) -> bool:
        return self.is_admin or any(scope.covers(action, resource, identifier) for scope in self.scopes)


class RequestEnvelope(msgspec.Struct, frozen=True):
    """The signed part: a request with its time, nonce and claims."""

    payload: bytes
    nonce: bytes
    timestamp_ms: int
    claims: Claims | None = None
    identity: Identity = Local("system")
    request_id: int = 0
    ephemeral_key: bytes | None = None


class SignedEnvelope(msgspec.Struct, frozen=True):
    """A request with a signature that is not verified yet."""

    envelope: RequestEnvelope
    signature: bytes
    signer: bytes


class ResponseEnvelope(msgspec.Struct, frozen=True, gc=False):
    """A signed answer to a request, so that a key in it cannot be replaced on the way."""

    request_id: int
    payload: bytes
    signature: bytes = b""
    signer: bytes = b""
