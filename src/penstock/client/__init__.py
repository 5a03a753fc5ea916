"""The Python SDK: `connect` for asyncio, `connect_sync` for everything else."""

from __future__ import annotations

from penstock.client.blocking import SyncClient, SyncDelivery, SyncLiveView, SyncSubscription, connect_sync
from penstock.client.client import Client, connect
from penstock.client.delivery import Delivery, LeaseLost
from penstock.client.frames import Receipt, Recipient, Redriven, Sent, Settled
from penstock.client.live import Change, LiveView
from penstock.client.subscription import Subscription

__all__ = [
    "Change",
    "Client",
    "Delivery",
    "LeaseLost",
    "LiveView",
    "Receipt",
    "Recipient",
    "Redriven",
    "Sent",
    "Settled",
    "Subscription",
    "SyncClient",
    "SyncDelivery",
    "SyncLiveView",
    "SyncSubscription",
    "connect",
    "connect_sync",
]
