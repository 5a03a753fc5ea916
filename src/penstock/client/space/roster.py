"""The state of a space as one participant knows it: other participants, its own capabilities, open streams.

A welcome sets the state, and later envelopes change it. For streams and presence only the gateway counts: `take` ignores the same kinds
from participants, except `stream/close`, which the owner sends. Cost: one dictionary look-up per envelope.
"""

from __future__ import annotations

from typing import Any

from penstock.client.space.messages import SpaceEnvelope, object_of, objects_of, text_of, texts_of

REQUESTS_MAX = 256
"""The most unanswered stream requests to keep; a request describes a stream better than its `stream/open`."""

Capability = dict[str, Any]


class Roster:
    """The known state of one space."""

    def __init__(self) -> None:
        self.welcome: dict[str, Any] = {}
        """The payload of the welcome to the last join."""
        self.id = ""
        self.capabilities: list[Capability] = []
        self.participants: dict[str, list[Capability]] = {}
        """The other participants that are present, and their capabilities."""
        self.streams: dict[str, dict[str, Any]] = {}
        """By stream id: `owner`, `authorized_writers`, `target` where it has one, and the fields of its request."""
        self._requests: dict[str, dict[str, Any]] = {}
        self._opens: dict[str, str] = {}
        """Stream ids by the id of the request and of the `stream/open`."""

    def take(self, envelope: SpaceEnvelope) -> None:
        """Apply an envelope to the state."""
        kind = envelope.kind
        if kind == "stream/request":
            self._remember(envelope)
        elif kind == "stream/close":
            self._close(envelope)
        elif not envelope.is_from_gateway:
            return
        elif kind == "system/welcome":
            self._welcomed(object_of(envelope.payload))
        elif kind == "system/presence":
            self._presence(object_of(envelope.payload))
        elif kind == "stream/open":
            self._open(envelope)
        elif kind in {"stream/write-granted", "stream/write-revoked", "stream/ownership-transferred"}:
            self._changed(object_of(envelope.payload))

    def _welcomed(self, payload: dict[str, Any]) -> None:
        you = object_of(payload.get("you"))
        self.id = text_of(you.get("id")) or self.id
        self.capabilities = objects_of(you.get("capabilities"))
        self.participants = {
            name: objects_of(one.get("capabilities"))
            for one in objects_of(payload.get("participants"))
            if (name := text_of(one.get("id")))
        }
        if "active_streams" not in payload:
            return  # an update after a grant or a revoke
        self.welcome = payload
        self._opens.clear()
        self.streams = {
            stream_id: dict(one)
            for one in objects_of(payload["active_streams"])
            if (stream_id := text_of(one.get("stream_id")))
        }

    def _presence(self, payload: dict[str, Any]) -> None:
        participant = object_of(payload.get("participant"))
        name = text_of(participant.get("id"))
        if not name or name == self.id:
            return
        if payload.get("event") == "join":
            self.participants[name] = objects_of(participant.get("capabilities"))
        elif payload.get("event") == "leave":
            self.participants.pop(name, None)

    def _remember(self, envelope: SpaceEnvelope) -> None:
        asked = object_of(envelope.payload)
        stream = self.streams.get(self._opens.get(envelope.id, ""))
        if stream is not None:  # some gateways send the answer before the echo of the request
            for name, value in asked.items():
                stream.setdefault(name, value)
            return
        self._requests[envelope.id] = asked
        if len(self._requests) > REQUESTS_MAX:
            del self._requests[next(iter(self._requests))]

    def _open(self, envelope: SpaceEnvelope) -> None:
        payload = object_of(envelope.payload)
        stream_id = text_of(payload.get("stream_id"))
        if not stream_id:
            return
        stream: dict[str, Any] = {}
        for request_id in envelope.correlation_id:
            stream |= self._requests.pop(request_id, {})
        stream.pop("target", None)  # the gateway may grant another target than requested
        self.streams[stream_id] = stream | payload
        for cause in (envelope.id, *envelope.correlation_id):
            self._opens[cause] = stream_id

    def _close(self, envelope: SpaceEnvelope) -> None:
        stream_id = text_of(object_of(envelope.payload).get("stream_id"))
        if not stream_id:
            stream_id = next((self._opens[cause] for cause in envelope.correlation_id if cause in self._opens), "")
        if self.streams.pop(stream_id, None) is not None:
            self._opens = {cause: opened for cause, opened in self._opens.items() if opened != stream_id}

    def _changed(self, payload: dict[str, Any]) -> None:
        stream = self.streams.get(text_of(payload.get("stream_id")))
        if stream is None:
            return
        if "authorized_writers" in payload:
            stream["authorized_writers"] = list(texts_of(payload["authorized_writers"]))
        if owner := text_of(payload.get("new_owner")):
            stream["owner"] = owner
