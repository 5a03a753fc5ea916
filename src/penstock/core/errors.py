"""Every refusal Penstock can give, once, for HTTP, WebSocket, Control v1, the CLI and the docs.

A refusal is a value, never an exception inside the core. `PenstockError` wraps one at the edges where
Python code calls us: the SDK, `QueueCore` and the CLI. Codes are frozen: clients match on them.
"""

from __future__ import annotations

from typing import ClassVar, Self

import msgspec


class Kind(msgspec.Struct, frozen=True):
    """One row of the error table."""

    code: str
    status: int
    close: int | None
    """WebSocket close code, when the error also ends the connection."""
    retryable: bool
    meaning: str
    hint: str


_ROWS = (
    # code, HTTP status, close code, retryable, meaning, hint
    ("InvalidJSON", 400, 1007, False, "the bytes are not one JSON value",
     "send UTF-8 JSON without NaN, duplicate keys or trailing bytes"),
    ("InvalidEnvelope", 400, None, False, "a field of the envelope is missing or wrong",
     "an envelope needs `id`, `ts`, `type` and `payload`; see docs/reference/courier.md"),
    ("InvalidRequest", 400, None, False, "a parameter of the request is missing or wrong",
     "see /openapi.json for the parameters of each route"),
    ("AddressMismatch", 400, None, False, "the envelope's `to` differs from the request's `to`",
     "leave `to` out of the envelope, or make both equal"),
    ("InvalidCredit", 400, None, False, "a credit grant is not a whole number that fits",
     "grant 1 or more, and no more than `limits.credit_max` outstanding"),
    ("UnknownOp", 400, None, False, "the frame names no operation we know",
     "see docs/reference/courier.md for the operations"),
    ("Unsupported", 400, None, False, "the protocol version or feature is not supported",
     "say hello with version `v1`; the answer lists the features"),
    ("Unauthorized", 401, 1008, False, "no token, or one we do not know",
     "send `Authorization: Bearer <token>`; on the command line use --token or PENSTOCK_TOKEN"),
    ("Forbidden", 403, 1008, False, "the token does not allow this",
     "ask the operator for a token with the scope that is named"),
    ("UnknownStream", 404, None, False, "there is no such stream",
     "a stream appears with its first enqueue, subscribe or pull"),
    ("UnknownView", 404, None, False, "there is no such view", "the views are `latestPerAgent`, `inflight` and `metrics:streams`"),
    ("UnknownTrigger", 404, None, False, "there is no such trigger", "`penstock trigger ls`, or `GET /v1/triggers`, lists them"),
    ("UnknownParticipant", 404, None, False, "the space has no participant of this name", "`penstock space ls --space NAME` lists them"),
    ("UnknownToken", 404, None, False, "there is no token of this name", "`penstock token ls`, or `GET /v1/tokens`, lists them"),
    ("UnknownEnvelope", 404, None, False, "no envelope with this id is known here",
     "ids are remembered for `streams.dedupWindowMs` after they are settled"),
    ("UnknownConnection", 404, None, False, "there is no such connection", "`GET /v1/connections` lists them; it may have closed"),
    ("UnknownPart", 404, None, False, "a part to be committed is not staged here",
     "the server was restarted since it was staged, or it waited longer than `limits.stage_ms`: run the batch again"),
    ("UnknownRoute", 404, None, False, "there is no such route", "see /openapi.json for every route"),
    ("MethodNotAllowed", 405, None, False, "the route does not take this method",
     "see the Allow header of the answer"),
    ("AlreadyAcked", 409, None, False, "the envelope was settled before", "nothing is left to do"),
    ("LeaseExpired", 409, None, False, "the lease ended before it was settled",
     "take a longer lease or extend it while working"),
    ("NotLeaseHolder", 409, None, False, "this envelope is leased by another consumer, or not leased",
     "settle only what was delivered to you"),
    ("EnvelopeLeased", 409, None, False, "the envelope is with a consumer",
     "settle it, or wait until its lease ends"),
    ("EnvelopeLive", 409, None, False, "an envelope is not settled yet",
     "settle it, or drop it with `penstock drop --id ID` or `penstock purge STREAM`"),
    ("IdConflict", 409, None, False, "the id was used before with other content",
     "give each envelope its own id; resend the very same bytes, `ts` included, to retry"),
    ("TriggerInConfig", 409, None, False, "the trigger comes from the config file",
     "change the file and reload, or PUT a rule with its id"),
    ("CrossShard", 409, None, False, "streams that must be together are on different shards",
     "give them the same `{tag}` in their names, such as `{orders}/new` and `{orders}/audit`, or run the server without `--cells`"),
    ("TokenInConfig", 409, None, False, "the token comes from the config file",
     "take it out of `auth.tokens` in the file and reload"),
    ("KeyConflict", 409, None, False, "the `Idempotency-Key` was used before with another request",
     "make a new key for each request; repeat the very same bytes to retry one"),
    ("RangeGone", 410, None, False, "the rows are no longer kept",
     "start at the oldest row that is; `GET /v1/journal` shows which"),
    ("UnknownSchema", 422, None, False, "the stream wants a known schema, and the envelope names none",
     "`GET /v1/schemas` lists them; the operator adds files to `schemas.dir`"),
    ("SchemaMismatch", 422, None, False, "the payload does not fit the schema that the envelope names",
     "fix the payload at the named path, or name another version of the schema"),
    ("TooLarge", 413, 1009, False, "the message is larger than we accept",
     "put large content elsewhere and send a reference"),
    ("UnsupportedEncoding", 415, None, False, "the body comes in an encoding that we do not read",
     "send it plain, or with `Content-Encoding: gzip` or `deflate`"),
    ("InvalidConfig", 422, None, False, "the config cannot be used, so the old one stays",
     "`penstock config check FILE` shows every problem with its place"),
    ("StreamFull", 429, None, True, "the stream is at its bound",
     "retry later, add consumers, or raise `maxDepth` or `maxBytes`"),
    ("RateLimited", 429, None, True, "too many requests", "slow down; wait for Retry-After"),
    ("QuotaExceeded", 429, None, True, "a bound of the whole server is reached",
     "retry later, or raise the limit that is named"),
    ("SlowConsumer", 429, 1008, True, "the peer does not read what it asked for",
     "read faster, or ask for less"),
    ("Internal", 500, 1011, True, "Penstock failed; this is a bug",
     "report it with the log lines around this time"),
    ("JournalDamaged", 500, None, False, "a file of the journal cannot be trusted",
     "`penstock log check` names every place; restore the file from a backup"),
    ("PipelineFailed", 500, None, True, "the Spark pipeline could not do it",
     "`penstock pipeline status` says more"),
    ("StreamGap", 502, None, False, "messages of a token stream are missing and could not be had again",
     "ask for the stream anew; a larger `relay.max_pending_per_topic` or `relay.message_ttl` bridges longer gaps"),
    ("StreamTampered", 502, None, False, "messages of another sender arrive in place of the next one of a token stream",
     "trust nothing beyond what was read; look at who may publish to the relay"),
    ("StreamTruncated", 502, None, False, "a token stream stopped without saying that it is over",
     "the publisher or the way to it is gone; ask for the stream anew"),
    ("StreamFailed", 502, None, False, "the publisher of a token stream ended it with an error",
     "the message is the publisher's own"),
    ("StreamCancelled", 409, None, False, "the reader of a token stream wants no more of it",
     "stop generating; the stream was ended properly"),
    ("HandlerFailed", 502, None, False, "the handler of the agent that was asked raised an exception",
     "the message is the agent's own; its log has the traceback"),
    ("Draining", 503, 1001, True, "the server is shutting down", "reconnect in a moment"),
    ("ConnectionClosed", 503, 1001, True, "the operator closed the connection", "reconnect in a moment"),
    ("JournalUnavailable", 503, None, True, "the journal cannot take new records",
     "free disk space or repair the disk; Penstock continues by itself"),
    ("LakeUnavailable", 503, None, True, "the object store of the lake does not answer, or refuses",
     "`penstock doctor` says why; history stays in the journal and is sealed when the store answers"),
    ("Timeout", 504, None, True, "no answer in time", "retry, or wait longer"),
    ("Unreachable", 503, None, True, "the server does not answer",
     "is it running? start it with `penstock up`"),
)  # fmt: skip

