"""`serve()`: a whole Penstock inside a test, on free loopback ports, remembering nothing on disk.

Owns a thread with the shipped server on it, so that a test may be asynchronous or not, and a fixture may outlive the loops of its tests.
The journal is in memory and the doors are real. What it keeps: nothing of the developer's config or environment counts, two servers never
meet, and after the block there is neither a file nor a thread nor a changed setting of the process left.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from penstock.client.queue.connect import Connecting, connect
from penstock.client.space.client import Space
from penstock.client.sync.queue import SyncClient, connect_sync
from penstock.client.sync.twin import LoopThread
from penstock.client.tokens.local_relay import LocalRelay, load_signing_key
from penstock.core.errors import PenstockError, Refusal
from penstock.server.assembly import Endpoints, Service
from penstock.server.up import Options, configure

FREE = "127.0.0.1:0"
"""Any port that nobody has."""


class MemoryServer:
    """A server that lives as long as a `with` block; made by `serve`."""

    def __init__(
        self, config: Mapping[str, Any], spaces: Mapping[str, Sequence[str]], *, relay: bool
    ) -> None:
        self._config = _with_spaces(config, spaces)
        self._has_relay = relay
        self._thread: LoopThread | None = None
        self._service: Service | None = None
        self._endpoints: Endpoints | None = None
        self._gc_threshold = gc.get_threshold()

    # -- where it is

    @property
    def url(self) -> str:
        """What `connect` takes."""
        return self._up().control or self._up().http

    @property
    def http(self) -> str:
        """The HTTP door: for spaces, and for requests of your own."""
        return self._up().http

    @property
    def operator_token(self) -> str:
        """What lets its holder do everything."""
        assert self._service is not None
        return self._service.operator_token or ""

    @property
    def relay(self) -> LocalRelay:
        """The relay of token streams; there with `serve(relay=True)`."""
        endpoints = self._up()
        if endpoints.pub is None or endpoints.pull is None or self._service is None:
            message = "this server has no relay"
            raise PenstockError(Refusal("Unsupported", message, hint="make it with `serve(relay=True)`"))
        key = load_signing_key(self._service.run_dir / "publisher.key")
        return LocalRelay(endpoints.pub, endpoints.pull, key)

    # -- who comes

    def connect(self, agent: str | None = None, *, token: str | None = None) -> Connecting:
        """A client of this server, as `penstock.connect` makes them."""
        return connect(self.url, token, agent)

    def connect_sync(self, agent: str | None = None, *, token: str | None = None) -> SyncClient:
        """A client of this server, as `penstock.connect_sync` makes them."""
        return connect_sync(self.url, token, agent)

    def space(self, space: str, participant: str) -> Space:
        """A place in one of the spaces that `serve` was given, for one of the participants it names."""
        return Space(self.http, space=space, participant=participant, token=token_of(space, participant))

    def cut(self) -> None:
        """Lose every connection there is, as a network would; whoever reconnects is welcome."""
        service, thread = self._service, self._thread
        assert service is not None
        assert thread is not None

        def abort() -> None:
            for connection in service.runtime.connections:
                connection.wire.abort()

        thread.call(abort)

    # -- its life

    def start(self) -> Self:
        """Open the doors; `with` does this by itself."""
        if self._thread is None:
            self._gc_threshold = gc.get_threshold()
            self._thread = LoopThread()
            try:
                self._endpoints = self._thread.wait(self._open())
            except BaseException:
                self._end()
                raise
        return self

    def close(self) -> None:
        """Let go of everybody, and of what they held."""
        service, thread = self._service, self._thread
        if service is not None and thread is not None:
            thread.wait(service.drain())
        self._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _open(self) -> Endpoints:
        with tempfile.TemporaryDirectory(prefix="penstock-config-") as folder:
            file = Path(folder) / "config.yaml"
            file.write_bytes(msgspec.json.encode(self._config))  # JSON is YAML too
            options = Options(
                config=file,
                http=FREE,
                control=FREE,
                no_pipeline=True,
                no_relay=not self._has_relay,
                pub=f"tcp://{FREE}",
            )
            config = configure(options, {})
            # Leases that a test leaves behind are nobody's loss.
            config = msgspec.structs.replace(
                config, limits=msgspec.structs.replace(config.limits, drain_ms=0)
            )
            self._service = Service(config, None, lambda: 0)
            return await self._service.start()

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.close()
            # The server tunes the process for itself alone.
            gc.unfreeze()
            gc.set_threshold(*self._gc_threshold)
        self._thread = self._service = self._endpoints = None

    def _up(self) -> Endpoints:
        if self._endpoints is None:
            raise PenstockError(
                Refusal("Unreachable", "this server is not up", hint="use it inside `with serve() as server`")
            )
        return self._endpoints


def serve(
    config: Mapping[str, Any] | None = None,
    *,
    spaces: Mapping[str, Sequence[str]] | None = None,
    relay: bool = False,
) -> MemoryServer:
    """A Penstock for a test: `with`, in asynchronous code too, because it runs on a thread of its own.

    Args:
        config: what a config file would hold, for instance `{"streams": {"maxDepth": 10}}`. Where it listens is not among it.
        spaces: names of spaces, each with its participants, who may send everything.
        relay: whether there is a relay of token streams, which is a process of its own and takes a moment.

    Example:
        with penstock.testing.serve(spaces={"lab": ["ann", "bob"]}) as server:
            with server.connect_sync(agent="sam") as client:
                client.send("jen", {"text": "hello"})
    """
    return MemoryServer(config or {}, spaces or {}, relay=relay)


def token_of(space: str, participant: str) -> str:
    """The token of a participant that `serve` made; it opens nothing but a test."""
    return f"{space}-{participant}-token"


def _with_spaces(config: Mapping[str, Any], spaces: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    made = [
        {
            "space": {"id": space},
            "participants": {
                name: {"tokens": [token_of(space, name)], "capabilities": [{"kind": "*"}]} for name in names
            },
        }
        for space, names in spaces.items()
    ]
    return {**config, **({"spaces": [*config.get("spaces", ()), *made]} if made else {})}
