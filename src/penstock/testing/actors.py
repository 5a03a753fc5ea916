"""Actors: small scripted clients that do, at random times, what clients do, and what they should not.

Each acts on its own dice, speaks through its own connection under its own name, and comes back after a loss. They check nothing:
the witness and the checks see everything they cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


from penstock.core.scopes import OPERATOR
from penstock.dialects.courier import operations
from penstock.testing.clients import Frame, LineClient, SocketClient

if TYPE_CHECKING:
    from penstock.testing.world import World

TS = "2026-01-01T00:00:00Z"
RECENT = 30
"""How many envelopes a producer can repeat."""


class Actor:
    """Somebody who does something every now and then."""

    pace_ms = 60

    def __init__(self, world: World, name: str, streams: list[str]) -> None:
        self.world = world
        self.name = name
        self.streams = streams
        self.dice = world.dice(name)
        self._wait()

    def act(self) -> None:
        """Do one thing."""

    def _wait(self) -> None:
        self.world.clock.after(self.dice.randint(1, 2 * self.pace_ms * 1000), self._next)

    def _next(self) -> None:
        if self.world.up:
            self.act()
        self._wait()

    def stream(self) -> str:
        return self.dice.choice(self.streams)


class Caller(Actor):
    """An actor with a Control v1 connection."""

    vandal = False

    def __init__(self, world: World, name: str, streams: list[str]) -> None:
        super().__init__(world, name, streams)
        self.client: LineClient | None = None

    def line(self) -> LineClient:
        """The connection, made anew when it was lost."""
        from penstock.testing.world import named

        if self.client is None or self.client.closed is not None:
            self.client = self.world.connect(self.name, principal=named(self.name), vandal=self.vandal)
            self.client.on_line = self.heard
            self.connected(self.client)
        return self.client

    def connected(self, client: LineClient) -> None:
        """A new connection is there."""

    def heard(self, line: Frame) -> None:
        """The server said something."""

    def maybe_cut(self, share: float) -> bool:
        if self.client is not None and self.dice.random() < share:
            self.client.pipe.cut()
            return True
        return False


class Producer(Caller):
    """Enqueues: one by one, many in a chunk, arrays, delayed; the same again, and the same id with other content."""

    pace_ms = 25

    def __init__(self, world: World, name: str, streams: list[str]) -> None:
        super().__init__(world, name, streams)
        self.recent: list[tuple[str, Frame]] = []
        self._no = 0

    def envelope(self, stream: str) -> Frame:
        self._no += 1
        text = "x" * self.dice.choice((1, 10, 60, 300))
        env = {"id": f"{self.name}-{self._no}", "ts": TS, "to": stream, "type": "t", "payload": text}
        self.recent = [*self.recent[-RECENT:], (stream, env)]
        return env

    def act(self) -> None:
        if self.maybe_cut(0.01):
            return
        line = self.line()
        stream = self.stream()
        match self.dice.randint(0, 9):
            case 0 | 1 | 2:
                line.request("enqueue", to=stream, env=self.envelope(stream))
            case 3 | 4:
                count = self.dice.randint(2, 8)
                line.send_line(*[line.frame("enqueue", to=stream, env=self.one(stream)) for _ in range(count)])
            case 5:
                env = [self.one(stream) for _ in range(self.dice.randint(1, 5))]
                line.request("enqueue", to=stream, env=env)
            case 6:
                line.request(
                    "enqueue", to=stream, env=self.envelope(stream), delayMs=self.dice.randint(0, 3_000)
                )
            case 7 if self.recent:
                to, env_ = self.dice.choice(self.recent)
                line.request("enqueue", to=to, env=env_)
            case 8 if self.recent:
                to, env_ = self.dice.choice(self.recent)
                line.request("enqueue", to=to, env={**env_, "payload": "something else"})
            case _:
                line.request("send", to=stream, kind="note", payload={"n": 1})

    def one(self, stream: str) -> Frame:
        """A new envelope, or one that was sent before."""
        before = [env for to, env in self.recent if to == stream]
        return self.dice.choice(before) if before and self.dice.random() < 0.2 else self.envelope(stream)


class Consumer(Caller):
    """Subscribes, grants, settles in every way: in time, late, twice, and what is not its own."""

    pace_ms = 25

    def connected(self, client: LineClient) -> None:
        self.held: list[Frame] = []
        self.past: list[str] = []
        self.subs: list[str] = []
        self._sub_no = 0
        self.join()

    def join(self) -> None:
        self._sub_no += 1
        label = f"sub{self._sub_no}"
        self.subs.append(label)
        self.line().request(
            "subscribe",
            stream=self.stream(),
            subId=label,
            credit=self.dice.choice((0, 1, 5, 60)),
            leaseMs=self.dice.choice((None, 1_000, 3_000)),
            batch=self.dice.choice((1, 1, 4)),
            auto=self.dice.choice((0, 0, 0, 3)),
            expired=self.dice.random() < 0.5,
        )

    def heard(self, line: Frame) -> None:
        if line["type"] != "deliver":
            return
        one = not isinstance(line["seq"], list)
        envs, leases = ([line["env"]], [line["leaseId"]]) if one else (line["env"], line["leaseId"])
        for env, lease_id in zip(envs, leases, strict=True):
            self.held.append({"id": env["id"], "leaseId": lease_id, "subId": line["subId"]})

    def act(self) -> None:
        if self.maybe_cut(0.02):
            return
        line = self.line()
        match self.dice.randint(0, 15):
            case 0 | 1 | 2 if self.subs:
                line.request("grant", n=self.dice.randint(1, 20), subId=self.dice.choice(self.subs))
            case 3 if len(self.subs) < 3:
                self.join()
            case 4 if self.subs and self.dice.random() < 0.3:
                line.request("unsubscribe", subId=self.subs.pop(self.dice.randrange(len(self.subs))))
            case 5:
                line.pipe.pause()
            case 6 if self.past:
                line.request("ack", id=self.dice.choice(self.past[-20:]))
            case 7:
                line.request("ack", id=self.strangers())
            case 8 | 9 if self.held:
                ids = [one["id"] for one in self.held[:4]]
                del self.held[:4]
                self.past += ids
                # Without reqId, these are one run; nobody is told unless it fails.
                line.send_line(*[{"type": "ack", "id": id_} for id_ in ids])
            case _ if self.held:
                self.settle(line, self.held.pop(self.dice.randrange(len(self.held))))
        if self.dice.random() < 0.2:
            line.pipe.resume()

    def strangers(self) -> str:
        """The id of somebody's envelope."""
        place = self.dice.randint(1, 40)
        return f"{self.dice.choice(('p1', 'p2'))}-{place}"

    def settle(self, line: LineClient, one: Frame) -> None:
        self.past.append(one["id"])
        exact = {"leaseId": one["leaseId"]} if self.dice.random() < 0.5 else {}
        if self.dice.random() < 0.7:
            exact["subId"] = one["subId"]
        match self.dice.randint(0, 9):
            case 0:
                line.request("nack", id=one["id"], delayMs=self.dice.randint(0, 2_000), **exact)
            case 1:
                line.request("nack", id=one["id"], reason="failed", **exact)
            case 2:
                line.request("nack", id=one["id"], requeue=False, **exact)
            case 3:
                line.request("release", id=one["id"], **exact)
            case 4:
                line.request("term", id=one["id"], reason="never", **exact)
            case 5:
                line.request("extend", id=one["id"], ms=self.dice.choice((1_000, 4_000)), **exact)
                self.held.append(one)
            case _:
                line.request("ack", id=one["id"], **exact)


