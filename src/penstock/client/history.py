"""A server's journal read over HTTP, with the same two verbs as a journal directory: `bounds` and `batches`.

Answers of the server are bounded, so a range is read in as many requests as it takes. Blocking, and for one thread.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import msgspec

from penstock.core.errors import TABLE, PenstockError, Refusal

if TYPE_CHECKING:
    import pyarrow as pa

TIMEOUT_S = 60.0


class RemoteBounds(msgspec.Struct, rename="camel"):
    """What can be read; the fields of a journal directory's bounds."""

    journal: str
    shard: int
    epoch: int
    first: int
    sealed_end: int
    end: int


class RemoteSealed(msgspec.Struct, rename="camel"):
    """What a seal did."""

    sealed_rows: int
    sealed_end: int
    live_offset: int
    removed_segments: int = 0
    removed_files: int = 0
    removed_bytes: int = 0
    ended_readers: list[str] = []


class RemoteJournal:
    """The journal behind a server's HTTP door."""

    def __init__(self, url: str, token: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            hint = "use `http://host:port`; the journal is not on the control door"
            raise PenstockError(
                Refusal("InvalidRequest", f"`{url}` is not the URL of an HTTP door", hint=hint)
            )
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._netloc = parts.netloc
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s

    def bounds(self) -> RemoteBounds:
        """How far the journal reaches, now."""
        _, body = self._ask("GET", "/v1/journal")
        return msgspec.json.decode(body, type=RemoteBounds)

    def end(self) -> int:
        return self.bounds().end

    def seal(self) -> RemoteSealed:
        """Have everything that is committed moved to the Delta table."""
        _, body = self._ask("POST", "/v1/journal/seal")
        return msgspec.json.decode(body, type=RemoteSealed)

    def batches(self, first: int, end: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows `first` to `end - 1`, in order; fewer when the journal ends before that."""
        import pyarrow.ipc

        while first < end:
            query: dict[str, Any] = {"from": first, "to": end}
            if columns is not None:
                query["columns"] = ",".join(columns)
            head, body = self._ask("GET", f"/v1/journal/rows?{urlencode(query)}")
            with pyarrow.ipc.open_stream(io.BytesIO(body)) as stream:
                yield from stream
            following = int(head["X-Penstock-Next"])
            if following == first:
                return
            first = following

    def _ask(self, method: str, path: str) -> tuple[dict[str, str], bytes]:
        connection = self._make(self._netloc, timeout=self._timeout_s)
        try:
            connection.request(method, path, headers=self._headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, HTTPException) as error:
            refusal = Refusal("Unreachable", f"`{self._url}` does not answer: {error}")
            raise PenstockError(refusal) from None
        finally:
            connection.close()
        if response.status != 200:
            raise PenstockError(_refusal(response, body))
        return dict(response.headers.items()), body


class _Error(msgspec.Struct):
    code: str
    message: str
    ref: str | None = None
    hint: str | None = None


class _Failure(msgspec.Struct):
    error: _Error


def _refusal(response: HTTPResponse, body: bytes) -> Refusal:
    try:
        error = msgspec.json.decode(body, type=_Failure).error
    except msgspec.DecodeError:
        error = _Error("Internal", f"the server answered {response.status} {response.reason}")
    code = error.code if error.code in TABLE else "Internal"
    return Refusal(code, error.message, ref=error.ref, hint=error.hint)
