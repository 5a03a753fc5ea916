"""The client: every operation of Control v1 as a method.

It owns no protocol state: the connection matches answers to requests, subscriptions keep their credit, and renewals keep leases.
Envelopes given as bytes are sent unchanged.
"""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

import msgspec
from msgspec import Raw

from penstock.client.address import Address
from penstock.client.control import frames
from penstock.client.control.connection import ControlConnection
from penstock.client.control.owner_links import MOVE_MAX_S, OwnerLinks
from penstock.client.control.raw_connection import RawConnection
from penstock.client.queue.batch import Envelope, Outgoing, SendBatch
from penstock.client.queue.delivery import Delivery, P, raise_first, reader_of
from penstock.client.queue.live_view import LiveView
from penstock.client.queue.pulled_leases import PulledLeases
from penstock.client.queue.pulls import Pulls
from penstock.client.queue.queries import Queries
from penstock.client.queue.renewals import Renewals
from penstock.client.queue.request_reply import FAILED, REPLY_WANTED, PendingQuestions, checked, no_agent, unanswered
from penstock.client.queue.settles import OnLost, Unconfirmed
from penstock.client.queue.subscription import Subscription
from penstock.core.errors import PenstockError, Refusal
from penstock.core.names import address_problem, agent_problem

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0


_decode_receipt = msgspec.json.Decoder(frames.Receipt).decode
_decode_single = msgspec.json.Decoder(frames.SingleReceipt).decode


