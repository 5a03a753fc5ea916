"""The log files of a MEW gateway, in the format that existing tools expect.

    logs/envelope-history.jsonl
    {"timestamp":"2026-01-01T00:00:00.000Z","event":"delivered","id":"m1","envelope":{…},"participant":"bob","space_id":"demo","direction":"outbound","transport":"websocket"}
    logs/capability-decisions.jsonl
    {"timestamp":"…","event":"capability_check","envelope_id":"m1","participant":"sam","space_id":"demo","result":"allowed","required_capability":"chat",…}

Tools search these lines as text, so the order of keys and the absence of spaces are part of the format; a key without a value is
omitted. An envelope keeps its own bytes, without whitespace between tokens. The exception is an envelope that carries a token (a join or
the answer to an invitation): the log has a part of the token's digest instead. Frames are not logged here.

An `OutputLog` is the file of a virtual participant: everything that it receives, one line each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.core.clock import Now
from penstock.dialects.mew.envelopes import members_of, text_of
from penstock.dialects.mew.participants import Decision
from penstock.server.files.line_writer import JsonLines, json_line

HISTORY = "envelope-history.jsonl"
DECISIONS = "capability-decisions.jsonl"

WAITING_MAX = 100_000
"""Waiting lines of one file: about 30 MiB without their envelopes."""
FILE_MAX = 256 * 1024 * 1024
"""Size at which a file is rotated."""
KEEP = 2
"""Rotated files that are kept."""
DIGEST_MAX = 12
"""Hexadecimal digits of a token's digest in the logs: enough to distinguish tokens, too few to guess one."""

_ON = ("true", "1", "yes", "on")
_OFF = ("false", "0", "no", "off")
_GIVING = ("system/join", "join", "space/invite-ack")
"""Kinds that carry a token, and types of messages without a kind."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.encode


def switches(section: object, environment: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether history and decisions are on: `gateway_logging` of a space.yaml, overridden by the environment. Both are by default."""
    every = _switch(environment, "GATEWAY_LOGGING", section)
    parts = section if isinstance(section, Mapping) else {}
    history = _switch(environment, "ENVELOPE_HISTORY", parts.get("envelope_history"))
    decisions = _switch(environment, "CAPABILITY_DECISIONS", parts.get("capability_decisions"))
    return every and history, every and decisions


def _switch(environment: Mapping[str, str], name: str, section: object) -> bool:
    word = environment.get(name, "").strip().lower()
    if word in _ON or word in _OFF:
        return word in _ON
    return not isinstance(section, Mapping) or bool(section.get("enabled", True))


