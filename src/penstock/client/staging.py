"""Staged writes over HTTP: parts of a batch from many places, then one commit that counts once.

Every call may be repeated, and is: when the server is gone, restarts or asks to wait, a call waits and tries again until its
patience ends. Blocking, and for one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPException
from typing import Any, Self
from urllib.parse import quote

import msgspec

from penstock.client.journal import HttpFailure, http_door
from penstock.core.errors import TABLE, PenstockError, Refusal

PATIENCE_S = 120.0
"""How long a call retries: longer than a restart of the server."""
TIMEOUT_S = 60.0
"""How long one attempt may take."""
PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 5.0
"""The longest back-off when the server names none; it doubles each time."""


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


class Stage:
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
        self._url, connect = http_door(url, TIMEOUT_S)
        self._connection = connect()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience_s = patience_s
        self._sleep = sleep

    def part(self, app: str, batch: int, name: str, lines: Iterable[bytes], *, run: str = "") -> int:
        """Stage one part. It replaces a part of the same name, and drops the parts of another run of the batch."""
        query = f"?run={quote(run, safe='')}" if run else ""
        answer, _ = self._ask("POST", f"{_path(app, batch)}/parts/{quote(name, safe='')}{query}", b"\n".join(lines))
        return int(answer["staged"])

    def commit(self, app: str, batch: int, parts: Sequence[str]) -> StageCommitted:
        """Commit these parts of a batch, unless the batch is committed already."""
        body = msgspec.json.encode({"parts": parts})
        answer, tries = self._ask("POST", f"{_path(app, batch)}/commit", body)
        return msgspec.convert({**answer, "tries": tries}, StageCommitted)

    def abort(self, app: str, batch: int) -> int:
        """Drop the staged parts of a batch; returns the number of envelopes."""
        answer, _ = self._ask("POST", f"{_path(app, batch)}/abort", b"")
        return int(answer["dropped"])

    def last(self, app: str) -> int | None:
        """The newest committed batch of an application, or None."""
        answer, _ = self._ask("GET", _path(app), None)
        last: int | None = answer["last"]
        return last

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[dict[str, Any], int]:
        """The answer, and the number of attempts."""
        deadline_s = time.monotonic() + self._patience_s
        pause_s = PAUSE_MIN_S
        tries = 0
        while True:
            tries += 1
            answer = self._try(method, path, body)
            if isinstance(answer, dict):
                return answer, tries
            wait_s = pause_s if answer.retry_after_ms is None else answer.retry_after_ms / 1000
            if not answer.kind.retryable or time.monotonic() + wait_s > deadline_s:
                raise PenstockError(self._explained(answer, tries))
            self._sleep(wait_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _try(self, method: str, path: str, body: bytes | None) -> dict[str, Any] | Refusal:
        connection = self._connection
        try:
            try:
                connection.request(method, path, body, self._headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # a server that rejects a body stops reading it, but its answer may have arrived
            response = connection.getresponse()
            data = response.read()
        except (OSError, HTTPException) as error:
            connection.close()
            return Refusal("Unreachable", f"`{self._url}` does not answer: {error or type(error).__name__}")
        if response.will_close:
            connection.close()
        try:
            if response.status == 200:
                answer: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
                return answer
            said = msgspec.json.decode(data, type=HttpFailure).error
        except msgspec.DecodeError:
            message = f"`{self._url}` answered {response.status} {response.reason}, and not as a Penstock would"
            return Refusal("Unreachable", message, hint="is this the URL of a Penstock server?")
        wait_ms = said.retry_after_ms
        seconds = response.headers.get("Retry-After", "")
        if wait_ms is None and seconds.isdigit():
            wait_ms = int(seconds) * 1000
        code = said.code if said.code in TABLE else "Internal"
        return Refusal(code, said.message, ref=said.ref, retry_after_ms=wait_ms, hint=said.hint)

    def _explained(self, refusal: Refusal, tries: int) -> Refusal:
        if tries == 1:
            return refusal
        message = f"{refusal.message}; gave up after {tries} tries and {self._patience_s:g} s"
        return msgspec.structs.replace(refusal, message=message)


def _path(app: str, *batch: int) -> str:
    return "/".join(["/v1/stage", quote(app, safe=""), *map(str, batch)])
