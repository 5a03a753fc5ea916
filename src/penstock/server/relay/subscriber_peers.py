"""The peers of the subscribers' socket: how many subscriptions each holds, and how to disconnect one that holds too many.

libzmq stores every subscription that arrives, granted or refused, about 32 bytes for each byte of its name, until the peer unsubscribes
or disconnects. It has no call that ends one connection of a socket. Each frame carries the descriptor of its connection: the relay shuts
the connection down, and libzmq frees what it stored for the peer.

A subscription and its end cost about 50 us, most of them in libzmq, and a peer may leave and connect again at once. So each address has a rate
for subscriptions to names that no publisher has registered; a stranger knows no others.

The inode of a connection identifies a peer, because descriptors are reused. A peer on a Unix socket has no bound of its own: it belongs
to the owner of the socket, such as the server, which subscribes for all its WebSockets.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import islice

import zmq

from penstock.core.rate_limits import Bucket, Rate
from penstock.server.files.addresses import payer_address

SCANNED_MAX = 64
"""Holders of one name that are checked for the one that disconnected."""


MESSAGES_MAX = 4
"""Requests to resume that one peer may send as messages within a second."""
BURST_PEERS = 4
"""As many peers of an address may subscribe to all that one peer may hold, at once; then as much as one peer may hold each second."""
ADDRESSES_MAX = 10_000
"""Addresses whose rate is counted; then the oldest is forgotten."""
UNIT = 65
"""Bytes of a subscription to a topic; a longer name counts as several subscriptions."""
DROPPED = 64 * 1024
"""Bytes of a peer that are dropped in one call."""
_DROP = socket.MSG_DONTWAIT | getattr(socket, "MSG_TRUNC", 0)  # Linux then copies nothing
_LOST = -1


class SubscriberPeer:
    """One connection."""

    __slots__ = ("address", "count", "descriptor", "inode", "is_bounded", "is_cut", "matched")

    def __init__(self, inode: int, descriptor: int) -> None:
        self.inode = inode
        self.descriptor = descriptor
        self.count = 0
        """Subscriptions that it holds."""
        self.matched: dict[bytes, int] = {}
        """Granted subscriptions by what libzmq matches, which topics may share."""
        self.is_bounded = self.is_cut = False
        self.address = ""
        if descriptor != _LOST:
            with socket.socket(fileno=os.dup(descriptor)) as connection, suppress(OSError):  # it may be gone by now
                self.is_bounded = connection.family != socket.AF_UNIX
                self.address = payer_address(connection.getpeername()[0]) if self.is_bounded else ""

    @property
    def is_connected(self) -> bool:
        try:
            return os.fstat(self.descriptor).st_ino == self.inode
        except OSError:
            return False

    def cut(self) -> None:
        """Shut the connection down; libzmq then closes it. The inode protects a descriptor that is in use again.

        What the peer has sent is dropped first: libzmq would read and store all of it before it sees the end.
        """
        self.is_cut = True
        with suppress(OSError), socket.socket(fileno=os.dup(self.descriptor)) as connection:
            if os.fstat(connection.fileno()).st_ino == self.inode:
                connection.shutdown(socket.SHUT_RDWR)
                while connection.recv(DROPPED, _DROP):
                    pass


class SubscriberPeers:
    """The peers that hold subscriptions, within the bounds for one peer and for all."""

    def __init__(self, peer_max: int, total_max: int) -> None:
        self._peer_max = peer_max
        self._total_max = total_max
        self._peers: dict[int, SubscriberPeer] = {}
        self._holders: dict[bytes, dict[SubscriberPeer, bool]] = {}
        """Who is subscribed to a name, granted or not."""
        self.total = 0
        """Subscriptions of all peers that are not cut."""
        self.cut = {"subscriptions": 0, "rate": 0, "message": 0, "mixed": 0, "memory": 0}
        """Peers that were disconnected, by reason: too many subscriptions, or too many a second; a message that is no request, or too many of them; a subscription
        behind the message of another peer; too much memory."""
        self._rate = Rate.per_second(peer_max, BURST_PEERS * peer_max)
        self._addresses: dict[str, Bucket] = {}
        self._second = 0
        self._senders: dict[int, tuple[SubscriberPeer, int]] = {}
        """Peers that sent messages in this second, and how many."""

    def find(self, frame: zmq.Frame) -> SubscriberPeer | None:
        """The sender of a frame; None if libzmq made it, because a peer disconnected."""
        try:
            descriptor = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:
            return None
        try:
            inode = os.fstat(descriptor).st_ino
            sender = self._senders.get(inode)
            return self._peers.get(inode) or (sender[0] if sender else SubscriberPeer(inode, descriptor))
        except OSError:
            return SubscriberPeer(0, _LOST)

    def add(self, peer: SubscriberPeer, name: bytes, now_us: int, *, is_registered: bool) -> None:
        """A peer subscribes to a name. Over a bound, the peer that holds most is disconnected."""
        holders = self._holders.setdefault(name, {})
        if peer in holders:
            return
        holders[peer] = False
        self._peers[peer.inode] = peer
        peer.count += _units(name)
        if peer.is_cut:
            return
        self.total += _units(name)
        if peer.is_bounded and peer.count > self._peer_max:
            self.disconnect(peer, "subscriptions")
        elif peer.is_bounded and not is_registered and not self._charge(peer.address, now_us, _units(name)):
            self.disconnect(peer, "rate")
        elif self.total > self._total_max:
            bounded = [each for each in self._peers.values() if each.is_bounded and not each.is_cut]
            self.disconnect(max(bounded, key=lambda each: each.count, default=peer), "subscriptions")

    def _charge(self, address: str, now_us: int, count: int) -> bool:
        """Count subscriptions of an address; whether its rate allows them."""
        bucket = self._addresses.get(address)
        if bucket is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                del self._addresses[next(iter(self._addresses))]
            bucket = self._addresses[address] = Bucket(self._rate, now_us)
        bucket.settle(now_us)
        if bucket.room() < count:
            return False
        bucket.debt += count * self._rate.period_us
        return True

    def holds(self, peer: SubscriberPeer, name: bytes) -> bool:
        return not peer.is_cut and peer in self._holders.get(name, ())

    def grant(self, peer: SubscriberPeer, name: bytes) -> bool:
        """Note that a subscription is granted; false if it was before."""
        holders = self._holders[name]
        was, holders[peer] = holders[peer], True
        return not was

    def remove(self, peer: SubscriberPeer | None, name: bytes) -> bool:
        """A peer unsubscribes from a name, or disconnected. True if a granted subscription ends."""
        holders = self._holders.get(name)
        if holders is None:
            return False
        if peer is None or peer not in holders:
            oldest = list(islice(holders, SCANNED_MAX))
            peer = next((each for each in oldest if not each.is_connected), oldest[0] if peer is None else None)
            if peer is None:
                return False
        was_granted = holders.pop(peer)
        if not holders:
            del self._holders[name]
        peer.count -= _units(name)
        if not peer.is_cut:
            self.total -= _units(name)
        if not peer.count and self._peers.get(peer.inode) is peer:
            del self._peers[peer.inode]
        return was_granted

    def is_flood(self, peer: SubscriberPeer, second: int) -> bool:
        """Count a message of a peer; whether it sends too many."""
        if second != self._second:
            self._second, self._senders = second, {}
        count = self._senders.get(peer.inode, (peer, 0))[1] + 1
        self._senders[peer.inode] = (peer, count)
        return count > MESSAGES_MAX

    def disconnect(self, peer: SubscriberPeer, reason: str) -> None:
        """Disconnect a peer. libzmq then unsubscribes it from each name, and drops what waits for it."""
        if not peer.is_cut:
            self.cut[reason] += 1
            self.total -= peer.count
            peer.cut()

    def disconnect_all(self) -> None:
        for peer in list(self._peers.values()):
            self.disconnect(peer, "memory")


def _units(name: bytes) -> int:
    return 1 + len(name) // UNIT
