"""What the messages of token streams say, as values: payloads, the key agreement, and signed requests.

Owns the vocabulary that `reading` and `writing` share. Knows nothing of bytes on a wire.
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
    """The stream ended well, and this is what it came to."""

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
    """The publisher lives and has nothing to say."""

    stream_id: str = ""


Payload: TypeAlias = Token | Complete | StreamFailure | Heartbeat


class Block(msgspec.Struct, frozen=True):
    """Payloads under one MAC, and the MAC before it."""

    prev: bytes
    payloads: list[Payload]


class ChunkBody(msgspec.Struct, frozen=True, gc=False):
    """A chunk with its data, a framed payload."""

    topic: bytes
    data: bytes
    mac: bytes
    prev: bytes


class StreamInfo(msgspec.Struct, frozen=True, gc=False):
    """Where a stream is, and its publisher's half of the key agreement."""

    stream_id: str
    endpoint: str
    server_key: bytes


class StreamStartRequest(msgspec.Struct, frozen=True, gc=False):
    """A client's half of the key agreement."""

    stream_id: str
    client_key: bytes


class StreamAuthResponse(msgspec.Struct, frozen=True, gc=False):
    """A publisher's half, where the place of the stream is known already."""

    stream_id: str
    server_key: bytes


class StreamRegister(msgspec.Struct, frozen=True, gc=False):
    """A topic to be opened until a time, in seconds as a rule."""

    topic: str
    exp: int


class Local(msgspec.Struct, frozen=True, gc=False):
    """Somebody on the same machine."""

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
    """Nobody in particular."""


Identity: TypeAlias = Local | ApiToken | Peer | Anonymous


class StreamScope(msgspec.Struct, frozen=True, gc=False):
    """One thing that claims allow."""

    action: str
    resource: str
    identifier: str

    def covers(self, action: str, resource: str, identifier: str) -> bool:
        return (
            self.action == action and self.resource == resource and self.identifier in (identifier, SCOPE_ANY)
        )

    def __str__(self) -> str:
        return f"{self.action}:{self.resource}:{self.identifier}"


class Claims(msgspec.Struct, frozen=True):
    """Who a request is made for, until when, and what they may do; times in seconds."""

    sub: str
    exp: int
    iat: int = 0
    scopes: tuple[StreamScope, ...] = ()
    is_admin: bool = False

    def allow(self, action: str, resource: str, identifier: str) -> bool:
        return self.is_admin or any(scope.covers(action, resource, identifier) for scope in self.scopes)


class RequestEnvelope(msgspec.Struct, frozen=True):
    """What is signed: a request with its time, its nonce and its claims."""

    payload: bytes
    nonce: bytes
    timestamp_ms: int
    claims: Claims | None = None
    identity: Identity = Local("system")
    request_id: int = 0
    ephemeral_key: bytes | None = None


class SignedEnvelope(msgspec.Struct, frozen=True):
    """A request with a signature that nobody has checked yet."""

    envelope: RequestEnvelope
    signature: bytes
    signer: bytes


class ResponseEnvelope(msgspec.Struct, frozen=True, gc=False):
    """An answer to a request with its signature, so that nobody on the way can put in a key of their own."""

    request_id: int
    payload: bytes
    signature: bytes = b""
    signer: bytes = b""


def parse_scope(text: str) -> StreamScope | None:
    """Read `action:resource:identifier`: three parts, and no more."""
    parts = text.split(":")
    return StreamScope(*parts) if len(parts) == 3 and all(parts) else None
