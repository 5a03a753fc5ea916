"""The kernel: makes pipes, joins them, and finds them by what they can do.

Owns one pump for each source that is connected; it reads a chunk and hands it to every destination before it reads the next, so the
slowest branch throttles all. A source that ends ends its destinations: of several sources merged into one, the first to end ends it, as
with Node's streams. A source that fails destroys its destinations. A destination that is closed drops out; without
any, the source is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from penstock.core.errors import PenstockError, Refusal
from penstock.kernel.pipe import Pipe, PipeClosedError, through

SERVICES_MAX = 10_000
"""Registered names: nothing is ever taken out, so something has to say when it is enough."""


class Capabilities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a service is and does; a list that is left out stands for anything."""

    type: Literal["input", "source", "transform", "output"]
    accepts: list[str] | None = None
    produces: list[str] | None = None
    features: list[str] | None = None

    def fits(self, accepts: str | None, produces: str | None, features: Sequence[str]) -> bool:
        """Whether it does what is asked. No list of `accepts` or `produces` fits every question; `features` must all be there."""
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
        """A pipe that gives back what is written to it."""
        return through(high_water_mark, object_mode=object_mode)

    def connect(self, source: Pipe, destination: Pipe) -> Pipe:
        """Let what comes out of one pipe go into another, from the next turn of the loop on; returns that other."""
        destinations = self._pumps.get(source)
        if destinations is None:
            self._pumps[source] = [destination]
            task = asyncio.get_running_loop().create_task(self._pump(source))
            self._tasks[source] = task
        elif destination not in destinations:
            destinations.append(destination)
        return destination

    def split(self, source: Pipe, destinations: Sequence[Pipe]) -> None:
        """Give every chunk to each of them; the slowest one throttles all."""
        for destination in destinations:
            self.connect(source, destination)

    def merge(self, sources: Sequence[Pipe], destination: Pipe) -> None:
        """Let several go into one; the first to end ends it."""
        for source in sources:
            self.connect(source, destination)

    def register(self, name: str, capabilities: Capabilities | Mapping[str, Any], pipe: Pipe) -> None:
        """Make a service known; who registers a name last has it."""
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
        """The pipes of every service that does what is asked, in the order of registration."""
        return [
            pipe
            for capabilities, pipe in self._services.values()
            if capabilities.fits(accepts, produces, features)
        ]

    async def close(self) -> None:
        """Stop every pump; the pipes stay as they are."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
