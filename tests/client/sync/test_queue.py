"""The sync client has the interface of the async one: names, arguments and types."""

from __future__ import annotations

import asyncio
import inspect
import re
import typing

import pytest

from penstock.client import (
    Client,
    Delivery,
    LiveView,
    SendBatch,
    Subscription,
    SyncClient,
    SyncDelivery,
    SyncLiveView,
    SyncSendBatch,
    SyncSubscription,
    connect,
    connect_sync,
)
from penstock.client.queue.delivery import P
from penstock.client.space.client import Space
from penstock.client.space.feed import Feed
from penstock.client.space.stream import SpaceStream
from penstock.client.sync.space import SyncFeed, SyncSpace, SyncSpaceStream
from penstock.client.sync.tokens import SyncTokenPublisher, SyncTokenStream
from penstock.client.sync.twin import BlockingMethod, mirrored
from penstock.client.tokens.publisher import TokenPublisher
from penstock.client.tokens.reader import TokenStream
from tests.client.scripted_peer import peer, run

INSTANCE = {
    Client: {"agent"},
    Subscription: {"stream", "credit", "lease_ms", "batch"},
    LiveView: {"view", "addr", "credit", "version", "rows"},
    Delivery: set(),
    SendBatch: set(),
    Space: {"last_error", "space", "url"},
    SpaceStream: {"id"},
    Feed: {"dropped"},
    TokenStream: {"endpoint"},
    TokenPublisher: {"push"},
}
PAIRS = [
    (Client, SyncClient),
    (SendBatch, SyncSendBatch),
    (Subscription, SyncSubscription),
    (LiveView, SyncLiveView),
    (Delivery, SyncDelivery),
    (Space, SyncSpace),
    (SpaceStream, SyncSpaceStream),
    (Feed, SyncFeed),
    (TokenStream, SyncTokenStream),
    (TokenPublisher, SyncTokenPublisher),
]


TWINS = {source.__name__: twin.__name__ for source, twin in PAIRS} | {
    "AsyncIterator": "Iterator",
    "Handler": "Callable[[SyncDelivery], object]",
    "BatchHandler": "Callable[[list[SyncDelivery]], object]",
}
"""What a word of an asynchronous signature becomes."""
VERBS = {
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.promise("Token streams: publisher and reader", "the sync publisher and reader have the same interface")
@pytest.mark.promise(
    "SDK and command line", "the sync twins match the async clients: names, arguments, types, statements"
)
@pytest.mark.parametrize(("source", "twin"), PAIRS)
def test_both_have_the_same_names(source, twin):
    inside = {"uplink"} if source is Client else set()  # for programs that are asynchronous themselves
    assert public(twin) == (public(source) | INSTANCE[source]) - inside


@pytest.mark.promise(
    "SDK and command line", "the sync twins match the async clients: names, arguments, types, statements"
)
@pytest.mark.parametrize(("source", "twin"), PAIRS)
def test_both_take_the_same_arguments(source, twin):
    for name in public(twin):
        original = inspect.getattr_static(source, name, None)
        derived = inspect.getattr_static(twin, name)
        if not inspect.isfunction(original) or name in INSTANCE[source]:
            continue
        if isinstance(derived, BlockingMethod):
            assert derived.__wrapped__ is original
            returned = inspect.signature(original).return_annotation
            twins = re.sub(r"\w+", lambda found: TWINS.get(found[0], found[0]), returned)
            assert (derived.wrap is not None) == (twins != returned), name
            continue
        assert described(derived) == described(original, TWINS), name


def described(function, words=None):
    """A signature as text: names, kinds, defaults and annotations, with some words exchanged for others."""
    text = str(inspect.signature(function)).replace("'", "").replace("[P]", "")  # a twin's payload is `Any`
    return re.sub(r"\w+", lambda found: (words or {}).get(found[0], found[0]), text)


@pytest.mark.promise(
    "SDK and command line", "the sync twins match the async clients: names, arguments, types, statements"
)
@pytest.mark.parametrize(("source", "twin"), PAIRS)
def test_both_have_values_of_the_same_types(source, twin):
    for name in public(twin):
        derived, original = inspect.getattr_static(twin, name), inspect.getattr_static(source, name, None)
        if isinstance(derived, mirrored) and isinstance(original, property):
            _, declared = typing.get_args(derived.__orig_class__)
            returned = typing.get_type_hints(original.fget)["return"]
            assert declared == (typing.Any if returned is P else returned), name


@pytest.mark.promise(
    "SDK and command line", "the sync twins match the async clients: names, arguments, types, statements"
)
@pytest.mark.parametrize(("source", "twin"), PAIRS)
def test_both_are_used_in_the_same_statements(source, twin):
    for theirs, ours in VERBS.items():
        assert hasattr(source, theirs) == hasattr(twin, ours), ours


@pytest.mark.promise(
    "SDK and command line", "the sync twins match the async clients: names, arguments, types, statements"
)
def test_a_drifted_twin_would_be_noticed():
    class Source:
        async def take(self, count: int = 1) -> Delivery: ...

    class Twin:
        def take(self, count: int = 2) -> SyncDelivery: ...

    class Other:
        def take(self, count: int = 1) -> Delivery: ...

    assert described(Twin.take) != described(Source.take, TWINS)
    assert described(Other.take) != described(Source.take, TWINS)


def test_connect_and_connect_sync_take_the_same_arguments():
    assert list(inspect.signature(connect).parameters.values()) == list(
        inspect.signature(connect_sync).parameters.values()
    )


@pytest.mark.promise("Token streams: publisher and reader", "the sync publisher and reader have the same interface")
@pytest.mark.parametrize(
    ("source", "twin"),
    [(Space, SyncSpace), (TokenStream, SyncTokenStream), (TokenPublisher, SyncTokenPublisher)],
)
def test_both_kinds_are_made_with_the_same_arguments(source, twin):
    assert list(inspect.signature(source).parameters.values()) == list(inspect.signature(twin).parameters.values())


def test_an_unreachable_server_raises_and_leaves_no_thread():
    import threading

    from penstock.core.errors import PenstockError

    before = threading.active_count()
    with pytest.raises(PenstockError):
        connect_sync("unix:/nowhere/at/all")
    with pytest.raises(PenstockError):
        SyncSpace("http://127.0.0.1:1", participant="sam").open()
    with pytest.raises(PenstockError):
        SyncSpace("tcp://127.0.0.1:1", participant="sam")
    assert threading.active_count() == before


def test_a_handler_on_a_thread_that_raises_stop_iteration_has_its_delivery_nacked():
    def use(url):
        with connect_sync(url) as client:
            jobs = client.subscribe("jobs", credit=10)
            jobs.work(lambda delivery: next(iter(())) if delivery.seq == 1 else jobs.close())

    async def go():
        async with peer() as server:
            using = asyncio.ensure_future(asyncio.to_thread(use, server.url))
            line = await server.accept()
            await line.agree()
            line.deliver(1)
            nack = await line.read("nack")
            assert nack["reason"] == "RuntimeError: generator raised StopIteration"
            line.ok(nack)
            line.deliver(2)
            line.ok(await line.read("unsubscribe"))
            await using

    run(go())
