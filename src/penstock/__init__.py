"""Penstock: a message broker that speaks several agent protocols over one journal.

Names load when they are first used, so `import penstock` costs next to nothing and a client never pays
for the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client import (
        Change,
        Client,
        Delivery,
        LeaseLost,
        LiveView,
        Receipt,
        Recipient,
        Redriven,
        Sent,
        Settled,
        Subscription,
        SyncClient,
        SyncDelivery,
        SyncLiveView,
        SyncSubscription,
        connect,
        connect_sync,
    )
    from penstock.client.space.client import Invitation, Space
    from penstock.client.space.feed import Feed
    from penstock.client.space.messages import Frame, SpaceEnvelope, SpaceError, TargetUnsupported
    from penstock.client.space.stream import SpaceStream
    from penstock.client.sync.space import SpaceSync, SyncFeed, SyncSpaceStream
    from penstock.client.sync.tokens import TokenPublisherSync, TokenStreamSync
    from penstock.client.tokens import (
        Agreement,
        Answer,
        Batching,
        BrokenStream,
        ChainedStreamHmac,
        Curve,
        GapError,
        Keeping,
        LocalRelay,
        Patience,
        SigningKey,
        StreamCancelled,
        StreamFailed,
        StreamOffer,
        TamperedStream,
        TokenPublisher,
        TokenStream,
        TruncatedStream,
        answer_offer,
        answer_offer_with_key,
        load_signing_key,
        local_relay,
        new_signing_key,
    )
    from penstock.core.errors import PenstockError
    from penstock.server.embedded import QueueCore

    __version__: str

__all__ = [
    "Agreement",
    "Answer",
    "Batching",
    "BrokenStream",
    "ChainedStreamHmac",
    "Change",
    "Client",
    "Curve",
    "Delivery",
    "Feed",
    "Frame",
    "GapError",
    "Invitation",
    "Keeping",
    "LeaseLost",
    "LiveView",
    "LocalRelay",
    "Patience",
    "PenstockError",
    "QueueCore",
    "Receipt",
    "Recipient",
    "Redriven",
    "Sent",
    "Settled",
    "SigningKey",
    "Space",
    "SpaceEnvelope",
    "SpaceError",
    "SpaceStream",
    "SpaceSync",
    "StreamCancelled",
    "StreamFailed",
    "StreamOffer",
    "Subscription",
    "SyncClient",
    "SyncDelivery",
    "SyncFeed",
    "SyncLiveView",
    "SyncSpaceStream",
    "SyncSubscription",
    "TamperedStream",
    "TargetUnsupported",
    "TokenPublisher",
    "TokenPublisherSync",
    "TokenStream",
    "TokenStreamSync",
    "TruncatedStream",
    "__version__",
    "answer_offer",
    "answer_offer_with_key",
    "connect",
    "connect_sync",
    "load_signing_key",
    "local_relay",
    "new_signing_key",
]

_HOMES = {
    "Change": "penstock.client",
    "Client": "penstock.client",
    "Delivery": "penstock.client",
    "LeaseLost": "penstock.client",
    "LiveView": "penstock.client",
    "Receipt": "penstock.client",
    "Recipient": "penstock.client",
    "Redriven": "penstock.client",
    "Sent": "penstock.client",
    "Settled": "penstock.client",
    "Subscription": "penstock.client",
    "SyncClient": "penstock.client",
    "SyncDelivery": "penstock.client",
    "SyncLiveView": "penstock.client",
    "SyncSubscription": "penstock.client",
    "connect": "penstock.client",
    "connect_sync": "penstock.client",
    "Invitation": "penstock.client.space.client",
    "Space": "penstock.client.space.client",
    "SpaceSync": "penstock.client.sync.space",
    "SyncFeed": "penstock.client.sync.space",
    "SyncSpaceStream": "penstock.client.sync.space",
    "Feed": "penstock.client.space.feed",
    "SpaceStream": "penstock.client.space.stream",
    "Frame": "penstock.client.space.messages",
    "SpaceEnvelope": "penstock.client.space.messages",
    "SpaceError": "penstock.client.space.messages",
    "TargetUnsupported": "penstock.client.space.messages",
    "Agreement": "penstock.client.tokens",
    "Answer": "penstock.client.tokens",
    "Batching": "penstock.client.tokens",
    "BrokenStream": "penstock.client.tokens",
    "ChainedStreamHmac": "penstock.client.tokens",
    "Curve": "penstock.client.tokens",
    "GapError": "penstock.client.tokens",
    "Keeping": "penstock.client.tokens",
    "LocalRelay": "penstock.client.tokens",
    "Patience": "penstock.client.tokens",
    "SigningKey": "penstock.client.tokens",
    "StreamCancelled": "penstock.client.tokens",
    "StreamFailed": "penstock.client.tokens",
    "StreamOffer": "penstock.client.tokens",
    "TamperedStream": "penstock.client.tokens",
    "TokenPublisher": "penstock.client.tokens",
    "TokenPublisherSync": "penstock.client.sync.tokens",
    "TokenStream": "penstock.client.tokens",
    "TokenStreamSync": "penstock.client.sync.tokens",
    "TruncatedStream": "penstock.client.tokens",
    "answer_offer": "penstock.client.tokens",
    "answer_offer_with_key": "penstock.client.tokens",
    "load_signing_key": "penstock.client.tokens",
    "local_relay": "penstock.client.tokens",
    "new_signing_key": "penstock.client.tokens",
    "PenstockError": "penstock.core.errors",
    "QueueCore": "penstock.server.embedded",
}


_MODULES = ("spark", "testing")
"""What `penstock.testing.serve()` needs no import of its own for."""


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:
        return "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"penstock.{name}")
    else:
        raise AttributeError(f"module `penstock` has no attribute `{name}`")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
