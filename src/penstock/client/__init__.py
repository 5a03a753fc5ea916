"""The Python SDK: `connect` for asyncio, `connect_sync` for everything else."""

from __future__ import annotations

from penstock.client.control.frames import Receipt, Recipient, Sent, Settled
from penstock.client.queue.batch import SendBatch
from penstock.client.queue.client import Client
from penstock.client.queue.connect import connect
from penstock.client.queue.delivery import Delivery
from penstock.client.queue.live_view import Change, LiveView
from penstock.client.queue.subscription import Subscription
from penstock.client.sync.queue import (
    SyncClient,
    SyncDelivery,
    SyncLiveView,
    SyncSendBatch,
    SyncSubscription,
    connect_sync,
)
from penstock.dialects.courier.wire.answers import (
    ConsumerFigures,
    Dropped,
    Explained,
    PeekedRow,
    Place,
    Purged,
    Reason,
    Redriven,
    Stats,
    StreamMetrics,
)

__all__ = [
    "Change", "Client", "ConsumerFigures", "Delivery", "Dropped", "Explained", "LiveView", "PeekedRow", "Place",
    "Purged", "Reason", "Receipt", "Recipient", "Redriven", "SendBatch", "Sent", "Settled", "Stats", "StreamMetrics",
    "Subscription", "SyncClient", "SyncDelivery", "SyncLiveView", "SyncSendBatch", "SyncSubscription", "connect",
    "connect_sync",
]  # fmt: skip