class SocketConsumer(Actor):
    """A subscriber on its own socket, sometimes slow to read."""

    pace_ms = 30

    def __init__(self, world: World, name: str, streams: list[str]) -> None:
        super().__init__(world, name, streams)
        self.client: SocketClient | None = None
        self.held: list[str] = []
        self.past: list[str] = []

    def socket(self) -> SocketClient:
        from penstock.testing.world import named

        if self.client is None or self.client.closed is not None:
            self.held = []
            self.client = self.world.subscribe(
                self.stream(),
                name=self.name,
                principal=named(self.name),
                credit=self.dice.choice((0, 5, 80)),
                batch=self.dice.choice((1, 3)),
                confirm=True,
                expired=True,
            )
            self.client.pipe.pace = self.dice.choice((200, 64_000))
            self.client.on_message = self.heard
        return self.client

    def heard(self, message: Frame) -> None:
        if "deliver" in message:
            envs = message["deliver"]
            self.held += [env["id"] for env in (envs if isinstance(envs, list) else [envs])]

    def act(self) -> None:
        socket = self.socket()
        match self.dice.randint(0, 9):
            case 0 | 1:
                socket.send({"credit": self.dice.randint(1, 30)})
            case 2 if self.past:
                socket.send({"ack": self.dice.choice(self.past[-10:])})
            case 3:
                socket.pipe.pause()
            case 4 if self.dice.random() < 0.2:
                socket.pipe.cut()
            case _ if self.held:
                self.settle(socket)
        if self.dice.random() < 0.2:
            socket.pipe.resume()

    def settle(self, socket: SocketClient) -> None:
        ids = [self.held.pop(0) for _ in range(min(len(self.held), self.dice.randint(1, 3)))]
        self.past += ids
        message: dict[str, Any] = {"ack": ids}
        if len(ids) == 1:
            op = self.dice.choice(("ack", "ack", "nack", "release", "term", "extend"))
            message = {op: ids[0]}
            if op == "nack" and self.dice.random() < 0.3:
                message["requeue"] = False
        socket.send(message)


