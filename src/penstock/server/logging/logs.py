"""The process log: one event name plus fields, never a token.

    event("conn.open", link=7, peer="127.0.0.1")

writes a JSON line, or a short line of text on a terminal. The thread of `LineWriter` writes, so a slow disk or a stopped terminal never
blocks the loop. Lines of other libraries pass through the same redaction.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import msgspec

from penstock.core.clock import rfc3339
from penstock.core.records import Applied, Entry, Ruled
from penstock.server.config.sections import LogsSection
from penstock.server.files.line_writer import LineWriter, TextSink

QUEUE_MAX = 10_000
"""Events waiting to be written: about 5 MiB."""
BATCH_MAX = 256
"""Events of one write."""
VALUE_MAX = 2_000
"""Characters of one value of one event."""
CLOSE_S = 2.0
"""How long `close` waits for the last lines."""

HIDDEN = "[hidden]"

_LOGGER = logging.getLogger("penstock")
_SECRET_KEYS = frozenset(
    {"token", "authorization", "proxy_authorization", "cookie", "set_cookie", "password", "secret", "api_key"}
)
_SECRET_TEXT = re.compile(r"(?i)(\bbearer[ .]|\b(?:access_)?token=)[^\s,;&\"']+")
_PAYLOAD_KEYS = frozenset({"payload", "envelope", "body"})
_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_PLAIN = "\x1b[0m"


def event(name: str, /, **fields: Any) -> None:
    """Log an event at level info."""
    _emit(logging.INFO, name, fields)


LEVELS = {
    "conn.open": logging.DEBUG,
    "conn.close": logging.DEBUG,
    "conn.slow": logging.WARNING,
    "reader.cut": logging.WARNING,
    "sender.cut": logging.WARNING,
    "redelivery.hot": logging.WARNING,
    "journal.refused": logging.ERROR,
    "session.failed": logging.ERROR,
    "backlog.failed": logging.ERROR,
    "commit.callback_failed": logging.ERROR,
}
"""Levels of events that the runtime logs; it knows their names only."""


def runtime_event(name: str, /, **fields: Any) -> None:
    """Log an event of the runtime at its level."""
    _emit(LEVELS.get(name, logging.INFO), name, fields)


def detail(name: str, /, **fields: Any) -> None:
    """Log a detail at level debug."""
    _emit(logging.DEBUG, name, fields)


def warning(name: str, /, **fields: Any) -> None:
    """Log a warning for the operator."""
    _emit(logging.WARNING, name, fields)


def error(name: str, /, exc: BaseException | None = None, **fields: Any) -> None:
    """Log a failure of the server, with the traceback of its exception."""
    if exc is not None:
        fields["error"] = "".join(traceback.format_exception(exc)).rstrip()
    _emit(logging.ERROR, name, fields)


def _emit(level: int, name: str, fields: dict[str, Any]) -> None:
    if not _LOGGER.isEnabledFor(level):
        return
    # Not through Logger.log, which would walk the stack for a file name that is never printed.
    record = logging.LogRecord(_LOGGER.name, level, "", 0, name, None, None)
    record.fields = fields
    _LOGGER.handle(record)


def set_level(level: str) -> None:
    """Set the lowest level that is written."""
    _LOGGER.setLevel(getattr(logging, level.upper()))


def setup(logs: LogsSection, stream: TextIO | None = None) -> LogWriter:
    """Send all logging of the process to a new writer, until it is closed."""
    if logs.file is not None:
        descriptor = os.open(logs.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        stream = os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")
    stream = stream or sys.stderr
    is_terminal = stream.isatty()
    is_text = logs.format == "text" or (logs.format == "auto" and is_terminal)
    colour = is_terminal and "NO_COLOR" not in os.environ
    writer = LogWriter(
        stream, TextLine(colour, logs.payload) if is_text else JsonLine(logs.payload), owned=logs.file is not None
    )
    writer.attach(getattr(logging, logs.level.upper()))
    return writer


class JsonLine(logging.Formatter):
    """One event as one JSON object."""

    def __init__(self, payload: bool = False) -> None:
        super().__init__()
        self._payload = payload

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record, self._payload)
        head = {
            "ts": rfc3339(int(record.created * 1_000_000)),
            "level": record.levelname.lower(),
            "event": _name(record),
        }
        text = msgspec.json.encode(head | {k: v for k, v in fields.items() if k not in head}).decode()
        return _printable(text, lambda char: "\\u" + char.encode("utf-16-be").hex(" ", 2).replace(" ", "\\u"))


class TextLine(logging.Formatter):
    """One event as one short line of text."""

    def __init__(self, colour: bool, payload: bool = False) -> None:
        super().__init__()
        self._colour = colour
        self._payload = payload

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = record.levelname.lower()
        fields = _fields(record, self._payload)
        # In text form a traceback follows the line as lines of its own.
        trace = fields.pop("error") if "\n" in str(fields.get("error", "")) else None
        words = " ".join(f"{key}={_word(value)}" for key, value in fields.items())
        start, end = (_COLOURS.get(level, ""), _PLAIN) if self._colour else ("", "")
        line = f"{moment}.{int(record.msecs):03d} {start}{level:<7}{end} {_printable(_name(record))} {words}".rstrip()
        return line if trace is None else f"{line}\n" + "\n".join(map(_printable, str(trace).splitlines()))


class LogWriter(logging.Handler):
    """The handler of the process; a thread does the writing."""

    def __init__(self, stream: TextIO, line: logging.Formatter, *, owned: bool = False) -> None:
        super().__init__()
        self.setFormatter(line)
        self._before: tuple[int, int] | None = None
        self._writer = LineWriter(
            TextSink(stream, owned=owned),
            self._line,
            waiting_max=QUEUE_MAX,
            waiting_bytes_max=0,
            linger_s=0,
            thread="penstock-logs",
            lines_max=BATCH_MAX,
            close_s=CLOSE_S,
            report=self._report,
        )

    @property
    def dropped(self) -> int:
        """Events that were not written: the queue was full, or the stream rejected them."""
        return self._writer.dropped

    def attach(self, level: int) -> None:
        """Become the one handler of the process, until close()."""
        root = logging.getLogger()
        self._before = (root.level, _LOGGER.level)
        root.setLevel(logging.WARNING)
        _LOGGER.setLevel(level)
        root.addHandler(self)
        atexit.register(self.close)

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put([record])  # the caller holds the handler's lock, so the counters are exact

    def close(self) -> None:
        """Write what waits, within a deadline, and restore the logging of the process."""
        if self._before is not None:
            root = logging.getLogger()
            root.removeHandler(self)
            root.setLevel(self._before[0])
            _LOGGER.setLevel(self._before[1])
            self._before = None
            self._writer.close()
            atexit.unregister(self.close)
        super().close()

    def _report(self, count: int, total: int) -> bytes:
        report = logging.LogRecord(_LOGGER.name, logging.WARNING, "", 0, "log.dropped", None, None)
        report.fields = {"count": count, "total": total}
        return self._line(report)

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            return self.format(record).encode("utf-8", "backslashreplace")
        except Exception as failure:  # a field whose own code fails must not end the thread
            return b'{"level":"error","event":"log.unprintable","error":"%s"}' % type(failure).__name__.encode()


def _name(record: logging.LogRecord) -> str:
    return record.getMessage() if hasattr(record, "fields") else record.name


def _fields(record: logging.LogRecord, payload: bool) -> dict[str, Any]:
    """The redacted fields of an event, or the message of another library."""
    fields: Mapping[str, Any] | None = getattr(record, "fields", None)
    if fields is None:
        fields = {"message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return {key: _clean(key, value) for key, value in fields.items() if payload or key not in _PAYLOAD_KEYS}


def _clean(key: str, value: Any, depth: int = 4) -> Any:
    """A value without secrets, as plain data of bounded size."""
    plain_key = key.lower().replace("-", "_")
    if plain_key in _SECRET_KEYS or plain_key.endswith(("_token", "_secret", "_password")):
        return HIDDEN
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping() if depth:
            return {str(name): _clean(str(name), item, depth - 1) for name, item in list(value.items())[:100]}
        case list() | tuple() if depth:
            return [_clean("", item, depth - 1) for item in value[:100]]
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    # A lone surrogate can come from a peer's bytes and has no UTF-8 form.
    text = _SECRET_TEXT.sub(rf"\1{HIDDEN}", text.encode("utf-8", "backslashreplace").decode())
    return text if len(text) <= VALUE_MAX or key == "error" else text[:VALUE_MAX] + "…"


def _word(value: Any) -> str:
    """A value as one word of a text line, quoted if ambiguous."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if isinstance(value, str) and (not text or re.search(r"[\s\"=]", text)):
        text = msgspec.json.encode(text).decode()
    return _printable(text)


def _printable(text: str, escape: Callable[[str], str] = lambda char: repr(char)[1:-1]) -> str:
    """Escape control characters, so that a peer's name cannot control the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else escape(c) for c in text)


def log_facts(log: Callable[..., None], facts: list[Any]) -> None:
    """Log each durable fact."""
    for fact in facts:
        if isinstance(fact, Applied):
            log("staged", app=fact.app, batch=fact.batch, envelopes=fact.envelopes)
        elif isinstance(fact, Entry):
            log(f"{fact.door}.{fact.event}", channel=fact.channel, id=fact.id, sender=fact.sender)
        elif isinstance(fact, Ruled):
            log("trigger.changed", rule=fact.id, gone=fact.text is None)
        else:
            event = getattr(fact, "event", "enqueue")
            record = getattr(fact, "record", fact)
            log(event, stream=record.channel.name, id=record.id, seq=record.seq, attempt=record.attempt)