class Client(Queries):
    """A connection to Penstock; `connect` makes one. Use it inside `async with`.

    After the connection is lost, the client reconnects with a back-off, repeats the requests that are safe to repeat, and resumes
    its subscriptions. Other requests that were under way raise `Unreachable`. Every error is a `PenstockError` with a stable `code`.

    Example:
        async with penstock.connect(agent="sam") as client:
            sent = await client.send("jen", {"text": "hello"})
            print(sent.seq, sent.recipient)
    """

    def __init__(
        self,
        connection: ControlConnection,
        dial: Callable[[Address], Awaitable[ControlConnection]],
        owners: OwnerLinks,
        *,
        agent: str | None = None,
        retries: int = 0,
        unconfirmed: Unconfirmed | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        self.agent = agent
        self._connection = connection
        self._owners = owners
        self._pulls = Pulls(connection, owners, dial)
        self._retries = retries
        self._renewals = Renewals(connection.loop)
        self._unconfirmed = unconfirmed or Unconfirmed()
        self._on_lost = on_lost
        self._pulled = PulledLeases(connection, self._renewals, self._reply, self._unconfirmed, on_lost)
        self._asks = PendingQuestions(self._private_inbox)
        self._outgoing = Outgoing(agent)
        self._sub_serial = 0

    @property
    def server(self) -> frames.ServerHello:
        """The server's answer to the last hello: its version and features."""
        return self._connection.hello

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._connection.address.url

    # -- sending

    async def enqueue(
        self,
        to: str,
        envelope: Envelope | Sequence[Envelope],
        *,
        delay_ms: int | None = None,
        deliver_at: str | None = None,
        timeout: float | None = None,
    ) -> frames.Receipt:
        """Store one envelope, or all envelopes of a list in one commit. Returns when they are durable.

        An id that the stream has stored before is not stored again; the receipt lists it under `duplicates`.
        """
        prefix, encoded = self._outgoing.prefix(to), self._outgoing.encoded
        is_one = isinstance(envelope, (bytes, Mapping))
        if isinstance(envelope, (bytes, Mapping)):
            line = prefix + encoded(envelope)
        else:
            line = b"%b[%b]" % (prefix, b",".join(map(encoded, envelope)))
        if delay_ms is not None:
            line += b',"delayMs":%d' % delay_ms
        if deliver_at is not None:
            line += b',"deliverAt":' + frames.encode(deliver_at)
        result = await self._repeatable(line, timeout, to)
        if is_one:
            one = _decode_single(result)
            return frames.Receipt([one.id], [one.seq], [one.id] if one.duplicate else [])
        return _decode_receipt(result)

    async def send(
        self,
        to: str,
        payload: object,
        *,
        type: str = "message",  # noqa: A002
        id: str | None = None,  # noqa: A002
        corr: str | None = None,
        refs: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        headers: Mapping[str, str | int | float | bool | None] | None = None,
        delay_ms: int | None = None,
        schema: str | None = None,
        timeout: float | None = None,
    ) -> frames.Sent:
        """Send a payload to an agent's inbox or a stream. Returns when the envelope is durable.

        `to` is an agent's name, or a stream. For an inbox, `recipient` of the result says whether a consumer is listening. Without
        an `id` the client makes one and may repeat the request safely.
        """
        fields = {
            "from": self.agent,
            "id": id or self._outgoing.new_id(),
            "corr": corr,
            "refs": refs,
            "tags": tags,
            "headers": headers,
            "delayMs": delay_ms,
            "schema": schema,
        }
        frames.require(address_problem(to))
        body = frames.head("send", to=to, kind=type, **fields) + b',"payload":' + frames.encode(payload, "payload")
        if id is not None:
            result = await self._owners.request(stream_of(to), body, is_repeatable=False, timeout_s=timeout)
            return msgspec.json.decode(result, type=frames.Sent)
        try:
            return msgspec.json.decode(await self._repeatable(body, timeout, stream_of(to)), type=frames.Sent)
        except PenstockError as error:
            if error.code != "IdConflict":
                raise
        # We made the id, so the conflict is with our own first attempt, whose answer was lost. The copies differ because the
        # server stamps the time.
        place = (await self.where(str(fields["id"])))[0]
        return frames.Sent(str(fields["id"]), place.seq, place.stream)

    def batch(self) -> SendBatch:
        """Send in a loop without waiting for each answer: `async with client.batch() as batch`, then `await batch.enqueue(…)`."""
        return SendBatch(self)

    async def ask(
        self,
        to: str,
        payload: object,
        *,
        type: str = "question",  # noqa: A002
        timeout: float = 30.0,
        reply_type: builtins.type[P] | None = None,
    ) -> Delivery[P]:
        """Send a question, and wait for the answer that the recipient sends with `delivery.reply(…)`.

        The answer arrives in this client's own inbox and is acked; its `payload` is the reply. Another consumer of that inbox could
        take the answer, so an agent that asks should be its only reader. `reply_type` is the type of its payload. Raises `Timeout`
        after `timeout` seconds without an answer; the question stays in the recipient's inbox. Raises `HandlerFailed` as soon as the
        handler of the recipient's `work` raises.

        Example:
            async with penstock.connect(agent="sam") as client:
                answer = await client.ask("jen", {"question": "how many?"}, timeout=5)
                print(answer.payload)
        """
        if self.agent is None:
            raise no_agent()
        corr = self._outgoing.new_id()
        sent: frames.Sent | None = None
        try:
            async with asyncio.timeout(timeout):
                answer = await self._asks.expect(corr)
                sent = await self.send(to, payload, type=type, corr=corr, headers={REPLY_WANTED: True})
                found = checked(to, (await answer)._read_as(None))
                return found._read_as(None if reply_type is None else reader_of(reply_type))
        except TimeoutError:
            raise unanswered(to, timeout, sent) from None
        finally:
            await self._asks.close(corr)

    # -- receiving

    def subscribe(
        self,
        stream: str,
        *,
        credit: int = 100,
        lease_ms: int | None = None,
        batch: int = 64,
        type: type[P] | None = None,  # noqa: A002
        on_lost: OnLost | None = None,
    ) -> Subscription[P]:
        """Receive the deliveries of a stream: iterate with `async for`, or open it with `async with` first.

        `credit` is the most unsettled deliveries you want at a time; settling one requests another. `lease_ms` is the length of a
        lease; the client renews it. `batch` lets the server put so many deliveries into one frame, which only changes the speed.
        With a `type` (a struct, a dataclass, a pydantic model, …) each `payload` is a value of it. `on_lost` is called with each
        delivery whose settle was lost, instead of the `on_lost` of `connect`.
        """
        is_own = self.agent is not None and stream == inbox_of(self.agent)
        subscription: Subscription[P] = self._subscription(
            stream,
            credit=credit,
            lease_ms=lease_ms,
            batch=batch,
            intercept=self._asks.intercept if is_own else None,
            on_close=self._asks.stopped if is_own else None,
            reader=None if type is None else reader_of(type),
            on_lost=on_lost,
        )
        if is_own:
            self._asks.listening(subscription)
        return subscription

    def inbox(
        self,
        agent: str | None = None,
        *,
        credit: int = 100,
        lease_ms: int | None = None,
        batch: int = 64,
        type: type[P] | None = None,  # noqa: A002
        on_lost: OnLost | None = None,
    ) -> Subscription[P]:
        """Subscribe to `agents/<agent>/inbox`; without an argument, to this client's own inbox."""
        name = agent or self.agent
        if name is None:
            raise no_agent()
        frames.require(agent_problem(name))
        options = {"credit": credit, "lease_ms": lease_ms, "batch": batch, "on_lost": on_lost}
        return self.subscribe(inbox_of(name), type=type, **options)  # type: ignore[arg-type]

    async def pull(
        self,
        stream: str,
        *,
        max: int = 1,  # noqa: A002
        wait_ms: int = 0,
        lease_ms: int | None = None,
        renew: bool = True,
        type: type[P] | None = None,  # noqa: A002
    ) -> list[Delivery[P]]:
        """Take up to `max` deliveries; wait up to `wait_ms` for the first one. Returns an empty list when none came.

        The leases survive the connection: settle them with the delivery, or later, from any client, with `settle`. With `renew` this
        client renews them until they are settled.
        """
        reader = None if type is None else reader_of(type)
        body = frames.head("pull", stream=stream, max=max, leaseMs=lease_ms)
        result = await self._pulls.take(stream, body, wait_ms)
        return self._pulled.take(result, lease_ms=lease_ms, renew=renew, reader=reader)

    # -- views

    def live(self, view: str, *, addr: str | None = None, credit: int = 1_000) -> LiveView:
        """Follow a view: iterate over its changes with `async for`, or open it with `async with` first. It buffers `credit` changes."""
        return LiveView(self._connection, view, self._new_sub_id(), addr=addr, credit=credit)

    async def uplink(self) -> RawConnection:
        """Open another connection to the same server, with the same token, for raw Control v1 lines."""
        return await self._connection.uplink()

    @property
    def lost(self) -> int:
        """Settles of pulled deliveries that were lost; a subscription has its own `lost`."""
        return self._pulled._settles.lost

    async def flush(self) -> None:
        """Wait until every settle of this client before this call is durable.

        Raises `LeaseLost` if one was lost since the last flush.
        """
        flushing = [holder._settles.flush() for holder in self._renewals.holders]
        errors = await asyncio.gather(*flushing, return_exceptions=True)
        raise_first([error for error in errors if isinstance(error, PenstockError)])

    async def close(self) -> None:
        """Wait up to 5 s for the answers to settles, then close the connection.

        Subscriptions end, and their unsettled deliveries return to their streams.
        """
        try:
            found = await asyncio.gather(*(holder._settles.leave() for holder in self._renewals.holders))
        finally:
            self._renewals.close()
            await self._owners.close()
            await self._pulls.close()
            await self._connection.close()
        raise_first([failure for failure in found if failure is not None])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exception: object) -> None:
        try:
            await self.close()
        except PenstockError:
            if kind is None:  # else the other exception matters more
                raise

    # -- inside

    async def _answer(self, body: bytes, *, is_repeatable: bool) -> Raw:
        if is_repeatable:
            return await self._repeatable(body)
        return await self._connection.request(body, is_repeatable=False)

    async def _repeatable(self, body: bytes, timeout_s: float | None = None, stream: str | None = None) -> Raw:
        """Send a request that is safe to repeat: after each reconnect, and up to `retries` times after a retryable error.

        With a stream it goes to the owner in a cluster, and is repeated while that changes.
        """
        until_s = self._connection.loop.time() + MOVE_MAX_S
        attempt = 0
        while True:
            try:
                if stream is None:
                    return await self._connection.request(body, is_repeatable=True, timeout_s=timeout_s)
                return await self._owners.request(stream, body, is_repeatable=True, timeout_s=timeout_s)
            except PenstockError as error:
                has_moved = self._owners.may_have_moved(error, until_s)
                if not has_moved and (attempt >= self._retries or not error.retryable):
                    raise
                wait_ms = error.refusal.retry_after_ms
            backoff_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2**attempt)
            await asyncio.sleep(random.uniform(backoff_s / 2, backoff_s) if wait_ms is None else wait_ms / 1000)
            attempt += not has_moved

    async def _reply(self, delivery: Delivery, payload: object, kind: str | None) -> frames.Sent:
        question = delivery._head
        if not question.sender:
            message = f"`{question.id}` has no `from` to reply to"
            raise PenstockError(Refusal("InvalidRequest", message, ref=question.id))
        failed = payload.code if isinstance(payload, frames.HandlerFailure) else None
        return await self.send(
            question.sender,
            payload,
            type=kind or f"{question.type}.{'error' if failed else 'reply'}",
            headers={FAILED: failed} if failed else None,
            corr=question.corr or question.id,
            refs=[question.id],
        )

    def _private_inbox(self, credit: int) -> Subscription:
        if self.agent is None:
            raise no_agent()
        return self._subscription(inbox_of(self.agent), credit=credit, intercept=self._asks.intercept)

    def _subscription(self, stream: str, *, on_lost: OnLost | None = None, **options: Any) -> Subscription[Any]:
        options |= {"replier": self._reply, "unconfirmed": self._unconfirmed, "on_lost": on_lost or self._on_lost}
        return Subscription(
            self._connection, self._renewals, stream, sub_id=self._new_sub_id(), owners=self._owners, **options
        )

    def _new_sub_id(self) -> str:
        self._sub_serial += 1
        return f"s{self._sub_serial}"


def inbox_of(agent: str) -> str:
    """The stream of an agent's inbox."""
    return f"agents/{agent}/inbox"


def stream_of(to: str) -> str:
    """The stream of a recipient: an agent's name means its inbox."""
    return to if "/" in to else inbox_of(to)