class Puller(Caller):
    """Pulls, waits, settles by lease or by name, and enqueues behind a pull that still waits."""

    pace_ms = 40

    def connected(self, client: LineClient) -> None:
        self.held: list[Frame] = []
        self._no = client.pipe.no * 1000

    def heard(self, line: Frame) -> None:
        if line["type"] == "ok":
            self.held += line["result"].get("deliveries", [])

    def act(self) -> None:
        if self.maybe_cut(0.02):
            return
        line = self.line()
        match self.dice.randint(0, 5):
            case 0 | 1:
                line.request(
                    "pull",
                    stream=self.stream(),
                    max=self.dice.randint(1, 5),
                    waitMs=self.dice.choice((0, 0, 100, 800)),
                    leaseMs=self.dice.choice((None, 1_000)),
                )
            case 2:
                self._no += 1
                env = {"id": f"{self.name}-{self._no}", "ts": TS, "type": "t", "payload": None}
                line.request("enqueue", to=self.stream(), env=env)
            case _ if self.held:
                one = self.held.pop()
                op = self.dice.choice(("ack", "ack", "ack", "nack", "release", "term", "extend"))
                by = {"leaseId": one["leaseId"]} if self.dice.random() < 0.7 else {"stream": one["stream"]}
                line.request("settle", id=one["deliver"]["id"], op=op, **by)


class Operator(Caller):
    """Looks at everything, sends dead letters home, and sometimes purges."""

    pace_ms = 150

    def act(self) -> None:
        line = self.line()
        stream = self.stream()
        match self.dice.randint(0, 6):
            case 0 | 1:
                line.request("redrive", stream=stream, max=self.dice.randint(1, 10))
            case 2:
                line.request("peek", stream=stream, state=self.dice.choice(operations.PEEK_STATES))
            case 3:
                line.request("metrics")
            case 4:
                line.request("explain", stream=stream)
            case 5:
                line.request("where", id=f"p1-{self.dice.randint(1, 40)}")
            case _ if self.dice.random() < 0.3:
                self.purge(stream)

    def purge(self, stream: str) -> None:
        """As the HTTP route does it: only an operator may."""
        world = self.world
        now = world.clock.now()
        outcome = operations.purge(world.machine, now, OPERATOR, operations.StreamRequest(stream))
        if isinstance(outcome, operations.Result):
            world.runtime.when(outcome.gate, False, lambda refusal: world.note("purged", str(refusal)))
        world.runtime.apply(now)


