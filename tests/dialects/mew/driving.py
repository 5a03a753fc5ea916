"""Spaces on the shipped runtime, with a clock, a journal and WebSockets that a test controls.

Nothing here waits: `GatewayDriver.run` runs everything that is due, `GatewayDriver.advance` lets time pass. A client's messages are
decoded from the exact bytes that a socket would carry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.records import Fact, is_fresh
from penstock.core.rows import Row, row_of
from penstock.core.scopes import UNAUTHENTICATED
from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.participants import SpaceObserver
from penstock.dialects.mew.session import MewSession
from penstock.dialects.mew.settings import ParticipantSettings, SpaceSettings, StreamSettings
from penstock.dialects.mew.state import SpaceMemory
from penstock.journal.port import Committed, Outcome, Refused
from penstock.server.auth.tokens import Guard
from penstock.server.config.load import Config
from penstock.server.engine.machines import make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import HandScheduler
from penstock.server.spaces.host import SpaceConnection, Spaces
from penstock.server.spaces.listener import SpaceEndpoint
from tests.core.driving import START_US, START_WALL_US, counting_entropy

Message = dict[str, Any]
OPERATOR_TOKEN = "the-operator"
EVERYTHING = ({"kind": "*"},)
BASELINE = {"id": "mcp-response", "kind": "mcp/response"}
PING = "ping"


def token(name: str) -> str:
    return f"{name}-token"


def participant(name: str, *capabilities: Any, **more: Any) -> ParticipantSettings:
    """A participant with a token of that name, which may send everything by default."""
    digest = sha256(token(name).encode()).hexdigest()
    return ParticipantSettings((digest,), capabilities or EVERYTHING, **more)


def settings(
    *names: str,
    id_: str = "demo",
    streams: dict[str, StreamSettings] | None = None,
    **known: ParticipantSettings,
) -> SpaceSettings:
    people = {name: participant(name) for name in names} | known
    return SpaceSettings(id_, "Demo", people, streams=streams or {})


class KeepingJournal:
    """A journal that keeps its rows, and answers at once or when and how the test says."""

    id = "kept"

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self.rows: list[Row] = []
        self.is_by_hand = False
        self.waiting: list[tuple[Sequence[Fact], Callable[[Outcome], None]]] = []
        self._soon = soon

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        self.waiting.append((list(facts), done))
        if not self.is_by_hand:
            self._soon(self.commit)

    def commit(self) -> None:
        """The oldest append is durable."""
        if self.waiting:
            facts, done = self.waiting.pop(0)
            first = len(self.rows)
            self.rows += [row_of(fact) for fact in facts]
            done(Committed(first))

    def refuse(self, reason: str = "the disk is full") -> None:
        """Nothing of the oldest append is kept."""
        _, done = self.waiting.pop(0)
        done(Refused(reason))

    def refuse_fresh(self, reason: str = "the disk is nearly full") -> None:
        """Only what takes no room is kept."""
        facts, done = self.waiting.pop(0)
        first = len(self.rows)
        self.rows += [row_of(fact) for fact in facts if not is_fresh(fact)]
        done(Committed(first, reason))

    def close(self) -> None:
        return None


class SocketWire:
    """The bytes that would go over a WebSocket."""

    def __init__(self) -> None:
        self.data = b""
        self.writes = 0
        self.buffered = 0
        self.is_framed = False
        self.is_held = False
        self.closed: tuple[int, str] | None = None
        self.is_aborted = False

    def send(self, messages: list[bytes]) -> None:
        assert messages and self.is_framed and self.closed is None and not self.is_aborted
        self.writes += 1
        self.data += b"".join(messages)

    def hold(self, on: bool) -> None:
        self.is_held = on

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    def abort(self) -> None:
        self.is_aborted = True


def messages(data: bytes) -> list[Message | bytes | str]:
    """What a client reads in a server's bytes: envelopes as objects, frames as bytes."""
    found: list[Message | bytes | str] = []
    while data:
        opcode, size, at = data[0], data[1], 2
        if size >= 126:
            at = 4 if size == 126 else 10
            size = int.from_bytes(data[2:at], "big")
        body = data[at : at + size]
        assert len(body) == size, "a frame was cut short"
        if opcode == 0x81:
            found.append(msgspec.json.decode(body))
        elif opcode == 0x82:
            found.append(body)
        else:
            assert opcode == 0x89, hex(opcode)
            found.append(PING)
        data = data[at + size :]
    return found