TABLE: dict[str, Kind] = {row[0]: Kind(*row) for row in _ROWS}


MESSAGE_MAX = 1_024
"""Characters of a message, and of what it is about, on the wire: both may quote what a peer sent, and are sent back to it."""


def _clip(text: str) -> str:
    return text if len(text) <= MESSAGE_MAX else text[: MESSAGE_MAX - 1] + "…"


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was not done; the request changed nothing."""

    code: str
    message: str
    ref: str | None = None
    """What the error is about: an envelope id, or the path of a field."""
    retry_after_ms: int | None = None
    hint: str | None = None

    @property
    def kind(self) -> Kind:
        return TABLE[self.code]

    @property
    def status(self) -> int:
        return TABLE[self.code].status

    def wire(self) -> dict[str, object]:
        """The `error` object that HTTP and WebSocket clients see."""
        kind = TABLE[self.code]
        wire: dict[str, object] = {
            "code": self.code,
            "message": _clip(self.message),
            "status": kind.status,
            "retryable": kind.retryable,
            "hint": self.hint or kind.hint,
        }
        if self.ref is not None:
            wire["ref"] = _clip(self.ref)
        if self.retry_after_ms is not None:
            wire["retryAfterMs"] = self.retry_after_ms
        return wire


class PenstockError(Exception):
    """A refusal, raised where Python code called us. Its text has the code, what happened, and the hint.

    Catch a subclass for what you can handle, and this class for the rest: every error is made as the subclass of its code.

    Example:
        try:
            await client.stats("no/such/stream")
        except penstock.NotFound as error:
            print(error.message, error.hint)
        except penstock.PenstockError as error:
            print(error.code, error.retryable)
    """

    _classes: ClassVar[dict[str, type[PenstockError]]] = {}

    def __init_subclass__(cls, *, codes: str = "") -> None:
        super().__init_subclass__()
        PenstockError._classes.update(dict.fromkeys(codes.split(), cls))

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        kind: type[Self] = cls
        if cls is PenstockError and isinstance(args[0], Refusal):
            kind = PenstockError._classes.get(args[0].code, cls)  # type: ignore[assignment]  # a subclass
        return super().__new__(kind)

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.code}: {refusal.message}\nhint: {refusal.hint or refusal.kind.hint}")
        self.refusal = refusal

    @property
    def message(self) -> str:
        """What happened, in one line."""
        return self.refusal.message

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self.refusal.hint or self.refusal.kind.hint

    @property
    def code(self) -> str:
        """What went wrong, as one word of the table above: the part to decide by."""
        return self.refusal.code

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.refusal.kind.retryable


class InvalidRequest(
    PenstockError,
    codes="InvalidJSON InvalidEnvelope InvalidRequest AddressMismatch InvalidCredit Unsupported SchemaMismatch TooLarge",
):
    """What you sent cannot be accepted as it is."""


class Unauthorized(PenstockError, codes="Unauthorized"):
    """The server needs a token, or does not know yours."""


class Forbidden(PenstockError, codes="Forbidden"):
    """Your token does not have the scope for this."""


class NotFound(
    PenstockError, codes="UnknownStream UnknownView UnknownTrigger UnknownEnvelope UnknownParticipant UnknownConnection"
):
    """There is no such stream, view, trigger, envelope, participant or connection."""


class IdConflict(PenstockError, codes="IdConflict"):
    """The stream stored another envelope under this id."""


class LeaseLost(PenstockError, codes="LeaseExpired NotLeaseHolder"):
    """The lease ended before the delivery was settled, so the server delivers the envelope again.

    Settling a delivery that is known to be lost raises it, and so do `confirm=True`, `flush`, and a handler's current `await` inside
    `Subscription.work`. Stop the work on that delivery: another consumer may already have it.
    """


class StreamFull(PenstockError, codes="StreamFull"):
    """The stream holds as many envelopes or bytes as it may. Retry later."""


class RateLimited(PenstockError, codes="RateLimited QuotaExceeded SlowConsumer"):
    """You send or open more than a limit allows. Retry later."""


class Unavailable(PenstockError, codes="Draining ConnectionClosed JournalUnavailable"):
    """The server accepts nothing new at the moment. Retry later."""


class Timeout(PenstockError, codes="Timeout"):
    """There was no answer in time."""


class HandlerFailed(PenstockError, codes="HandlerFailed"):
    """The handler of the agent that you asked raised an exception."""


class Unreachable(PenstockError, codes="Unreachable"):
    """There is no connection to the server."""
