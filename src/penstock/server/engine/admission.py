"""Which connections are accepted: there must be a descriptor for them, and few of an address may be unauthenticated.

When an address has too many, its oldest unauthenticated connection makes room for a new one.

Some descriptors stay free for the journal, for sealing and for child processes. When connections have taken all others, the oldest
that is not authenticated makes room for a new one; if there is none, the new one is refused. A few more descriptors are for
peers on this machine, so that an operator can still connect; a trusted proxy speaks for other machines and does not get them.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from time import monotonic

import msgspec

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.server.files.addresses import is_ip, is_loopback, payer_address
from penstock.server.logging import logs

RESERVED = 80
"""Descriptors for files, child processes and the relay's sockets; a running server needs about half of them."""
LOCAL = 16
"""Descriptors more for peers on this machine."""
CLOSING = 16
"""Connections that have made room and are not closed yet."""
LEAST = 16
"""Connections that are accepted whatever the limit of the process."""
MOST = 1_048_576
"""The highest limit that is asked for."""
QUIET_S = 1.0
"""Time between two log lines about refused connections."""


def descriptor_limit(*, raised: bool = False) -> int:
    """How many descriptors this process may open; or what that can be raised to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    return max(soft, most) if raised else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_limit(raised=True), hard))
    except (OSError, ValueError) as error:  # some systems have a lower limit of their own
        logs.warning("descriptors.limit", error=str(error), limit=descriptor_limit())


def connections_of(limit: int) -> int:
    """How many connections a process with this limit accepts from other machines."""
    return max(limit - RESERVED - LOCAL - CLOSING, LEAST)


def _closed() -> None:
    """What is left to close of a connection that has ended; its transport is free to go."""


class AdmittedConnection(msgspec.Struct, eq=False):
    """A connection that was accepted."""

    _admission: AdmissionControl
    address: str
    close: Callable[[], None]

    def known(self) -> None:
        """The peer is authenticated, or may do without."""
        self._admission.forget(self)

    def left(self) -> None:
        self._admission.forget(self)
        self._admission.open -= 1
        self.close = _closed


class AdmissionControl:
    """The connections of all listeners."""

    def __init__(self, limits: Callable[[], Limits], is_proxy: Callable[[str], bool]) -> None:
        self._limits = limits
        self._is_proxy = is_proxy
        self._unauthenticated: dict[AdmittedConnection, None] = {}
        """Unauthenticated ones, the oldest first."""
        self._by_address: dict[str, dict[AdmittedConnection, None]] = {}
        """The same by address."""
        self._logged_s = 0.0
        self.room = connections_of(descriptor_limit())
        self.open = 0
        self.refused = {"address": 0, "descriptors": 0, "evicted": 0}
        """Connections refused, or closed before they were authenticated, by reason."""
        if limits().links_max > 2 * self.room:
            note = "`penstock doctor` says how to raise the limit of open files"
            logs.event("descriptors.few", connections=self.room, links_max=limits().links_max, note=note)

    def admit(self, peer: str, close: Callable[[], None]) -> AdmittedConnection | Refusal:
        """Accept a connection, or say why not; `close` ends it at once."""
        address = payer_address(peer)
        here, is_proxy = self._by_address.get(address, {}), is_ip(peer) and self._is_proxy(peer)
        above = self.open - self.room - LOCAL * (not is_proxy and (not is_ip(peer) or is_loopback(peer)))
        is_full = len(here) >= self._limits().unauthenticated_per_address_max and is_ip(peer) and not is_proxy
        if is_full:
            why = f"`{address}` has {len(here)} connections that are not authenticated"
            self._evict(next(iter(here)), "address", f"{why}, so the oldest made room for another")
        if above >= 0 and not (above < CLOSING and (is_full or self._make_room())):
            return self._refuse("descriptors", f"{self.open} connections leave no descriptor for another one")
        connection = AdmittedConnection(self, address, close)
        self.open += 1
        self._unauthenticated[connection] = None
        self._by_address.setdefault(address, {})[connection] = None
        return connection

    def forget(self, connection: AdmittedConnection) -> None:
        """It no longer counts as unauthenticated."""
        if self._unauthenticated.pop(connection, self) is self:
            return
        del self._by_address[connection.address][connection]
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def _make_room(self) -> bool:
        oldest = next(iter(self._unauthenticated), None)
        if oldest is None:
            return False
        why = f"a connection of `{oldest.address}` was not authenticated and made room for another"
        self._evict(oldest, "evicted", why)
        return True

    def _evict(self, connection: AdmittedConnection, reason: str, message: str) -> None:
        self._refuse(reason, message)
        self.forget(connection)
        connection.close()

    def _refuse(self, reason: str, message: str) -> Refusal:
        self.refused[reason] += 1
        if monotonic() - self._logged_s > QUIET_S:
            self._logged_s = monotonic()
            logs.warning("conn.refused", reason=reason, note=message, counts=self.refused)
        return Refusal("QuotaExceeded", message, retry_after_ms=1_000)
