"""What turns an asynchronous class into a blocking one: a loop on a thread, and descriptors that borrow signatures.

Nothing is implemented or declared twice. `send = blocking(Client.send)` is `Client.send` with its parameters, result and docstring,
run on the thread and waited for. `ask = blocking(Client.ask, SyncDelivery)` also puts a twin around the result. `called` does the same
for methods that are not coroutines, and `made_like` declares the parameters of a constructor.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
"""A twin of a client is also a twin of what the client extends."""
T = TypeVar("T")
W = TypeVar("W")
Source = TypeVar("Source", bound=AsyncIterator[Any])


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-client", daemon=True)
        self._thread.start()

    def post(self, function: Callable[[], object]) -> None:
        """Call a function on the loop soon: in order, and before what a later `wait` runs."""
        self._loop.call_soon_threadsafe(function)

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run on the loop and wait. An interrupt of the waiting thread cancels the coroutine."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a plain function on the loop and wait."""

        async def run() -> R:
            return function(*args, **kwargs)

        return self.wait(run())

    def close(self) -> None:
        """Stop the loop and its threads; looking up host names starts one more."""
        if self._loop.is_closed():
            return
        try:
            self.wait(self._loop.shutdown_default_executor())
        except RuntimeError:
            pass  # the interpreter is shutting down and ends them itself
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Closable(Protocol):
    """Has a `close`."""

    def close(self) -> object: ...


class Closing:
    """Closes at the end of its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self: Closable, *exception: object) -> None:
        self.close()


class Twin(Generic[S_co]):
    """A blocking object in front of an asynchronous one."""

    def __init__(self, source: S_co, thread: LoopThread) -> None:
        self._source = source
        self._thread = thread


class Openable(Protocol):
    """Has an `open`."""

    async def open(self) -> object: ...


O_co = TypeVar("O_co", bound=Openable, covariant=True)


class OpenedTwin(Closing, Twin[O_co], Generic[O_co]):
    """A twin that opens at the beginning of its `with` block, too."""

    def open(self) -> Self:
        """Open it, and wait until it is open; a `with` block and iterating do this. Raises PenstockError when that fails."""
        try:
            self._thread.wait(self._source.open())
        except BaseException:
            self._give_up()
            raise
        return self

    def _give_up(self) -> None:
        """It could not be opened."""

    def __enter__(self) -> Self:
        return self.open()


class IteratedTwin(Twin[Source], Generic[Source, T]):
    """A twin with `for`, where the source has `async for`."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        items = self._thread.wait(self._next_items())
        if not items:
            raise StopIteration
        return items[0]

    async def _next_items(self) -> list[T]:
        """The next item in a list, or an empty list at the end: a coroutine cannot raise `StopIteration`."""
        try:
            return [await anext(self._source)]
        except StopAsyncIteration:
            return []


class BlockingMethod(Generic[S, P, R]):
    """A method of a twin: the source's method, run on the thread. Made by `blocking` and `called`."""

    def __init__(
        self,
        method: Callable[..., object],
        run: Callable[..., Coroutine[Any, Any, Any]],
        wrap: Callable[[Any, LoopThread], R] | None,
        *,
        is_inline: bool = False,
    ) -> None:
        self._is_inline = is_inline
        self._run = run
        self.wrap = wrap
        self.__wrapped__ = method
        self.__name__ = method.__name__
        self.__doc__ = _without_async(method.__doc__ or "")

    @overload
    def __get__(self, twin: None, owner: object) -> Self: ...
    @overload
    def __get__(self, twin: Twin[S], owner: object) -> Callable[P, R]: ...

    def __get__(self, twin: Twin[S] | None, owner: object) -> Self | Callable[P, R]:
        if twin is None:
            return self
        source, thread, run, wrap, is_inline = twin._source, twin._thread, self._run, self.wrap, self._is_inline

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if is_inline:
                try:
                    run(twin, *args, **kwargs).send(None)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
            result: R = thread.wait(run(source, *args, **kwargs))
            return result if wrap is None else wrap(result, thread)

        call.__name__, call.__doc__ = self.__name__, self.__doc__
        return call


Async = Callable[Concatenate[S, P], Coroutine[Any, Any, R]]


@overload
def blocking(method: Async[S, P, R]) -> BlockingMethod[S, P, R]: ...
@overload
def blocking(method: Async[S, P, R], wrap: Callable[[R, LoopThread], W]) -> BlockingMethod[S, P, W]: ...
def blocking(
    method: Callable[..., Coroutine[Any, Any, Any]], wrap: Callable[[Any, LoopThread], Any] | None = None
) -> BlockingMethod[Any, Any, Any]:
    """A coroutine method of the source, waited for; `wrap` makes a twin of what it returns."""
    return BlockingMethod(method, method, wrap)


def inline(method: Async[S, P, R]) -> BlockingMethod[S, P, R]:
    """A coroutine method of the source that never waits when it runs with the twin itself, on the caller's thread."""
    return BlockingMethod(method, method, None, is_inline=True)


@overload
def called(method: Callable[Concatenate[S, P], R]) -> BlockingMethod[S, P, R]: ...
@overload
def called(method: Callable[Concatenate[S, P], R], wrap: Callable[[R, LoopThread], W]) -> BlockingMethod[S, P, W]: ...
def called(
    method: Callable[..., Any], wrap: Callable[[Any, LoopThread], Any] | None = None
) -> BlockingMethod[Any, Any, Any]:
    """A plain method of the source, called on its loop; `wrap` makes a twin of what it returns."""

    async def run(*args: object, **kwargs: object) -> object:
        return method(*args, **kwargs)

    return BlockingMethod(method, run, wrap)


class mirrored(Generic[S, R]):  # noqa: N801 - reads as a function where it is used
    """A value of the source, read through its twin."""

    def __init__(self, read: Callable[[S], R]) -> None:
        self._read = read

    @overload
    def __get__(self, twin: None, owner: object) -> Self: ...
    @overload
    def __get__(self, twin: Twin[S], owner: object) -> R: ...

    def __get__(self, twin: Twin[S] | None, owner: object) -> Self | R:
        return self if twin is None else self._read(twin._source)


def parameters_of(source: Callable[P, object]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Declare that a function takes the parameters of `source`."""

    def declare(function: Callable[..., R]) -> Callable[P, R]:
        function.__signature__ = inspect.signature(source)  # type: ignore[attr-defined]
        return function

    return declare


def made_like(source: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Declare that `__init__` takes the parameters of the class `source`."""

    def declare(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        return functools.wraps(source.__init__)(init)

    return declare


def _without_async(text: str) -> str:
    """A docstring of the source, as it reads for its twin."""
    for word, instead in (("async ", ""), ("await ", ""), ("penstock.connect(", "penstock.connect_sync(")):
        text = text.replace(word, instead)
    return text