class Client:
    """One WebSocket of a client."""

    def __init__(self, driver: GatewayDriver, **query: str | None) -> None:
        self.driver = driver
        self.wire = SocketWire()
        asked = {"token": None, "space": None, "participant": None} | query
        self.session = MewSession(driver.spaces, **asked)
        connection = driver.spaces.open(self.wire, self.session, "test", UNAUTHENTICATED)
        assert isinstance(connection, SpaceConnection), connection
        self.connection = connection
        driver.run()

    def put(self, *sent: Message | bytes | str) -> None:
        """Send messages, and let nothing happen yet."""
        for each in sent:
            data = each.encode() if isinstance(each, str) else each
            self.connection.received(data if isinstance(data, bytes) else msgspec.json.encode(data))

    def send(self, *sent: Message | bytes | str) -> list[Message]:
        """Send messages, and give the envelopes that came."""
        self.put(*sent)
        self.driver.run()
        return self.heard()

    def say(self, kind: str, payload: Any = None, **more: Any) -> list[Message]:
        """Send one envelope, and give the envelopes that came."""
        return self.send(envelope(kind, payload, **more))

    def received(self) -> list[Any]:
        """Everything since the last look, in order."""
        data, self.wire.data = self.wire.data, b""
        return messages(data)

    def heard(self) -> list[Message]:
        """The envelopes since the last look; frames that came with them are a surprise."""
        found = [each for each in self.received() if each != PING]
        assert all(isinstance(each, dict) for each in found), found
        return found

    def frames(self) -> list[bytes]:
        """The frames since the last look; whatever else came is left out."""
        return [each for each in self.received() if isinstance(each, bytes)]

    def gone(self) -> None:
        """The connection breaks."""
        self.connection.lost()
        self.driver.run()

    @property
    def is_open(self) -> bool:
        return self.wire.closed is None and not self.wire.is_aborted and not self.connection.closed


def envelope(kind: str, payload: Any = None, **more: Any) -> Message:
    made = {"protocol": "mew/v0.4", "kind": kind, **{key.rstrip("_"): each for key, each in more.items()}}
    return made if payload is None else made | {"payload": payload}


def join(name: str, space: str | None = "demo", key: str | None = None) -> Message:
    return {"type": "join", "space": space, "participantId": name, "token": key or token(name)}


def kinds(heard: Iterable[Any]) -> list[str]:
    return [each["kind"] for each in heard]


def only(heard: list[Message], kind: str) -> Message:
    """The payload of the only one of a kind."""
    (found,) = [each["payload"] for each in heard if each["kind"] == kind]
    return found


def error(heard: list[Message]) -> Message:
    """The payload of the only error, which is a full envelope."""
    (found,) = [each for each in heard if each["kind"] == "system/error"]
    assert {"protocol", "id", "ts", "from", "kind", "payload"} <= set(found), found
    assert found["protocol"] == "mew/v0.4" and found["from"] in ("gateway", "system:gateway")
    return found["payload"]


