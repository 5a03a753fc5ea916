"""The client: every verb of Control v1 as a method, and `connect` that makes one.

Owns no protocol state itself: the connection matches answers, subscriptions keep windows, renewals keep
leases. Envelopes given as bytes travel as they are.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from msgspec import Raw

from penstock.client import address
from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import (
    Receipt,
    Redriven,
    Sent,
    ServerHello,
    Settled,
    SingleReceipt,
    head,
    now_text,
)
from penstock.client.control.raw_connection import RawConnection
from penstock.client.queue.delivery import Delivery, lease_error
from penstock.client.queue.live_view import LiveView
from penstock.client.queue.pulled_leases import PulledLeases
from penstock.client.queue.queries import Queries
from penstock.client.queue.renewals import Renewals
from penstock.client.queue.request_reply import PendingQuestions, no_agent, unanswered
from penstock.client.queue.subscription import Subscription
from penstock.core.errors import PenstockError, Refusal

Envelope = Mapping[str, Any] | bytes
"""An envelope as a mapping, whose `id`, `ts` and `from` are filled when absent, or as its JSON bytes."""
SettleOp = Literal["ack", "nack", "release", "term", "extend"]

PREFIXES_MAX = 1024
"""Ready-made openings of enqueue lines, one an address."""
WAIT_GRACE_S = 10.0
"""How much later than its own wait a pull may be answered."""
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0

_encode = msgspec.json.Encoder().encode
_decode_receipt = msgspec.json.Decoder(Receipt).decode
_decode_single = msgspec.json.Decoder(SingleReceipt).decode


class Client(Queries):
    """A connection to Penstock; made by `connect`, best inside `async with`.

    It comes back by itself after a lost connection, with a back-off, and what may be sent twice is sent again. Subscriptions go on.
    Every refusal is a `PenstockError`.

    Example:
        async with penstock.connect(agent="sam") as client:
            sent = await client.send("jen", {"text": "hello"})
            print(sent.seq, sent.recipient)
    """

    def __init__(
        self,
        connection: ControlConnection,
        open_another: Callable[[], Awaitable[ControlConnection]],
        *,
        agent: str | None = None,
        retries: int = 0,
    ) -> None:
        self.agent = agent
        self._connection = connection
        self._open_another = open_another
        self._idle: list[ControlConnection] = []
        """Connections for pulls that wait, one for each that waits at the same time."""
        self._retries = retries
        self._renewals = Renewals(connection.loop)
        self._pulled = PulledLeases(connection, self._renewals, self._reply)
        self._asks = PendingQuestions(self._private_inbox)
        self._prefixes: dict[str, bytes] = {}
        self._id_stem = secrets.token_hex(10)
        self._id_serial = 0
        self._sub_serial = 0

    @property
    def server(self) -> ServerHello:
        """What the server said when it was greeted last."""
        return self._connection.hello

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._connection.address.url

    # -- putting in

    async def enqueue(
        self,
        to: str,
        envelope: Envelope | Sequence[Envelope],
        *,
        delay_ms: int | None = None,
        deliver_at: str | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Store one envelope, or all of a list or none; returns when they are on record."""
        prefix = self._prefixes.get(to) or self._prefix(to)
        is_one = isinstance(envelope, (bytes, Mapping))
        if isinstance(envelope, (bytes, Mapping)):
            line = prefix + self._encoded(envelope)
        else:
            line = b"%b[%b]" % (prefix, b",".join(map(self._encoded, envelope)))
        if delay_ms is not None:
            line += b',"delayMs":%d' % delay_ms
        if deliver_at is not None:
            line += b',"deliverAt":' + _encode(deliver_at)
        result = await self._repeatable(line, timeout)
        if is_one:
            one = _decode_single(result)
            return Receipt([one.id], [one.seq], [one.id] if one.duplicate else [])
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
    ) -> Sent:
        """Write to somebody: `to` is an agent's name or a stream; says whether somebody is there to read it."""
        fields = {
            "from": self.agent,
            "id": id or self._new_id(),
            "corr": corr,
            "refs": refs,
            "tags": tags,
            "headers": headers,
            "delayMs": delay_ms,
            "schema": schema,
        }
        body = head("send", to=to, kind=type, **fields) + b',"payload":' + _encode(payload)
        if id is not None:
            result = await self._connection.request(body, is_repeatable=False, timeout_s=timeout)
            return msgspec.json.decode(result, type=Sent)
        try:
            return msgspec.json.decode(await self._repeatable(body, timeout), type=Sent)
        except PenstockError as error:
            if error.code != "IdConflict":
                raise
        # The id is ours alone, so the conflict is with our own first try, whose answer was lost: the server
        # stamps the time, and the second copy differs by it.
        place = (await self.where(str(fields["id"])))[0]
        return Sent(str(fields["id"]), place["seq"], place["stream"])

    async def ask(
        self,
        to: str,
        payload: object,
        *,
        type: str = "question",  # noqa: A002
        timeout: float = 30.0,
    ) -> Delivery:
        """Send, and wait for the answer that the other side gives with `delivery.reply(…)`.

        The answer comes to this client's own inbox, is acked, and its `payload` is what was said. Another reader of that
        inbox may catch it first, so an agent that asks should be the only reader of its inbox. Without an answer
        in `timeout` seconds this raises `Timeout`; the question stays where it is.

        Example:
            async with penstock.connect(agent="sam") as client:
                answer = await client.ask("jen", {"question": "how many?"}, timeout=5)
                print(answer.payload)
        """
        if self.agent is None:
            raise no_agent()
        corr = self._new_id()
        sent: Sent | None = None
        try:
            async with asyncio.timeout(timeout):
                answer = await self._asks.expect(corr)
                sent = await self.send(to, payload, type=type, corr=corr)
                return await answer
        except TimeoutError:
            raise unanswered(to, timeout, sent) from None
        finally:
            await self._asks.close(corr)

    # -- taking out

    def subscribe(
        self, stream: str, *, credit: int = 100, lease_ms: int | None = None, batch: int = 1
    ) -> Subscription:
        """Deliveries of a stream as they come; `async for`, or `async with` first.

        `credit` is how many unsettled deliveries you want at most; settling makes room for more. `batch`
        lets the server put up to that many in one frame, which changes the speed and nothing else.
        """
        is_own = self.agent is not None and stream == inbox_of(self.agent)
        subscription = Subscription(
            self._connection,
            self._renewals,
            stream,
            sub_id=self._new_sub_id(),
            credit=credit,
            lease_ms=lease_ms,
            batch=batch,
            intercept=self._asks.intercept if is_own else None,
            replier=self._reply,
            on_close=self._asks.stopped if is_own else None,
        )
        if is_own:
            self._asks.listening(subscription)
        return subscription

    def inbox(
        self, agent: str | None = None, *, credit: int = 100, lease_ms: int | None = None, batch: int = 1
    ) -> Subscription:
        """Subscribe to `agents/<agent>/inbox`, by default this client's own."""
        name = agent or self.agent
        if name is None:
            raise no_agent()
        return self.subscribe(inbox_of(name), credit=credit, lease_ms=lease_ms, batch=batch)

    async def pull(
        self,
        stream: str,
        *,
        max: int = 1,  # noqa: A002
        wait_ms: int = 0,
        lease_ms: int | None = None,
        renew: bool = True,
    ) -> list[Delivery]:
        """Take up to `max` deliveries, waiting for the first one up to `wait_ms`.

        These leases outlive the connection: settle them with the delivery, or later, from anywhere, with
        `settle`. With `renew` they are kept as long as this client lives and they are unsettled.
        """
        body = head("pull", stream=stream, max=max, waitMs=wait_ms, leaseMs=lease_ms)
        if wait_ms <= 0:
            result = await self._connection.request(body, is_repeatable=False)
            return self._pulled.take(result, lease_ms=lease_ms, renew=renew)
        # Answers keep the order of requests, so a pull that waits would hold up everything behind it.
        connection = self._idle.pop() if self._idle else await self._open_another()
        try:
            timeout_s = wait_ms / 1000 + WAIT_GRACE_S
            result = await connection.request(body, is_repeatable=False, timeout_s=timeout_s)
        except BaseException:
            await connection.close()
            raise
        self._idle.append(connection)
        return self._pulled.take(result, lease_ms=lease_ms, renew=renew)

    async def settle(
        self,
        id: str,  # noqa: A002
        op: SettleOp = "ack",
        *,
        lease_id: str | None = None,
        stream: str | None = None,
        delay_ms: int | None = None,
        reason: str | None = None,
        ms: int | None = None,
    ) -> Settled:
        """Settle a pulled delivery by its id, and its lease or its stream."""
        body = head(
            "settle",
            id=id,
            op=op,
            leaseId=lease_id,
            stream=stream,
            delayMs=delay_ms,
            reason=reason,
            ms=ms,
        )
        try:
            return msgspec.json.decode(await self._repeatable(body), type=Settled)
        except PenstockError as error:
            raise lease_error(error) from None

    # -- looking

    def live(self, view: str, *, addr: str | None = None, credit: int = 1_000) -> LiveView:
        """A view as it changes; `async for`, or `async with` first. At most `credit` changes wait here."""
        return LiveView(self._connection, view, self._new_sub_id(), addr=addr, credit=credit)

    async def redrive(self, stream: str, *, max: int | None = None) -> Redriven:  # noqa: A002
        """Send the dead letters of a stream back to it."""
        result = await self._connection.request(head("redrive", stream=stream, max=max), is_repeatable=False)
        return msgspec.json.decode(result, type=Redriven)

    async def ping(self) -> None:
        """A round trip."""
        await self.query("ping")

    async def uplink(self) -> RawConnection:
        """Another connection to the same server, with the same token, for raw Control v1 lines."""
        return await self._connection.uplink()

    async def close(self) -> None:
        """End the connection; subscriptions end with it and give back what is not settled."""
        self._renewals.close()
        for connection in [*self._idle, self._connection]:
            await connection.close()
        self._idle.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside

    async def query(self, kind: str, /, **fields: object) -> dict[str, Any]:
        """An operation of Control v1 that reads, by its name; for those that have no method of their own."""
        result = await self._repeatable(head(kind, **fields))
        return msgspec.json.decode(result, type=dict[str, Any])

    async def _repeatable(self, body: bytes, timeout_s: float | None = None) -> Raw:
        """A request that may be sent again: after a reconnect always, after a refusal `retries` times."""
        for attempt in range(self._retries + 1):
            try:
                return await self._connection.request(body, is_repeatable=True, timeout_s=timeout_s)
            except PenstockError as error:
                if attempt == self._retries or not error.retryable:
                    raise
                wait_ms = error.refusal.retry_after_ms
            backoff_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2**attempt)
            await asyncio.sleep(
                random.uniform(backoff_s / 2, backoff_s) if wait_ms is None else wait_ms / 1000
            )
        raise AssertionError("the last attempt returns or raises")

    async def _reply(self, delivery: Delivery, payload: object, kind: str | None) -> Sent:
        question = delivery.head
        if not question.sender:
            raise PenstockError(
                Refusal("InvalidRequest", f"`{question.id}` has no `from` to reply to", ref=question.id)
            )
        return await self.send(
            question.sender,
            payload,
            type=kind or f"{question.type}.reply",
            corr=question.corr or question.id,
            refs=[question.id],
        )

    def _private_inbox(self, credit: int) -> Subscription:
        if self.agent is None:
            raise no_agent()
        return Subscription(
            self._connection,
            self._renewals,
            inbox_of(self.agent),
            sub_id=self._new_sub_id(),
            credit=credit,
            intercept=self._asks.intercept,
            replier=self._reply,
        )

    def _encoded(self, envelope: Envelope) -> bytes:
        if isinstance(envelope, bytes):
            # A line ends at a line feed; in JSON it can only be white space.
            return envelope.replace(b"\n", b" ") if b"\n" in envelope else envelope
        if "id" in envelope and "ts" in envelope and (self.agent is None or "from" in envelope):
            return _encode(envelope)
        filled: dict[str, object] = {"id": self._new_id(), "ts": now_text()}
        if self.agent is not None:
            filled["from"] = self.agent
        return _encode(filled | dict(envelope))

    def _prefix(self, to: str) -> bytes:
        if len(self._prefixes) >= PREFIXES_MAX:
            self._prefixes.clear()
        prefix = self._prefixes[to] = b'{"type":"enqueue","to":%b,"env":' % _encode(to)
        return prefix

    def _new_id(self) -> str:
        # Random once a client, then counted: five times cheaper than a UUID for each.
        self._id_serial += 1
        return f"{self._id_stem}-{self._id_serial:x}"

    def _new_sub_id(self) -> str:
        self._sub_serial += 1
        return f"s{self._sub_serial}"


