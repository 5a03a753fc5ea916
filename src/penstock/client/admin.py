"""Administration over HTTP: the journal, metrics, spaces and tokens of a server. Blocking; use one object per thread.

`RemoteJournal` has the two operations of a journal directory: `bounds` and `batches`. Answers of the server are bounded, so a range is
read in as many requests as it takes. On request it waits for a server that is gone or busy, longer each time, up to a bound.

Staged writes are parts of a batch from many places, then one commit that counts once. Every call may be repeated, and is: when the server
is gone, restarts or asks to wait, a call waits and tries again until its patience ends.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, RemoteDisconnected
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.client.address import STATUSES, wrong_protocol
from penstock.core.cluster.status import ClusterStatus
from penstock.core.errors import TABLE, PenstockError, Refusal

if TYPE_CHECKING:
    from email.message import Message

    import pyarrow as pa


Answer = TypeVar("Answer")
Object = dict[str, Any]

TIMEOUT_S = 60.0
HEALTH = "/health"
BACK_OFF_S = 0.1
"""The first back-off before a retry; each further one is twice as long."""
BACK_OFF_MAX_S = 5.0


class RemoteBounds(msgspec.Struct, rename="camel"):
    """The readable range; the fields of a journal directory's bounds."""

    journal: str
    shard: int
    epoch: int
    first: int
    sealed_end: int
    end: int


