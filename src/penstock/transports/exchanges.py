"""One HTTP request as its handler sees it, and what a handler does. `plain_http.py` makes those of plain requests, `http.py` all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from penstock.transports.http_replies import Reply, StreamingReply, Upgrade
from penstock.transports.transport import Admission, UnreadBytes, Upload, party_of

Answer = Reply | StreamingReply | Upgrade
Answered = Callable[[Reply | StreamingReply], None]


SMALL = 4_096
"""Bytes of a body that are not counted among what peers have sent: the bounds on connections bound these."""


class BodyTooLargeError(Exception):
    """The body is over the handler's `body_max`."""


class BodyMalformedError(Exception):
    """The body breaks its transfer coding; the text says how."""


class Exchange(ABC):
    """One request as its handler sees it."""

    __slots__ = ("headers", "holder", "is_upgrade", "method", "path", "peer", "size", "upload")

    def __init__(self, method: str, path: str, headers: Mapping[str, str], peer: str, size: int | None) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        """By name, in any case."""
        self.holder: Any = None
        """Who asks, as the handler found out; see `HttpListener.cut_downloads`."""
        self.peer = peer
        self.size = size
        """What `Content-Length` says."""
        self.is_upgrade = False
        self.upload: Upload | None = None
        """What it holds, if that is worth counting."""

    def holds(self, size: int) -> None:
        """So many bytes of its body wait in memory; 0 when it is answered, or its peer is gone."""
        if self.upload is None:
            if size <= SMALL:
                return
            name = f"{self.method} {self.path[:200]} ({self.peer})"
            self.upload = Upload(name, party_of(self.holder, self.peer), self._abort)
        self.upload.size = size
        self._note(self.upload, size)
        if not size:
            self.upload = None

    @abstractmethod
    def _abort(self) -> None:
        """Close its connection at once."""

    @abstractmethod
    def _note(self, upload: Upload, size: int) -> None:
        """Count what it holds."""

    @abstractmethod
    def known(self) -> None:
        """The peer is authenticated, or may do without."""

    @property
    @abstractmethod
    def query_pairs(self) -> list[tuple[str, str]]:
        """The parameters of the query, in order."""

    @abstractmethod
    async def read(self) -> bytes:
        """Read the whole body. Raises BodyTooLargeError, BodyMalformedError or TimeoutError."""


class HttpHandler(Protocol):
    """Answers the requests of one port."""

    @property
    def body_max(self) -> int:
        """Bytes of the largest body."""

    def admit(self, peer: str, close: Callable[[], None]) -> Admission | Reply:
        """Accept a connection, or refuse it with this answer; `close` ends it at once."""

    def note_unread(self, reader: UnreadBytes, size: int) -> None:
        """A large answer is on its way; 0 when it has left."""

    def note_input(self, upload: Upload, size: int) -> None:
        """A body waits in memory; 0 when it is done with."""

    async def handle(self, exchange: Exchange) -> Answer:
        """Answer a request; the handler decides when to read its body."""

    def begin(self, exchange: Exchange, body: bytes, done: Answered) -> Coroutine[Any, Any, Answer] | None:
        """Answer a request whose body is here, as `handle` does: through `done`, now or later, or by the coroutine."""

    def failed(self, exchange: Exchange, error: Exception) -> Reply:
        """The answer when `handle` or `begin` raised."""

    def malformed(self, reason: str) -> Reply:
        """The answer to bytes that are not an HTTP request."""