class Vandal(Caller):
    """Says nothing but what must be refused."""

    vandal = True
    pace_ms = 60

    def act(self) -> None:
        line = self.line()
        bad = self.dice.choice(_BAD)
        if isinstance(bad, bytes):
            line.send_line(bad)
        else:
            env = {**_ENV, **bad.get("env", {})} if isinstance(bad.get("env"), dict) else bad.get("env")
            fields = {"stream": self.stream(), **bad, **({"env": env} if "env" in bad else {})}
            line.request(fields.pop("kind"), **fields)


_ENV: Frame = {"id": "v", "ts": TS, "type": "t", "payload": None}
_BAD: list[Any] = [
    b"{",
    b"[]",
    b"\xff\xfe",
    b"null",
    b'{"type":"enqueue","to":"s","env":{"id":"v","id":"v","ts":"' + TS.encode() + b'","type":"t","payload":1}}',
    b'{"type":"enqueue","to":"s","env":' + b"[" * 100 + b"]" * 100 + b"}",
    {"kind": "dance"},
    {"kind": "enqueue", "to": "s"},
    {"kind": "enqueue", "to": "s", "env": 5},
    {"kind": "enqueue", "to": "s", "env": []},
    {"kind": "enqueue", "to": "s", "env": {"id": ""}},
    {"kind": "enqueue", "to": "s", "env": {"id": 7}},
    {"kind": "enqueue", "to": "s", "env": {"ts": "yesterday"}},
    {"kind": "enqueue", "to": "s", "env": {"ts": "2026-01-01T00:00:00"}},
    {"kind": "enqueue", "to": "s", "env": {"to": "elsewhere"}},
    {"kind": "enqueue", "to": "s", "env": {"tags": [1]}},
    {"kind": "enqueue", "to": "s*", "env": {}},
    {"kind": "enqueue", "to": "s", "env": {}, "delayMs": -1},
    {"kind": "enqueue", "to": "s", "env": {}, "delayMs": 10**12},
    {"kind": "enqueue", "to": "s", "env": {"payload": "x" * 5_000}},
    {"kind": "subscribe", "credit": -1},
    {"kind": "subscribe", "credit": 10**9},
    {"kind": "subscribe", "auto": 10**9},
    {"kind": "subscribe", "batch": 0},
    {"kind": "subscribe", "leaseMs": 1},
    {"kind": "subscribe", "subId": "x" * 10_000},
    {"kind": "grant", "n": 1},
    {"kind": "grant", "n": 1.5},
    {"kind": "unsubscribe", "subId": "nobody"},
    {"kind": "ack", "id": "p1-1"},
    {"kind": "nack", "id": "p1-2", "delayMs": -5},
    {"kind": "extend", "id": "p1-3", "ms": 1},
    {"kind": "term", "id": 5},
    {"kind": "pull", "max": 0},
    {"kind": "pull", "waitMs": -1},
    {"kind": "settle", "id": "p1-4", "op": "dance", "leaseId": "x"},
    {"kind": "settle", "id": "p1-5", "op": "ack", "leaseId": "not.a.lease"},
    {"kind": "settle", "id": "p1-6", "op": "ack", "stream": "nowhere"},
    {"kind": "settle", "id": "p1-7", "op": "ack", "stream": None},
    {"kind": "peek", "state": "everything"},
    {"kind": "peek", "max": 0},
    {"kind": "stats", "stream": "nowhere"},
    {"kind": "explain", "stream": "nowhere"},
    {"kind": "redrive", "stream": "nowhere"},
    {"kind": "redrive", "max": 0},
    {"kind": "where", "id": "nobody"},
    {"kind": "snapshot", "view": "none"},
    {"kind": "hello", "version": "v9"},
]

