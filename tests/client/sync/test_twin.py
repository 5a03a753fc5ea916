"""The base of the sync clients: a loop on a thread, and methods that borrow their signatures."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

from penstock.client.sync.twin import (
    IteratedTwin,
    LoopThread,
    Twin,
    blocking,
    called,
    made_like,
    mirrored,
    parameters_of,
)


class Counter:
    """Counts, asynchronously."""

    def __init__(self, first: int, *, last: int = 3) -> None:
        """Count from `first` to `last`."""
        self.value = first
        self.last = last

    async def add(self, count: int = 1) -> int:
        """Add; `await counter.add()`, best inside `async with`."""
        self.value += count
        return self.value

    def thread(self) -> str:
        return threading.current_thread().name

    async def copy(self) -> Counter:
        return Counter(self.value)

    def __aiter__(self) -> Counter:
        return self

    async def __anext__(self) -> int:
        if self.value >= self.last:
            raise StopAsyncIteration
        return await self.add()


class SyncCounter(IteratedTwin[Counter, int]):
    add = blocking(Counter.add)
    thread = called(Counter.thread)
    value = mirrored[Counter, int](lambda counter: counter.value)

    @made_like(Counter)
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(Counter(*args, **kwargs), LoopThread())


class CopyCounter(Twin[Counter]):
    copy = blocking(Counter.copy, Twin)


@pytest.fixture
def counter():
    counter = SyncCounter(0)
    yield counter
    counter._thread.close()


def test_a_method_runs_on_the_thread_and_returns_its_result(counter):
    assert counter.add() == 1
    assert counter.add(count=5) == 6
    assert counter.value == 6
    assert counter.thread() == "penstock-client" != threading.current_thread().name


def test_a_result_gets_a_twin_on_the_same_thread(counter):
    copy = CopyCounter(counter._source, counter._thread).copy()
    assert isinstance(copy, Twin)
    assert copy._source is not counter._source
    assert copy._thread is counter._thread


def test_iteration_ends_where_the_source_ends(counter):
    assert list(counter) == [1, 2, 3]
    assert list(counter) == []


def test_docstrings_are_those_of_the_source_without_async(counter):
    assert SyncCounter.add.__doc__ == "Add; `counter.add()`, best inside `with`."
    assert (counter.add.__name__, counter.add.__doc__) == ("add", SyncCounter.add.__doc__)


def test_a_constructor_has_the_parameters_of_the_source():
    assert inspect.signature(SyncCounter) == inspect.signature(Counter)
    assert SyncCounter.__init__.__doc__ == Counter.__init__.__doc__
    with pytest.raises(TypeError):
        SyncCounter()


def test_a_function_declares_the_parameters_of_another():
    @parameters_of(Counter)
    def make(*args, **kwargs):
        return Counter(*args, **kwargs)

    assert inspect.signature(make) == inspect.signature(Counter)


def test_an_exception_reaches_the_caller_and_cancels_nothing_else():
    thread = LoopThread()
    try:
        with pytest.raises(ZeroDivisionError):
            thread.call(lambda: 1 // 0)
        assert thread.call(lambda: 7) == 7
    finally:
        thread.close()


def test_closing_ends_the_thread_and_may_be_repeated():
    before = threading.active_count()
    thread = LoopThread()
    # Resolving a host name starts the loop's own pool of threads.
    thread.wait(asyncio.to_thread(lambda: None))
    thread.close()
    thread.close()
    assert threading.active_count() == before