def redact(envelope: bytes) -> bytes:
    """The envelope without its token."""
    # Only a key with escapes can hide from this search.
    if b"token" not in envelope and b"\\u" not in envelope:
        return envelope
    try:
        fields = _object.decode(envelope)
        if not any(text_of(fields, key) in _GIVING for key in ("kind", "type")):
            return envelope
        payload = members_of(fields, "payload")
        for part in (fields, payload):
            if "token" in part:
                part["token"] = msgspec.Raw(_encode(_digest(part)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _encode({"unreadable": len(envelope)})
    if payload:
        fields["payload"] = msgspec.Raw(_encode(payload))
    return _encode(fields)


def _digest(part: dict[str, msgspec.Raw]) -> str:
    text = text_of(part, "token")
    data = bytes(part["token"]) if text is None else text.encode("utf-8", "surrogatepass")
    return "sha256:" + hashlib.sha256(data).hexdigest()[:DIGEST_MAX]


def _compact(envelope: bytes) -> bytes:
    """The same JSON on one line; invalid JSON is reported by its size."""
    try:
        envelope.decode()
        return msgspec.json.format(envelope, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _encode({"unreadable": len(envelope)})


def _transport(kind: str) -> str:
    """The upstream name of a transport."""
    if kind in ("http", "polling"):
        return "http"
    return "websocket" if kind == "websocket" else "virtual"


def _line_of(fields: dict[str, Any]) -> bytes:
    """The fields that have a value, in order."""
    head = {name: fields[name] for name in ("timestamp", "event")}
    return json_line(head, {name: value for name, value in fields.items() if value is not None})


class _EnvelopeEvent(NamedTuple):
    """An envelope that was received, delivered or rejected."""

    at_us: int
    event: str
    id: str | None
    envelope: bytes
    space: str
    transport: str
    reason: str | None = None


class _History(JsonLines[tuple[_EnvelopeEvent, str]]):
    """One line for each envelope and participant."""

    _latest: tuple[_EnvelopeEvent | None, msgspec.Raw] = (None, msgspec.Raw(b"null"))
    """The latest envelope as it is written: all its recipients share it."""

    def write(self, story: _EnvelopeEvent, participants: Sequence[str]) -> None:
        self.put([(story, participant) for participant in participants], len(story.envelope) * len(participants))

    def _format(self, item: tuple[_EnvelopeEvent, str]) -> bytes:
        story, participant = item
        if self._latest[0] is not story:
            self._latest = (story, msgspec.Raw(_compact(redact(story.envelope))))
        return _line_of(
            {
                "timestamp": self._stamp(story.at_us),
                "event": story.event,
                "id": story.id,
                "envelope": self._latest[1],
                "participant": participant,
                "space_id": story.space,
                "direction": "outbound" if story.event == "delivered" else "inbound",
                "transport": _transport(story.transport),
                "metadata": None if story.reason is None else {"reason": story.reason},
            }
        )


class _Decisions(JsonLines[tuple[int, Decision]]):
    """One line for each decision."""

    def _format(self, item: tuple[int, Decision]) -> bytes:
        at_us, decision = item
        transport = _transport(decision.transport)
        source = "http_api" if transport == "http" else transport
        metadata = {"source": source, "transport": transport, "correlation_id": decision.correlation}
        return _line_of(
            {
                "timestamp": self._stamp(at_us),
                "event": "capability_check",
                "envelope_id": decision.envelope,
                "participant": decision.participant,
                "space_id": decision.space,
                "result": "denied" if decision.source is None else "allowed",
                "required_capability": decision.kind,
                "matched_capability": decision.matched,
                "matched_source": decision.source,
                "granted_capabilities": decision.held,
                "metadata": {key: value for key, value in metadata.items() if value},
            }
        )


class GatewayLogs:
    """Both files of a gateway, which observe its space; a disabled one costs nothing."""

    def __init__(
        self, directory: Path, *, history: bool, decisions: bool, max_bytes: int = FILE_MAX, keep: int = KEEP
    ) -> None:
        if history or decisions:
            _prepare(directory)
        bounds: dict[str, Any] = {"max_bytes": max_bytes, "keep": keep, "waiting_max": WAITING_MAX}
        self._history = _History(directory / HISTORY, **bounds) if history else None
        self._decisions = _Decisions(directory / DECISIONS, **bounds) if decisions else None

    @property
    def dropped(self) -> int:
        """Lines that were not written."""
        return sum(log.dropped for log in (self._history, self._decisions) if log is not None)

    def received(self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str) -> None:
        """An envelope or a join was received."""
        self._record(_EnvelopeEvent(now.wall_us, "received", id_ or None, envelope, space, transport), [participant])

    def delivered(
        self, now: Now, envelope: bytes, id_: str, participants: Iterable[tuple[str, str]], space: str
    ) -> None:
        """An envelope was delivered to these participants, each with its transport."""
        if self._history is not None:
            by_transport: dict[str, list[str]] = {}
            for participant, transport in participants:
                by_transport.setdefault(_transport(transport), []).append(participant)
            for transport, names in by_transport.items():
                self._record(_EnvelopeEvent(now.wall_us, "delivered", id_ or None, envelope, space, transport), names)

    def rejected(
        self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str, reason: str
    ) -> None:
        """An envelope was rejected; the reason is the code of its error."""
        self._record(_EnvelopeEvent(now.wall_us, "rejected", id_, envelope, space, transport, reason), [participant])

    def _record(self, event: _EnvelopeEvent, participants: Sequence[str]) -> None:
        if self._history is not None:
            self._history.write(event, participants)

    def decided(self, now: Now, decision: Decision) -> None:
        """A capability was checked."""
        if self._decisions is not None:
            self._decisions.put([(now.wall_us, decision)])

    def close(self) -> None:
        """Write what waits, within a deadline."""
        for log in (self._history, self._decisions):
            if log is not None:
                log.close()


class OutputLog(JsonLines[tuple[bool, bytes]]):
    """Everything that a virtual participant receives, including its tokens."""

    def __init__(self, path: Path, *, max_bytes: int = FILE_MAX, keep: int = KEEP) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, max_bytes=max_bytes, keep=keep, waiting_max=WAITING_MAX)

    def envelope(self, envelope: bytes) -> None:
        """Write an envelope, as the bytes that other participants receive."""
        self.put([(False, envelope)], len(envelope))

    def frame(self, frame: bytes) -> None:
        """Write a frame as a list of numbers, at most four characters a byte."""
        self.put([(True, frame)], 4 * len(frame))

    def _format(self, item: tuple[bool, bytes]) -> bytes:
        is_frame, data = item
        return _encode({"type": "Buffer", "data": list(data)}) if is_frame else _compact(data)


def _prepare(directory: Path) -> None:
    """Create the directory, with a `.gitignore`."""
    directory.mkdir(parents=True, exist_ok=True)
    ignore = directory / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n!.gitignore\n")