class Connecting:
    """What `connect` returns: await it for a client, or open it with `async with`."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        agent: str | None,
        *,
        timeout: float,
        connect_timeout: float,
        reconnect: bool,
        retries: int,
    ) -> None:
        self._url = url
        self._token = token
        self._agent = agent
        self._timeout_s = timeout
        self._connect_timeout_s = connect_timeout
        self._reconnect = reconnect
        self._retries = retries
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _open(self) -> Client:
        place = address.parse(address.discover(self._url))
        token = self._token or os.environ.get("PENSTOCK_TOKEN") or None

        async def dial() -> ControlConnection:
            connection = ControlConnection(
                place,
                token,
                timeout_s=self._timeout_s,
                connect_timeout_s=self._connect_timeout_s,
                reconnect=self._reconnect,
            )
            await connection.open()
            return connection

        return Client(await dial(), dial, agent=self._agent, retries=self._retries)


def connect(
    url: str | None = None,
    token: str | None = None,
    agent: str | None = None,
    *,
    timeout: float = 30.0,
    connect_timeout: float = 10.0,
    reconnect: bool = True,
    retries: int = 0,
) -> Connecting:
    """Connect to Penstock.

    Args:
        url: `tcp://host:port`, `unix:/path`, or `http(s)://` and `ws(s)://` for a WebSocket. By default
            `PENSTOCK_URL`, else the server running on `./penstock-data`, else `tcp://127.0.0.1:9787`.
        token: by default `PENSTOCK_TOKEN`.
        agent: your name: fills `from`, and names the inbox that `inbox` and `ask` use.
        timeout: seconds to wait for an answer.
        reconnect: come back by itself after a lost connection.
        retries: how often a refusal that may pass (429, 503) is retried, after the time it names.

    Example:
        async with penstock.connect(agent="sam") as client:
            await client.send("jen", {"text": "hello"})
    """
    return Connecting(
        url,
        token,
        agent,
        timeout=timeout,
        connect_timeout=connect_timeout,
        reconnect=reconnect,
        retries=retries,
    )


def inbox_of(agent: str) -> str:
    """The stream that is an agent's inbox."""
    return f"agents/{agent}/inbox"
