"""Penstock: a message broker that speaks several agent protocols over one journal.

A name loads its module when it is first used, so `import penstock` is cheap and a client never loads the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# ruff: noqa: F403 - the star imports tell type checkers what `_EXPORTS` tells the interpreter
if TYPE_CHECKING:
    from penstock.client import *
    from penstock.client.space import *
    from penstock.client.sync.space import *
    from penstock.client.sync.tokens import *
    from penstock.client.tokens import *
    from penstock.core.errors import Forbidden as Forbidden
    from penstock.core.errors import HandlerFailed as HandlerFailed
    from penstock.core.errors import IdConflict as IdConflict
    from penstock.core.errors import InvalidRequest as InvalidRequest
    from penstock.core.errors import LeaseLost as LeaseLost
    from penstock.core.errors import NotFound as NotFound
    from penstock.core.errors import PenstockError as PenstockError
    from penstock.core.errors import RateLimited as RateLimited
    from penstock.core.errors import StreamFull as StreamFull
    from penstock.core.errors import Timeout as Timeout
    from penstock.core.errors import Unauthorized as Unauthorized
    from penstock.core.errors import Unavailable as Unavailable
    from penstock.core.errors import Unreachable as Unreachable
    from penstock.core.queue.policy import Policy as Policy
    from penstock.core.queue.policy import Retry as Retry
    from penstock.core.rate_limits import Rate as Rate
    from penstock.server.embedded import QueueCore as QueueCore

    __version__: str

_EXPORTS = {
    "penstock.client": (
        "SendBatch Change Client ConsumerFigures Delivery Dropped Explained LiveView PeekedRow Place Purged Reason Receipt "
        "Recipient Redriven Sent Settled Stats StreamMetrics Subscription SyncSendBatch SyncClient SyncDelivery "
        "SyncLiveView SyncSubscription connect connect_sync"
    ),
    "penstock.client.space": ("Feed Frame Invitation Space SpaceEnvelope SpaceError SpaceStream TargetUnsupported"),
    "penstock.client.sync.space": "SyncFeed SyncSpace SyncSpaceStream",
    "penstock.client.sync.tokens": "SyncTokenPublisher SyncTokenStream",
    "penstock.client.tokens": (
        "Agreement Answer Batching BrokenStream ChainedStreamHmac Curve GapError LocalRelay "
        "RetentionOptions RetryOptions SigningKey StreamCancelled StreamFailed StreamOffer TamperedStream "
        "TokenPublisher TokenStream TruncatedStream answer_offer answer_offer_with_key load_signing_key "
        "local_relay new_signing_key"
    ),
    "penstock.core.errors": (
        "Forbidden HandlerFailed IdConflict InvalidRequest LeaseLost NotFound PenstockError RateLimited StreamFull Timeout "
        "Unauthorized Unavailable Unreachable"
    ),
    "penstock.core.queue.policy": "Policy Retry",
    "penstock.core.rate_limits": "Rate",
    "penstock.server.embedded": "QueueCore",
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
_SUBMODULES = ("spark", "testing")
"""Submodules that load as attributes: `penstock.testing.serve()` needs only `import penstock`."""
_RENAMED = {
    "Keeping": "RetentionOptions",
    "Patience": "RetryOptions",
    "SpaceSync": "SyncSpace",
    "TokenPublisherSync": "SyncTokenPublisher",
    "TokenStreamSync": "SyncTokenStream",
}
"""Names of the previous version, which work for one version more."""

__all__ = sorted((*_HOMES, "__version__"))  # noqa: PLE0605 - type checkers read the star imports above


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:
        return "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        import warnings

        new = _RENAMED[name]
        warnings.warn(f"`penstock.{name}` is now `penstock.{new}`", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(_HOMES[new]), new)
    if name == "__version__":
        value: Any = _version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"penstock.{name}")
    else:
        raise AttributeError(f"module `penstock` has no attribute `{name}`")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
