"""Staged writes over HTTP: parts of a batch from many places, then one commit that counts once.

Every call may be repeated, and is: when the server is gone, restarts or asks to wait, a call waits and tries again
until its patience ends. Blocking, and for one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Self
from urllib.parse import quote

import msgspec

from penstock.client.admin import Object, RemoteServer

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
