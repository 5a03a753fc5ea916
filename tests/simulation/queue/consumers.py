"""Actors that consume: they grant and settle, in time, late, twice, and with foreign leases; some read slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.testing.clients import Frame, LineClient, SocketClient
from tests.simulation.queue.actors import Actor, Caller, named

if TYPE_CHECKING:
    from tests.simulation.world import CheckedWorld


class Consumer(Caller):
    """Subscribes, grants, settles in every way: in time, late, twice, and what is not its own."""

    pace_ms = 30

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
            leaseMs=self.dice.choice((None, 100, 500)),
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
                # Without reqId, these are one run; only a failure is answered.
                line.send_line(*[{"type": "ack", "id": id_} for id_ in ids])
            case _ if self.held:
                self.settle(line, self.held.pop(self.dice.randrange(len(self.held))))
        if self.dice.random() < 0.2:
            line.pipe.resume()

    def strangers(self) -> str:
        """The id of any envelope."""
        place = self.dice.randint(1, 40)
        return f"{self.dice.choice(('p1', 'p2'))}-{place}"

    def settle(self, line: LineClient, one: Frame) -> None:
        self.past.append(one["id"])
        exact = {"leaseId": one["leaseId"]} if self.dice.random() < 0.5 else {}
        if self.dice.random() < 0.7:
            exact["subId"] = one["subId"]
        match self.dice.randint(0, 9):
            case 0:
                line.request("nack", id=one["id"], delayMs=self.dice.randint(0, 400), **exact)
            case 1:
                line.request("nack", id=one["id"], reason="failed", **exact)
            case 2:
                line.request("nack", id=one["id"], requeue=False, **exact)
            case 3:
                line.request("release", id=one["id"], **exact)
            case 4:
                line.request("term", id=one["id"], reason="never", **exact)
            case 5:
                line.request("extend", id=one["id"], ms=self.dice.choice((100, 1_000)), **exact)
                self.held.append(one)
            case _:
                line.request("ack", id=one["id"], **exact)


class SocketConsumer(Actor):
    """A subscriber on its own socket, sometimes slow to read."""

    pace_ms = 45

    def __init__(self, world: CheckedWorld, name: str, streams: list[str]) -> None:
        super().__init__(world, name, streams)
        self.client: SocketClient | None = None
        self.held: list[str] = []
        self.past: list[str] = []

    def socket(self) -> SocketClient:
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
