"""The messages of the gateway itself: welcomes, presence, errors and answers about streams, as envelopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from penstock.core.clock import Now, rfc3339

PROTOCOL = "mew/v0.4"
PROTOCOLS = ("mew/v0.4", "mew/v0.3")
SYSTEM = "system:gateway"
"""The sender of welcomes, presence and most errors."""
GATEWAY = "gateway"
"""The sender of messages about streams."""

_encode = msgspec.json.encode
Entropy = Callable[[int], bytes]


class MewRefusal(msgspec.Struct, frozen=True):
    """Why a request was refused, in MEW's terms; it changed nothing."""

    error: str
    """The error code."""
    message: str = ""
    more: dict[str, Any] = {}
    """Further members of the payload."""
    status: int = 400
    sender: str = SYSTEM
    cause: str | None = None
    """The id of the refused envelope."""
    whole: bool = False
    """Whether HTTP answers with the whole envelope, as the upstream gateway does."""

    @classmethod
    def validation(cls, message: str, cause: str | None = None) -> MewRefusal:
        return cls("validation_error", message, {"code": "VALIDATION_ERROR"}, cause=cause)

    @classmethod
    def processing(cls, message: str) -> MewRefusal:
        return cls("processing_error", message, {"code": "PROCESSING_ERROR"})

    @property
    def payload(self) -> dict[str, Any]:
        said = {"message": self.message} if self.message else {}
        return {"error": self.error, **said, **self.more}


class GatewayMessages:
    """Makes the gateway's envelopes, each with a unique id."""

    def __init__(self, entropy: Entropy) -> None:
        self.entropy = entropy
        self._no = 0
        self._boot = entropy(4).hex()

    def fresh(self, prefix: str) -> str:
        """A unique id."""
        self._no += 1
        return f"{prefix}-{self._boot}-{self._no}"

    def say(
        self,
        now: Now,
        kind: str,
        payload: dict[str, Any],
        *,
        sender: str = SYSTEM,
        to: Sequence[str] | None = None,
        cause: Sequence[str] = (),
        id_: str | None = None,
    ) -> bytes:
        """An envelope of the gateway."""
        envelope: dict[str, Any] = {
            "protocol": PROTOCOL,
            "id": id_ or self.fresh(kind.rpartition("/")[2]),
            "ts": rfc3339(now.wall_us),
            "from": sender,
        }
        if to is not None:
            envelope["to"] = list(to)
        envelope["kind"] = kind
        if cause:
            envelope["correlation_id"] = list(cause)
        envelope["payload"] = payload
        return _encode(envelope)

    def error(self, now: Now, fault: MewRefusal, to: str | None) -> bytes:
        """A full `system/error`."""
        cause = () if fault.cause is None else (fault.cause,)
        receivers = None if to is None else (to,)
        return self.say(now, "system/error", fault.payload, sender=fault.sender, to=receivers, cause=cause)

    def presence(self, now: Now, event: str, participant: dict[str, Any], **more: Any) -> bytes:
        return self.say(now, "system/presence", {"event": event, "participant": participant, **more})

    def welcome(
        self, now: Now, you: dict[str, Any], others: Iterable[dict[str, Any]], streams: Iterable[dict[str, Any]] | None
    ) -> bytes:
        """The first message to a participant; without streams, an update of capabilities."""
        payload: dict[str, Any] = {"you": you, "participants": list(others)}
        if streams is not None:
            payload["active_streams"] = list(streams)
        prefix = "welcome" if streams is not None else "welcome-update"
        return self.say(now, "system/welcome", payload, to=(you["id"],), id_=self.fresh(prefix))
