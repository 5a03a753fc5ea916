"""The kernel: makes pipes, connects them, and finds them by their capabilities.

Each connected source has one pump. It writes a chunk to every destination before it reads the next, so the slowest branch limits all. The
end of a source ends its destinations; of several sources merged into one, the first to end ends it, as with Node's streams. A source that
fails destroys its destinations. A closed destination is removed; without destinations, the source is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import msgspec

from penstock.core.errors import PenstockError, Refusal
from penstock.kernel.pipe import Pipe, PipeClosedError, through

SERVICES_MAX = 10_000
"""The most registered names; they are never removed."""


class Capabilities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The capabilities of a service; a missing list means anything."""

    type: Literal["input", "source", "transform", "output"]
    accepts: list[str] | None = None
    produces: list[str] | None = None
    features: list[str] | None = None

    def fits(self, accepts: str | None, produces: str | None, features: Sequence[str]) -> bool:
        """Whether it matches a query. A missing `accepts` or `produces` matches everything; all `features` must be present."""
        for asked, offered in ((accepts, self.accepts), (produces, self.produces)):
            if asked is not None and offered is not None and asked not in offered:
                return False
        return all(feature in (self.features or ()) for feature in features)


class Kernel:
    """Pipes of one process. Close it, or use `async with`, to stop its pumps."""

    def __init__(self) -> None:
        self._services: dict[str, tuple[Capabilities, Pipe]] = {}
        self._pumps: dict[Pipe, list[Pipe]] = {}
        """The destinations of every source."""
        self._tasks: dict[Pipe, asyncio.Task[None]] = {}

    def create_pipe(self, high_water_mark: int | None = None, *, object_mode: bool = False) -> Pipe:
        """A pipe that returns what is written to it."""
        return through(high_water_mark, object_mode=object_mode)

    def connect(self, source: Pipe, destination: Pipe) -> Pipe:
        """Copy from one pipe to another, starting with the next loop turn; returns the destination."""
        destinations = self._pumps.get(source)
        if destinations is None:
            self._pumps[source] = [destination]
            task = asyncio.get_running_loop().create_task(self._pump(source))
            self._tasks[source] = task
        elif destination not in destinations:
            destinations.append(destination)
        return destination

    def split(self, source: Pipe, destinations: Sequence[Pipe]) -> None:
        """Copy every chunk to each destination; the slowest one limits all."""
        for destination in destinations:
            self.connect(source, destination)

    def merge(self, sources: Sequence[Pipe], destination: Pipe) -> None:
        """Copy several sources into one destination; the first source to end ends it."""
        for source in sources:
            self.connect(source, destination)

    def register(self, name: str, capabilities: Capabilities | Mapping[str, Any], pipe: Pipe) -> None:
        """Register a service; the last registration of a name wins."""
        if not isinstance(capabilities, Capabilities):
            try:
                capabilities = msgspec.convert(capabilities, Capabilities)
            except msgspec.ValidationError as error:
                message = f"the capabilities of `{name}` do not fit: {error}"
                raise PenstockError(Refusal("InvalidRequest", message)) from None
        if name not in self._services and len(self._services) >= SERVICES_MAX:
            raise PenstockError(Refusal("QuotaExceeded", f"{SERVICES_MAX} services are registered"))
        self._services[name] = (capabilities, pipe)

    def lookup(
        self, *, accepts: str | None = None, produces: str | None = None, features: Sequence[str] = ()
    ) -> list[Pipe]:
        """The pipes of all services that match, in the order of registration."""
        return [
            pipe for capabilities, pipe in self._services.values() if capabilities.fits(accepts, produces, features)
        ]

    async def close(self) -> None:
        """Stop all pumps; the pipes stay open."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _pump(self, source: Pipe) -> None:
        destinations = self._pumps[source]
        try:
            while destinations:
                chunk = await source.read()
                if chunk is None:
                    for destination in destinations:
                        destination.end()
                    return
                given = list(destinations)
                results = await asyncio.gather(
                    *(destination.write(chunk) for destination in given), return_exceptions=True
                )
                for destination, result in zip(given, results, strict=True):
                    if isinstance(result, PipeClosedError):
                        destinations.remove(destination)
                    elif isinstance(result, BaseException):
                        raise result
        except Exception as error:
            for destination in destinations:
                destination.destroy(error)
        finally:
            self._pumps.pop(source, None)
            self._tasks.pop(source, None)
