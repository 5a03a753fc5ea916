"""Penstock: a message broker that speaks several agent protocols over one journal.

Names load when they are first used, so `import penstock` costs next to nothing and a client never pays
for the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client import Client, Delivery, LeaseLost, connect, connect_sync
    from penstock.client.space import Space
    from penstock.client.space_blocking import SpaceSync
    from penstock.client.space_wire import Frame, SpaceEnvelope, SpaceError, TargetUnsupported
    from penstock.client.tokens import (
        BrokenStream,
        ChainedStreamHmac,
        Curve,
        GapError,
        SigningKey,
        StreamCancelled,
        StreamFailed,
        StreamOffer,
        TamperedStream,
        TokenPublisher,
        TokenPublisherSync,
        TokenStream,
        TokenStreamSync,
        TruncatedStream,
        answer_offer,
        new_signing_key,
    )
    from penstock.core.errors import PenstockError
    from penstock.server.queue_core import QueueCore

    __version__: str

__all__ = [
    "BrokenStream",
    "ChainedStreamHmac",
    "Client",
    "Curve",
    "Delivery",
    "Frame",
    "GapError",
    "LeaseLost",
    "PenstockError",
    "QueueCore",
    "SigningKey",
    "Space",
    "SpaceEnvelope",
    "SpaceError",
    "SpaceSync",
    "StreamCancelled",
    "StreamFailed",
    "StreamOffer",
    "TamperedStream",
    "TargetUnsupported",
    "TokenPublisher",
    "TokenPublisherSync",
    "TokenStream",
    "TokenStreamSync",
    "TruncatedStream",
    "__version__",
    "answer_offer",
    "connect",
    "connect_sync",
    "new_signing_key",
]

_HOMES = {
    "Client": "penstock.client",
    "Delivery": "penstock.client",
    "LeaseLost": "penstock.client",
    "connect": "penstock.client",
    "connect_sync": "penstock.client",
    "PenstockError": "penstock.core.errors",
    "QueueCore": "penstock.server.queue_core",
    "Space": "penstock.client.space",
    "Frame": "penstock.client.space_wire",
    "SpaceEnvelope": "penstock.client.space_wire",
    "SpaceError": "penstock.client.space_wire",
    "SpaceSync": "penstock.client.space_blocking",
    "TargetUnsupported": "penstock.client.space_wire",
    "BrokenStream": "penstock.client.tokens",
    "ChainedStreamHmac": "penstock.client.tokens",
    "Curve": "penstock.client.tokens",
    "GapError": "penstock.client.tokens",
    "SigningKey": "penstock.client.tokens",
    "StreamCancelled": "penstock.client.tokens",
    "StreamFailed": "penstock.client.tokens",
    "StreamOffer": "penstock.client.tokens",
    "TamperedStream": "penstock.client.tokens",
    "TokenPublisher": "penstock.client.tokens",
    "TokenPublisherSync": "penstock.client.tokens",
    "TokenStream": "penstock.client.tokens",
    "TokenStreamSync": "penstock.client.tokens",
    "TruncatedStream": "penstock.client.tokens",
    "answer_offer": "penstock.client.tokens",
    "new_signing_key": "penstock.client.tokens",
}


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
    else:
        raise AttributeError(f"module `penstock` has no attribute `{name}`")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
