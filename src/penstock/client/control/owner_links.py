"""One connection to each owner of shards, so that what a client sends to a cluster takes no extra hop.

The node that the client is connected to is its *home*. It says where the owner of each shard is, and again when that changes. A request
goes to the owner of its stream over a connection of its own, once there is one; everything else goes home, and the node forwards it. So a
wrong or old map costs a hop and never an error. Requests for one stream keep their order: while some are under way, further ones take
the same connection.

A node that dies or stops answers nothing. Its connection then goes to another node, and requests that are safe to repeat are sent again
there. Without a cluster there is no map, and nothing here is used.

The addresses come from a server, and each gets the token of the client. So the map is used only if the client asked for it, which it does
over plain TCP; the home, which got the same token first, can then name doors of the same kind and no others. A home on the loopback
interface may be the near end of a tunnel, so with a token it can name doors on that interface only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import Raw, Struct

from penstock.client import address
from penstock.client.address import Address
from penstock.client.control.connection import ControlConnection
from penstock.core.cluster.status import OwnerMap
from penstock.core.errors import PenstockError
from penstock.core.placement import shard_of, stream_key

DIAL_AGAIN_S = 10.0
"""After a node could not be reached, its streams go home for this long."""
PROBE_S = 3.0
"""How long a node may take to greet a new connection when the owners have changed; else its connections go to another one."""
MOVE_MAX_S = 30.0
"""How long requests are repeated while a shard has no owner: longer than replacing a node and a NATS server takes."""
MOVED = ("Unreachable", "Draining")
"""Errors of a request whose shard moves, or whose node ends."""

Dial = Callable[[Address], Awaitable[ControlConnection]]
Placed = Callable[[ControlConnection], object]


class StreamRoute(Struct):
    """The connection that the requests for one stream take."""

    connection: ControlConnection
    under_way: int = 0


class OwnerLinks:
    """The connections of one client."""

    def __init__(self, home: ControlConnection, dial: Dial, probe: Dial) -> None:
        """`dial` makes a connection that reconnects like `home`; `probe` makes one that does not and gives up early."""
        self._home = home
        self._dial = dial
        self._probe = probe
        self._stays_local = home.has_token and home.address.is_loopback
        self._places: dict[str, Address] = {}
        """The nodes of the map that the token may go to."""
        self._links: dict[str, ControlConnection] = {}
        self._dialing: dict[str, asyncio.Task[None]] = {}
        self._refused_until: dict[str, float] = {}
        self._routes: dict[str, StreamRoute] = {}
        self._probing: dict[ControlConnection, asyncio.Task[None]] = {}
        self.map: OwnerMap | None = None
        """Where the owners are; None without a cluster."""
        home.on_owners = self._changed
        if home.wants_owners and home.hello.owners is not None:
            self._changed(home.hello.owners)

    # For the client

    async def request(self, stream: str, body: bytes, *, is_repeatable: bool, timeout_s: float | None = None) -> Raw:
        """Send a request about a stream and wait for its result. Raises PenstockError."""
        if self.map is None:
            return await self._home.request(body, is_repeatable=is_repeatable, timeout_s=timeout_s)
        route = self._routes.get(stream)
        if route is None:
            route = self._routes[stream] = StreamRoute(self.of(stream))
        route.under_way += 1
        try:
            return await route.connection.request(body, is_repeatable=is_repeatable, timeout_s=timeout_s)
        finally:
            route.under_way -= 1
            if not route.under_way:
                del self._routes[stream]

    def of(self, stream: str) -> ControlConnection:
        """The best connection for a stream now; begins to connect to its owner."""
        node = self._owner(stream)
        link = None if node is None else self._links.get(node)
        if link is not None and link.is_ready:
            return link
        if node is not None and link is None:
            self._connect(node)
        return self._home

    def place(self, stream: str, placed: Placed, failed: Callable[[PenstockError], object]) -> None:
        """Call back with the connection for something that stays, once the owner is reached or cannot be."""
        connection = self.of(stream)
        node = self._owner(stream)
        dialing = None if node is None else self._dialing.get(node)
        if dialing is None:
            placed(connection)
            return

        def dialed(_: asyncio.Task[None]) -> None:
            try:
                placed(self.of(stream))
            except PenstockError as error:  # the client was closed meanwhile
                failed(error)

        dialing.add_done_callback(dialed)

    def may_have_moved(self, error: PenstockError, until_s: float) -> bool:
        """Whether a shard that moves, or a node that ended, may be the cause, so that a request is sent again."""
        return self.map is not None and error.code in MOVED and self._home.loop.time() < until_s

    async def close(self) -> None:
        self.map = None
        tasks = [*self._dialing.values(), *self._probing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()

    # Inside

    def _owner(self, stream: str) -> str | None:
        """The node that owns the shard of a stream, unless that is the home."""
        if self.map is None:
            return None
        shard = shard_of(stream_key(stream), self.map.shards)
        node = self.map.map[shard] if shard < len(self.map.map) else None
        place = None if node is None else self._places.get(node)
        return None if place is None or place.url == self._home.address.url else node

    def _safe_place(self, url: str) -> Address | None:
        """The address of a node, unless the token must not go there."""
        with suppress(PenstockError):
            place = address.parse(url)
            if place.kind == "tcp" and (place.is_loopback or not self._stays_local):
                return place
        return None

    def _connect(self, node: str) -> None:
        loop = self._home.loop
        if node in self._dialing or self._refused_until.get(node, 0.0) > loop.time():
            return
        task = self._dialing[node] = loop.create_task(self._open(node, self._places[node]))
        task.add_done_callback(lambda _: self._dialing.pop(node, None))

    async def _open(self, node: str, place: Address) -> None:
        try:
            link = await self._dial(place)
        except PenstockError:
            self._refused_until[node] = self._home.loop.time() + DIAL_AGAIN_S
            return
        link.on_owners = self._changed
        self._links[node] = link
        self._name_others()

    def _changed(self, owners: OwnerMap) -> None:
        """A node sent the map."""
        self.map = owners
        places = {node: self._safe_place(url) for node, url in owners.nodes.items()}
        self._places = {node: place for node, place in places.items() if place is not None}
        self._name_others()
        for connection in (self._home, *self._links.values()):
            if connection.is_ready and connection not in self._probing:
                task = self._probing[connection] = self._home.loop.create_task(self._check(connection))
                task.add_done_callback(lambda _, one=connection: self._probing.pop(one, None))  # type: ignore[misc]
        for node, link in list(self._links.items()):
            if link.has_failed or (link.is_idle and link.address.url != owners.nodes.get(node)):
                del self._links[node]
                self._home.loop.create_task(link.close()).add_done_callback(_ignore)

    def _name_others(self) -> None:
        """Where a connection goes whose node is gone."""
        for connection in (self._home, *self._links.values()):
            connection.others = [*self._places.values()]

    async def _check(self, connection: ControlConnection) -> None:
        """A change may mean that a node has stopped without closing its connections."""
        if connection.is_idle:
            return
        try:
            found = await self._probe(connection.address)
        except PenstockError as error:
            if error.retryable:
                connection.give_up_transport("the node does not answer")
        else:
            await found.close()


def _ignore(closing: asyncio.Task[None]) -> None:
    if not closing.cancelled():
        closing.exception()