class GatewayDriver:
    """A server with spaces."""

    def __init__(
        self,
        *spaces: SpaceSettings,
        limits: Limits | None = None,
        rows: Iterable[Row] = (),
        watch: SpaceObserver | None = None,
    ) -> None:
        self.us = START_US
        self.wall_jump_us = 0
        """The offset of the wall clock."""
        self.scheduler = HandScheduler(lambda: self.now)
        self.machine = make_machine(limits or Limits(), lambda name: Policy(), counting_entropy())
        self.journal = KeepingJournal(self.scheduler.soon)
        self.failures: list[str] = []
        self.runtime = Runtime(
            self.machine,
            self.journal,
            self.scheduler,
            authenticate=lambda key: None,
            version="0",
            log=self._log,
        )
        self.memory = SpaceMemory()
        for row in rows:
            self.memory.restore(row)
        self.minted: list[tuple[str, str, str]] = []
        self.spaces = Spaces(
            self.runtime,
            self.memory,
            is_operator=lambda key: key == OPERATOR_TOKEN,
            watch=watch,
            keep_token=lambda *each: self.minted.append(each),
        )
        for each in spaces or (settings("p1", "p2", "p3", "p4", guest=participant("guest", {"kind": "chat"})),):
            self.spaces.add(each, "ws://localhost:8080/")
        self.door = SpaceEndpoint(self.spaces, Guard(Config()), is_loopback_bind=True)
        self.run()

    def _log(self, event: str, **fields: Any) -> None:
        if event == "session.failed":
            self.failures.append(fields["error"])

    @property
    def now(self) -> Now:
        return Now(self.us, START_WALL_US + self.us - START_US + self.wall_jump_us)

    @property
    def space(self) -> SpaceMachine:
        """The first one."""
        return next(iter(self.spaces.spaces.values()))

    def run(self) -> None:
        self.scheduler.run()
        assert self.failures == []

    def advance(self, ms: int, *, is_answering: bool = True) -> None:
        """Let time pass, a timer at a time; all clients answer pings meanwhile, or none does."""
        end = self.us + ms * 1000
        self.run()
        while self.scheduler._timers and self.scheduler._timers[0][0] <= end:
            self.us = max(self.us, self.scheduler._timers[0][0])
            for session in self.spaces.sessions if is_answering else ():
                session.is_alive = True
            self.run()
        self.us = end
        self.run()

    def client(self, **query: str | None) -> Client:
        return Client(self, **query)

    def join(self, name: str, space: str | None = "demo", key: str | None = None) -> Client:
        """A client that has joined and read the welcome."""
        client = self.client()
        heard = client.send(join(name, space, key))
        assert kinds(heard)[:1] == ["system/welcome"], heard
        return client

    def joined(self, *names: str) -> list[Client]:
        """Several who have joined, and have read everything so far."""
        clients = [self.join(name) for name in names]
        for client in clients:
            client.received()
        return clients

    def welcome(self, name: str, space: str = "demo") -> Message:
        """The welcome of a client that joins."""
        client = self.client()
        return only(client.send(join(name, space)), "system/welcome")

    def open_stream(self, owner: Client, target: Any = None, **more: Any) -> str:
        """Open a stream for a client; all participants have received the open."""
        payload = {"direction": "upload", **more} | ({} if target is None else {"target": target})
        heard = owner.say("stream/request", payload, id="r")
        opened = [each["payload"] for each in heard if each["kind"] == "stream/open"]
        return str(opened[-1]["stream_id"])

    def rows(self, event: str) -> list[Row]:
        return [row for row in self.journal.rows if row.event == event]

    def again(self, *spaces: SpaceSettings) -> GatewayDriver:
        """A server that was started from this one's journal."""
        return GatewayDriver(*spaces, rows=self.journal.rows)

    # HTTP

    def ask(
        self,
        method: str,
        path: str,
        body: Any = b"",
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> tuple[int, Any]:
        """A request to `/participants`: the status of the answer, and its body."""
        exchange = self.exchange = Exchange(method, path, body, query, headers or {}, key)

        async def asked() -> Any:
            answering = asyncio.ensure_future(self.door.handle(exchange))
            while not answering.done():
                await asyncio.sleep(0)
                self.run()
            return answering.result()

        reply = asyncio.run(asked())
        assert reply.content_type.startswith("application/json")
        return reply.status, msgspec.json.decode(reply.body)

    def post(self, name: str, body: Any, **more: Any) -> tuple[int, Any]:
        more.setdefault("key", token(name))
        return self.ask("POST", f"/participants/{name}/messages", body, **more)


class Exchange:
    """A request as a door sees it."""

    is_upgrade = False
    peer = "127.0.0.1"
    on_read: Callable[[], object] = staticmethod(lambda: None)
    """What happens while the body is on its way."""
    known: Callable[[], None] = staticmethod(lambda: None)
    holder: Any = None

    def __init__(
        self,
        method: str,
        path: str,
        body: Any,
        query: dict[str, str],
        headers: dict[str, str],
        key: str | None,
    ) -> None:
        self.method = method
        self.path = path
        self.body = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.size = len(self.body)
        self.query_pairs = list(query.items())
        self.headers = dict(headers)
        if key is not None:
            self.headers["Authorization"] = f"Bearer {key}"

    async def read(self) -> bytes:
        self.on_read()
        return self.body


def picture(memory: SpaceMemory) -> Any:
    """Everything that spaces remember, as plain values."""
    return {
        id_: {
            "seq": state.seq,
            "stream_no": state.stream_no,
            "invited": {name: msgspec.structs.astuple(each) for name, each in state.invited.items()},
            "kicked": dict(state.kicked),
            "grants": {name: dict(each) for name, each in state.grants.items()},
            "streams": {
                stream.id: (
                    stream.shown(),
                    stream.no,
                    stream.name,
                    stream.route.overflow,
                    stream.request_id,
                    stream.open_id,
                    stream.route.keep,
                    stream.route.sheds,
                    stream.route.seq,
                )
                for stream in state.streams.values()
            },
        }
        for id_, state in memory.spaces.items()
    }
