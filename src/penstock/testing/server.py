"""`serve()`: a whole Penstock inside a test, on free loopback ports, with its journal in memory.

The server runs on its own thread, so that a test may be asynchronous or not, and a fixture may outlive the event loops of its tests. The
developer's config and environment have no effect, two servers never interfere, and after the block no file, no thread and no changed
setting of the process is left.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.client.address import ServerEndpoints
from penstock.client.queue.connect import Connecting, connect
from penstock.client.space.client import Space
from penstock.client.sync.queue import SyncClient, connect_sync
from penstock.client.sync.twin import LoopThread
from penstock.client.tokens.offer import LocalRelay, load_signing_key
from penstock.core.errors import PenstockError, Refusal
from penstock.server.assembly import Service
from penstock.server.up import Options, configure

FREE = "127.0.0.1:0"
"""Any free port."""


class MemoryServer:
    """A server for the length of a `with` block; `serve` makes one."""

    def __init__(self, config: Mapping[str, Any], spaces: Mapping[str, Sequence[str]], *, relay: bool) -> None:
        self._config = _with_spaces(config, spaces)
        self._has_relay = relay
        self._thread: LoopThread | None = None
        self._service: Service | None = None
        self._endpoints: ServerEndpoints | None = None

    # -- addresses

    @property
    def url(self) -> str:
        """The URL for `connect`."""
        return self._up().control or self._up().http

    @property
    def http(self) -> str:
        """The HTTP URL, for spaces and for your own requests."""
        return self._up().http

    @property
    def operator_token(self) -> str:
        """The operator's token, which allows everything."""
        assert self._service is not None
        return self._service.operator_token or ""

    @property
    def relay(self) -> LocalRelay:
        """The relay of token streams; needs `serve(relay=True)`."""
        endpoints = self._up()
        if endpoints.pub is None or endpoints.pull is None or self._service is None:
            message = "this server has no relay"
            raise PenstockError(Refusal("Unsupported", message, hint="make it with `serve(relay=True)`"))
        key = load_signing_key(self._service.run_dir / "publisher.key")
        return LocalRelay(endpoints.pub, endpoints.pull, key)

    # -- clients

    def connect(self, agent: str | None = None, *, token: str | None = None) -> Connecting:
        """A client of this server, as from `penstock.connect`."""
        return connect(self.url, token, agent)

    def connect_sync(self, agent: str | None = None, *, token: str | None = None) -> SyncClient:
        """A client of this server, as from `penstock.connect_sync`."""
        return connect_sync(self.url, token, agent)

    def space(self, space: str, participant: str) -> Space:
        """A participant of one of the spaces that `serve` was given."""
        return Space(self.http, space=space, participant=participant, token=token_of(space, participant))

    def cut(self) -> None:
        """Break every connection, as a network failure would; clients may reconnect."""
        service, thread = self._service, self._thread
        assert service is not None
        assert thread is not None

        def abort() -> None:
            for connection in service.runtime.peers.all():
                connection.wire.abort()

        thread.call(abort)

    # -- start and close

    def start(self) -> Self:
        """Start the server; `with` does this by itself."""
        if self._thread is None:
            self._thread = LoopThread()
            try:
                self._endpoints = self._thread.wait(self._open())
            except BaseException:
                self._end()
                raise
        return self

    def close(self) -> None:
        """Stop the server and disconnect its clients."""
        service, thread = self._service, self._thread
        if service is not None and thread is not None:
            thread.wait(service.drain())
        self._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def _open(self) -> ServerEndpoints:
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
            # Do not wait for leases that a test leaves open.
            config = msgspec.structs.replace(config, limits=msgspec.structs.replace(config.limits, drain_ms=0))
            self._service = Service(config, None, lambda: 0)
            return await self._service.start()

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.close()
            if self._service is not None:
                self._service.garbage.stop()  # a crash has left it tuned
        self._thread = self._service = self._endpoints = None

    def _up(self) -> ServerEndpoints:
        if self._endpoints is None:
            raise PenstockError(
                Refusal("Unreachable", "this server is not running", hint="use it inside `with serve() as server`")
            )
        return self._endpoints


def serve(
    config: Mapping[str, Any] | None = None, *, spaces: Mapping[str, Sequence[str]] | None = None, relay: bool = False
) -> MemoryServer:
    """Run a Penstock for a test: use `with`, also in asynchronous code, because the server runs on its own thread.

    Args:
        config: The contents of a config file, for example `{"streams": {"maxDepth": 10}}`, without listen addresses.
        spaces: Names of spaces, each with its participants, which may send everything.
        relay: Whether to start the relay of token streams, a separate process.

    Example:
        with penstock.testing.serve(spaces={"lab": ["ann", "bob"]}) as server:
            with server.connect_sync(agent="sam") as client:
                client.send("jen", {"text": "hello"})
    """
    return MemoryServer(config or {}, spaces or {}, relay=relay)


def token_of(space: str, participant: str) -> str:
    """The token of a participant of a space of `serve`."""
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
