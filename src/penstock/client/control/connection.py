"""One Control v1 connection, which survives its transports: requests, answers, reconnection.

Owns the transport, the hello and the routing of deliveries. A request is a frame without its last brace; it gets its `reqId` here. Lines
written in one loop turn leave in one write.

Invariants: after a reconnect, a repeatable request is sent again under the same `reqId`; any other request that was sent fails as
`Unreachable`, because it is unknown whether the server executed it. A request that was not sent waits for a transport, or for its deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import cycle

import msgspec
from msgspec import Raw

from penstock.client.address import Address, bad_token, reason_of, unreachable, wrong_protocol
from penstock.client.control.frames import (
    DeliverFrame,
    Error,
    LiveFrame,
    Ok,
    OwnersFrame,
    ServerHello,
    decode_frame,
    head,
)
from penstock.client.control.listener import FrameListener
from penstock.client.control.pending import PendingRequest, PendingRequests
from penstock.client.control.raw_connection import RawConnection
from penstock.client.control.transport import LineTransport, close_transport, open_transport
from penstock.core.cluster.status import OwnerMap
from penstock.core.errors import PenstockError, Refusal, Unauthorized

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 5.0
AGAIN = "it is unknown whether the server executed it; the client reconnects, so repeat it if that does no harm"
"""The hint when a connection is lost during a request."""
CLOSE_S = 2.0
"""How long `close` waits for the server to read the last lines."""


class ControlConnection:
    """Requests and answers over the current transport."""

    def __init__(
        self,
        address: Address,
        token: str | None = None,
        *,
        agent: str | None = None,
        timeout_s: float = 30.0,
        connect_timeout_s: float = 10.0,
        reconnect: bool = True,
        wants_owners: bool = False,
    ) -> None:
        self.address = address
        self.others: list[Address] = []
        """Where to reconnect when that address does not answer: other nodes of its cluster."""
        self.on_owners: Callable[[OwnerMap], object] | None = None
        """Called when the owners of a cluster's shards change, and after each reconnect."""
        self.wants_owners = wants_owners
        """Whether the client asked for owners; only then is what a server says about them used."""
        self.hello = ServerHello()
        self.loop = asyncio.get_running_loop()
        self.reconnects = 0
        """How often the connection was lost and re-established."""
        self.unread_frames = 0
        """Frames of an unknown kind, which a newer server may send."""
        self._token = token
        self._agent = agent
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._may_reconnect = reconnect
        self._requests = PendingRequests(self.loop, self._late)
        self._requests.is_transport_paused = lambda: self._transport is not None and self._transport.is_paused
        self._listeners: dict[str, FrameListener] = {}
        self._no_listener = FrameListener(self, "")
        """Ignores the frames of a subscription that has ended."""
        self._marked: dict[FrameListener, None] = {}
        self._out: list[bytes] = []
        self._is_flush_due = False
        self._transport: LineTransport | None = None
        self._is_ready = False
        self._is_hanging = False
        self._greeting: asyncio.Future[ServerHello] | None = None
        self._last_error: PenstockError | None = None
        self._failure: PenstockError | None = None
        self._reconnecting: asyncio.Task[None] | None = None

    # -- requests

    async def request(self, body: bytes, *, is_repeatable: bool, timeout_s: float | None = None) -> Raw:
        """Send a frame and wait for its result. Raises PenstockError."""
        if self._requests.is_full() and self._failure is None:
            await self._requests.room()
        return await self.submit(body, is_repeatable=is_repeatable, timeout_s=timeout_s)

    def submit(
        self, body: bytes, *, is_repeatable: bool = False, timeout_s: float | None = None
    ) -> asyncio.Future[Raw]:
        """Send a frame at the end of this loop turn, without waiting for room."""
        future: asyncio.Future[Raw] = self.loop.create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
            return future
        if timeout_s is None:
            timeout_s = self._timeout_s
        pending = self._requests.add(body, future, repeat=is_repeatable, timeout_s=timeout_s)
        if self._is_ready and not future.done():
            self._send(pending)
        return future

    def mark(self, listener: FrameListener) -> None:
        """Have `listener._emit()` called at the end of this loop turn."""
        self._marked[listener] = None
        self._flush_soon()

    def _send(self, pending: PendingRequest) -> None:
        pending.sends += 1
        self._out.append(pending.line)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._is_ready:
            for listener in list(self._marked):
                listener._emit()
        self._marked.clear()
        self._is_flush_due = False
        if self._out and self._transport is not None:
            self._transport.send_lines(self._out)
            self._out = []

    def _late(self) -> PenstockError:
        if self._is_ready:
            hint = "retry, or connect with a longer `timeout`"
            return PenstockError(Refusal("Timeout", "the server did not answer in time", hint=hint))
        return unreachable(f"no connection to {self.address.url} in time")

    # -- for the transport

    def lines_received(self, lines: list[bytes]) -> None:
        for line in lines:
            if not line:
                continue
            try:
                frame = decode_frame(line)
            except msgspec.ValidationError:
                self.unread_frames += 1
                continue
            except msgspec.DecodeError:
                foreign = PenstockError(wrong_protocol(self.address.url))
                if self._greeting is not None and not self._greeting.done():
                    self._greeting.set_exception(foreign)
                if self._transport is not None:
                    self._transport.abort(foreign.message)
                return
            if isinstance(frame, DeliverFrame):
                self._listeners.get(frame.sub_id, self._no_listener)._arrived(frame)
            elif isinstance(frame, Ok):
                is_hello = not self._requests.answered(frame.req_id, frame.result) and frame.req_id == "hello"
                if is_hello and self._greeting is not None and not self._greeting.done():
                    self._greeting.set_result(msgspec.json.decode(frame.result, type=ServerHello))
            elif isinstance(frame, Error):
                self._refused(frame)
            elif isinstance(frame, OwnersFrame):
                self._note_owners(frame.owners)
            elif isinstance(frame, LiveFrame):
                self._listeners.get(frame.sub_id, self._no_listener)._changed(frame)
            else:
                self._listeners.get(frame.sub_id, self._no_listener)._expired(frame)

    def _note_owners(self, owners: OwnerMap) -> None:
        if self.wants_owners and self.on_owners is not None:
            self.on_owners(owners)

    def _refused(self, frame: Error) -> None:
        error = frame.exception()
        if self._requests.refused(frame.req_id, error):
            return
        if frame.req_id not in {"req", "hello"}:
            return  # another error for a request with several parts
        listener = self._listeners.get(frame.ref or "")
        if listener is not None:
            self._evicted(listener, error)
            return
        # Not an answer: most likely the reason why the server is about to close the connection.
        self._last_error = error
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(error)

    def _evicted(self, listener: FrameListener, error: PenstockError) -> None:
        """The server ended a subscription; subscribe again if the error is retryable."""
        if error.retryable:
            listener._disconnected(error.refusal.message)
            listener._resume()
        else:
            self.detach(listener)
            listener._failed(error)

    def transport_writable(self) -> None:
        self._requests.admit()

    def transport_lost(self, reason: str) -> None:
        was_ready, self._is_ready = self._is_ready, False
        self._transport = None
        self._out = []
        if self._last_error is not None:
            reason = f"{reason} ({self._last_error.code}: {self._last_error.refusal.message})"
        hint = AGAIN if self._may_reconnect else None
        error = unreachable(f"the connection to {self.address.url} was lost: {reason}", hint)
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(error)
        if not was_ready:
            return
        for listener in list(self._listeners.values()):
            listener._disconnected(reason)
        if self._may_reconnect:
            self._requests.disconnected(error)
            self._reconnecting = self.loop.create_task(self._reconnect())
        else:
            self._end(error)

    # -- connecting and closing

    async def open(self) -> None:
        """Connect for the first time. Raises PenstockError when that fails."""
        try:
            await self._establish()
        except PenstockError as error:
            self._failure = error
            raise

    async def _establish(self) -> None:
        self._last_error = None
        greeting: asyncio.Future[ServerHello] = self.loop.create_future()
        self._greeting = greeting
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                self._transport = await open_transport(self.address, self, self._token)
                hello = head(
                    "hello",
                    version="v1",
                    features=[],
                    token=self._token,
                    agent=self._agent,
                    owners=self.wants_owners or None,
                )
                self._transport.send_lines([hello + b',"reqId":"hello"}\n'])
                self.hello = await greeting
        except TimeoutError:
            self._abandon_transport()
            raise unreachable(f"{self.address.url} did not answer in time") from None
        except Unauthorized:
            self._abandon_transport()
            raise PenstockError(bad_token(self.address.url, self._token)) from None
        except OSError as error:
            self._abandon_transport()
            raise unreachable(f"cannot connect to {self.address.url}: {reason_of(error)}") from error
        except BaseException:
            self._abandon_transport()
            raise
        finally:
            self._greeting = None
            if not greeting.done():
                greeting.cancel()
            elif not greeting.cancelled():
                greeting.exception()  # mark it as retrieved: it was raised above
        if self._transport is None:
            raise unreachable(f"{self.address.url} closed the connection after hello")
        if self.hello.owners is not None:
            self._note_owners(self.hello.owners)
        again = self._requests.waiting()
        self._is_ready = True
        for listener in list(self._listeners.values()):
            listener._resume()
        for pending in again:
            self._send(pending)
        self._requests.admit()

    @property
    def has_token(self) -> bool:
        """Whether every server that this connects to gets a token."""
        return self._token is not None

    @property
    def is_ready(self) -> bool:
        """Whether requests are sent at once."""
        return self._is_ready

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its answer and nothing is subscribed."""
        return not self._listeners and not self._requests.waiting()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended for good."""
        return self._failure is not None

    def give_up_transport(self, reason: str) -> None:
        """Cut the connection, as if it were lost, and reconnect, best to another node."""
        transport = self._transport
        if transport is not None and self._is_ready:
            self._is_hanging = True
            transport.abort(reason)

    def _abandon_transport(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abandon()

    async def _reconnect(self) -> None:
        delay_s = BACKOFF_FIRST_S
        places = [self.address, *(place for place in self.others if place != self.address)]
        if self._is_hanging:  # it would take the connection and say nothing
            places = [*places[1:], places[0]]
            self._is_hanging = False
        for place in cycle(places):
            # Full jitter: clients that lost the same server must not reconnect at the same time.
            await asyncio.sleep(random.uniform(0, delay_s))
            if self._failure is not None:
                return
            self.address = place
            try:
                await self._establish()
            except PenstockError as error:
                if not error.retryable and place == places[0]:
                    self._end(error)
                    return
                if place == places[-1]:
                    delay_s = min(2 * delay_s, BACKOFF_MAX_S)
            else:
                self.reconnects += 1
                return

    async def uplink(self) -> RawConnection:
        """Open another connection to the same server, with the same token, for raw Control v1 lines."""
        return await RawConnection.open(self.address, self._token)

    def attach(self, listener: FrameListener) -> None:
        """Route deliveries to a subscription and open it, now or after the reconnect."""
        if self._failure is not None:
            raise self._failure
        self._listeners[listener._sub_id] = listener
        if self._is_ready:
            listener._resume()

    def detach(self, listener: FrameListener) -> None:
        self._listeners.pop(listener._sub_id, None)
        self._marked.pop(listener, None)

    def _end(self, error: PenstockError) -> None:
        self._failure = error
        self._is_ready = False
        self._requests.fail_all(error)
        for listener in list(self._listeners.values()):
            listener._failed(error)

    async def close(self) -> None:
        """Send what is written, then close. Pending requests fail as `Unreachable`."""
        if self._is_ready:
            self._flush()
        if self._failure is None:
            self._end(unreachable("the client was closed", "open a new one with `connect`"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        transport, self._transport = self._transport, None
        if transport is not None:
            await close_transport(transport, CLOSE_S)