def http_door(url: str, timeout_s: float) -> tuple[str, Callable[[], HTTPConnection]]:
    """The URL without a path, and what makes a connection to it."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        hint = "use `http://host:port`; this is not on the control door"
        raise PenstockError(Refusal("InvalidRequest", f"`{url}` is not the URL of an HTTP door", hint=hint))
    make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return f"{parts.scheme}://{parts.netloc}", lambda: make(parts.netloc, timeout=timeout_s)


class RemoteServer:
    """A server behind its HTTP port."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retry_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`retry_s` is how long to retry while the server is unreachable or busy."""
        self._url, self._connect = http_door(url, timeout_s)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._retry_s = retry_s
        self._sleep = sleep
        self._tries = 0
        """The attempts of the last request."""

    def reload(self) -> dict[str, Any]:
        """Reload the server's config; returns the settings that changed, those that need a restart, and the connections closed."""
        return self._call(Object, "POST", "/v1/reload")

    def health(self) -> dict[str, Any]:
        """What `/health` says, also while the server refuses new envelopes."""
        return self._call(Object, "GET", HEALTH)

    def _call(self, kind: type[Answer], method: str, path: str, body: object = None) -> Answer:
        """Send a request, and decode its answer."""
        _, answer = self._ask(method, path, body)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError:
            refusal = Refusal("UnknownRoute", f"`{self._url}` answers, but not as a Penstock would")
            raise PenstockError(refusal) from None

    def _ask(self, method: str, path: str, body: object = None) -> tuple[Message, bytes]:
        began = time.monotonic()
        wait_s = BACK_OFF_S
        self._tries = 0
        while True:
            self._tries += 1
            try:
                return self._ask_once(method, path, body)
            except PenstockError as error:
                pause_s = max(wait_s, (error.refusal.retry_after_ms or 0) / 1000)
                waited_s = time.monotonic() - began
                may_pass = error.retryable and error.code != "Internal"
                if not may_pass or waited_s + pause_s > self._retry_s:
                    if self._tries == 1 or not may_pass:
                        raise
                    message = f"{error.refusal.message}; gave up after {self._tries} tries and {waited_s:.0f} s"
                    raise PenstockError(msgspec.structs.replace(error.refusal, message=message)) from None
            self._sleep(pause_s)
            wait_s = min(2 * wait_s, BACK_OFF_MAX_S)

    def _ask_once(self, method: str, path: str, body: Any) -> tuple[Message, bytes]:
        connection = self._connect()
        headers = dict(self._headers)
        if body is not None and not isinstance(body, bytes):
            headers["Content-Type"] = "application/json"
            body = msgspec.json.encode(body)
        try:
            try:
                connection.request(method, path, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # a server that rejects a body stops reading it, but its answer may have arrived
            response = connection.getresponse()
            answer = response.read()
        except RemoteDisconnected:
            raise PenstockError(wrong_protocol(self._url)) from None
        except (OSError, HTTPException) as error:
            refusal = Refusal("Unreachable", f"`{self._url}` does not answer: {error}")
            raise PenstockError(refusal) from None
        finally:
            connection.close()
        is_health = path == HEALTH and answer.startswith(b'{"ok"')  # with 503 while it refuses envelopes
        if response.status != 200 and not is_health:
            raise PenstockError(_refusal(response, answer))
        return response.headers, answer


class RemoteJournal(RemoteServer):
    """The journal behind a server's HTTP port."""

    def bounds(self) -> RemoteBounds:
        """The current range of the journal."""
        return self._call(RemoteBounds, "GET", "/v1/journal")

    def end(self) -> int:
        return self.bounds().end

    def seal(self) -> dict[str, Any]:
        """Seal all committed rows into the Delta table."""
        return self._call(Object, "POST", "/v1/journal/seal")

    def hold(self, name: str, offset: int) -> None:
        """Move a named reader to `offset`; retention keeps the rows from there on."""
        self._call(Object, "POST", "/v1/journal/readers", {"name": name, "offset": offset})

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


class HttpError(msgspec.Struct, rename="camel"):
    """The error in an answer."""

    code: str
    message: str
    ref: str | None = None
    hint: str | None = None
    retry_after_ms: int | None = None


class HttpFailure(msgspec.Struct):
    """The body of an answer that is an error."""

    error: HttpError


_CODES = STATUSES | {502: "Unreachable", 504: "Timeout"}
"""Codes for answers of a proxy between us and the server."""


def _refusal(response: HTTPResponse, body: bytes) -> Refusal:
    try:
        error = msgspec.json.decode(body, type=HttpFailure).error
    except msgspec.DecodeError:
        error = HttpError("", f"the server answered {response.status} {response.reason}")
    code = error.code if error.code in TABLE else _CODES.get(response.status, "Internal")
    after = response.headers.get("Retry-After", "")
    after_ms = int(after) * 1000 if after.isdecimal() else error.retry_after_ms
    return Refusal(code, error.message, ref=error.ref, retry_after_ms=after_ms, hint=error.hint)


Labels = tuple[tuple[str, str], ...]
Counters = dict[tuple[str, Labels], float]
"""The samples of `/metrics`, by name and labels."""

FIGURES_TIMEOUT_S = 5.0
_HIDDEN = ("Unauthorized", "Forbidden", "UnknownRoute")


class ServerFigures(msgspec.Struct, frozen=True):
    """All figures of a server at about one moment."""

    health: dict[str, Any]
    streams: list[dict[str, Any]]
    """`[{id, stats, q}]`."""
    counters: Counters
    spaces: list[dict[str, Any]] | None
    """None if the token may not read them."""


class RemoteFigures(RemoteServer):
    """The figures of a server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        super().__init__(url, token, timeout_s=FIGURES_TIMEOUT_S)

    def read(self) -> ServerFigures:
        """Fetch all figures."""
        health = self.health()
        streams = self._call(Object, "GET", "/v1/metrics").get("streams", [])
        _, text = self._ask("GET", "/metrics?streams=0")
        return ServerFigures(health, streams, parse_counters(text.decode()), self._spaces())

    def _spaces(self) -> list[dict[str, Any]] | None:
        try:
            return self._call(SpaceSurvey, "GET", "/v1/spaces").spaces
        except PenstockError as error:
            if error.code in _HIDDEN:
                return None
            raise


def parse_counters(text: str) -> Counters:
    """Parse the samples of the Prometheus text format."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class SpaceSurvey(msgspec.Struct):
    """All spaces, or the requested one."""

    spaces: list[dict[str, Any]]


class RemoteSpaces(RemoteServer):
    """The spaces of a server."""

    def survey(self, space: str | None = None) -> SpaceSurvey:
        """Participants, open streams, and their counters."""
        query = f"?{urlencode({'space': space})}" if space is not None else ""
        return self._call(SpaceSurvey, "GET", f"/v1/spaces{query}")


class RemoteTokens(RemoteServer):
    """The tokens of a server."""

    def listed(self) -> dict[str, Any]:
        """All tokens except the operator's."""
        return self._call(Object, "GET", "/v1/tokens")

    def mint(self, **wanted: Any) -> dict[str, Any]:
        """Make a token with the members of a `TokenRequest`; only this answer contains it."""
        return self._call(Object, "POST", "/v1/tokens", wanted)

    def revoke(self, name: str) -> dict[str, Any]:
        """Revoke a token."""
        return self._call(Object, "DELETE", f"/v1/tokens/{quote(name, safe='')}")


class RemoteCluster(RemoteServer):
    """The cluster that a server is a node of."""

    def status(self) -> ClusterStatus:
        """Who owns what."""
        return self._call(ClusterStatus, "GET", "/v1/cluster")

    def move(self, shard: int, node: str | None) -> None:
        """Have a node own a shard; None leaves it to the cluster."""
        self._call(Object, "POST", "/v1/cluster/move", {"shard": shard, "node": node})

    def drain(self, node: str, *, on: bool) -> None:
        """Have a node own nothing, or let it own shards again."""
        self._call(Object, "POST", "/v1/cluster/drain", {"node": node, "drained": on})


PATIENCE_S = 120.0
"""How long a call retries: longer than a restart of the server."""


class StageCommitted(msgspec.Struct):
    """The outcome of a batch."""

    app: str
    batch: int
    enqueued: int
    duplicate: bool
    """Whether the batch was committed before; then nothing was enqueued now."""
    frames: int = 0
    """Frames sent to streams of spaces."""
    last: int | None = None
    """For a duplicate: the newest committed batch of the application."""
    tries: int = 1
    """The number of attempts; an earlier answer may have been lost."""


class Stage(RemoteServer):
    """Staged batches on one server.

    For example:

        with Stage("http://localhost:8787") as stage:
            stage.part("report", 0, "only", [b'{"to":"agents/sam/inbox","type":"report","payload":{"n":1}}'])
            stage.commit("report", 0, ["only"])
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(url, token, retry_s=patience_s, sleep=sleep)

    def part(self, app: str, batch: int, name: str, lines: Iterable[bytes], *, run: str = "") -> int:
        """Stage one part. It replaces a part of the same name, and drops the parts of another run of the batch."""
        query = f"?run={quote(run, safe='')}" if run else ""
        path = f"{_path(app, batch)}/parts/{quote(name, safe='')}{query}"
        return int(self._call(Object, "POST", path, b"\n".join(lines))["staged"])

    def commit(self, app: str, batch: int, parts: Sequence[str]) -> StageCommitted:
        """Commit these parts of a batch, unless the batch is committed already."""
        done = self._call(StageCommitted, "POST", f"{_path(app, batch)}/commit", {"parts": parts})
        return msgspec.structs.replace(done, tries=self._tries)

    def abort(self, app: str, batch: int) -> int:
        """Drop the staged parts of a batch; returns the number of envelopes."""
        return int(self._call(Object, "POST", f"{_path(app, batch)}/abort", b"")["dropped"])

    def last(self, app: str) -> int | None:
        """The newest committed batch of an application, or None."""
        last: int | None = self._call(Object, "GET", _path(app))["last"]
        return last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Each call has a connection of its own, so none is open here."""


def _path(app: str, *batch: int) -> str:
    return "/".join(["/v1/stage", quote(app, safe=""), *map(str, batch)])
