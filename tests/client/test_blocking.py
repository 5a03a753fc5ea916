"""The sync client has the surface of the async one, name by name and argument by argument."""

from __future__ import annotations

import inspect

import pytest

from penstock.client import (
    Client,
    Delivery,
    LiveView,
    Subscription,
    SyncClient,
    SyncDelivery,
    SyncLiveView,
    SyncSubscription,
    connect,
    connect_sync,
)
from penstock.client.blocking import blocking
from penstock.client.space import Space
from penstock.client.space_blocking import SpaceSync, SyncFeed, SyncSpaceStream
from penstock.client.space_feed import Feed
from penstock.client.space_stream import SpaceStream

INSIDE = {
    # What a kernel's pipe calls, which is asynchronous itself.
    Client: {"uplink"},
    # What connections, timers and other deliveries call; no business of an application.
    Subscription: {
        "arrived",
        "changed",
        "emit",
        "expired",
        "extend",
        "failed",
        "held",
        "link_lost",
        "lost",
        "renew",
        "reply",
        "resume",
        "settle",
        "sub_id",
    },
    LiveView: {"arrived", "changed", "emit", "expired", "failed", "link_lost", "resume"},
    Delivery: {"check", "head", "lose", "renew_at", "state"},
    Space: {"arrived", "ended", "lost", "room"},
    SpaceStream: {"refused"},
    Feed: {"end", "is_full", "put"},
}
INSTANCE = {
    Client: {"agent"},
    Subscription: {"stream", "credit", "lease_ms", "batch"},
    LiveView: {"view", "addr", "credit", "version", "rows"},
    Delivery: set(),
    Space: {"last_error", "space", "url"},
    SpaceStream: {"id"},
    Feed: {"dropped"},
}
PAIRS = [
    (Client, SyncClient),
    (Subscription, SyncSubscription),
    (LiveView, SyncLiveView),
    (Delivery, SyncDelivery),
    (Space, SpaceSync),
    (SpaceStream, SyncSpaceStream),
    (Feed, SyncFeed),
]


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("source", "twin"), PAIRS)
def test_both_have_the_same_names(source, twin):
    assert public(twin) == (public(source) | INSTANCE[source]) - INSIDE[source]


@pytest.mark.parametrize(("source", "twin"), PAIRS)
def test_both_take_the_same_arguments(source, twin):
    for name in public(twin):
        original = inspect.getattr_static(source, name, None)
        derived = inspect.getattr_static(twin, name)
        if not inspect.isfunction(original) or name in INSTANCE[source]:
            continue
        if isinstance(derived, blocking):
            assert derived.__wrapped__ is original
            continue
        theirs = inspect.signature(original).parameters
        ours = inspect.signature(derived).parameters
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [
            (p.name, p.kind, p.default) for p in theirs.values()
        ], name


def test_connect_and_connect_sync_take_the_same_arguments():
    assert list(inspect.signature(connect).parameters.values()) == list(
        inspect.signature(connect_sync).parameters.values()
    )


def test_both_kinds_of_space_take_the_same_arguments():
    assert list(inspect.signature(Space).parameters.values()) == list(
        inspect.signature(SpaceSync).parameters.values()
    )


def test_nobody_there_raises_and_leaves_no_thread():
    import threading

    from penstock.core.errors import PenstockError

    before = threading.active_count()
    with pytest.raises(PenstockError):
        connect_sync("unix:/nowhere/at/all")
    with pytest.raises(PenstockError):
        SpaceSync("http://127.0.0.1:1", participant="sam").open()
    with pytest.raises(PenstockError):
        SpaceSync("tcp://127.0.0.1:1", participant="sam")
    assert threading.active_count() == before
