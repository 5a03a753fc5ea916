"""Actors in spaces: participants with random behaviour, an administrator, and malicious ones.

Each has its own random numbers, acts on what its own connection received, and reconnects after a loss. Actors check nothing: the
witness and the checks see everything they cause. Every frame and envelope of a storm is unique, so that each can be followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.testing.clients import Frame, SpaceClient, token_of
from tests.simulation.queue.actors import Actor

if TYPE_CHECKING:
    from tests.simulation.world import CheckedWorld

EXTRAS = ("extra/a", "extra/b", "extra/c")
"""Kinds that are granted and taken back; none covers another."""
GUESTS = ("guest-1", "guest-2", "guest-3", "guest-4", "guest-5")
FRAME_SIZES = (0, 5, 40, 130, 700)


class Participant(Actor):
    """A participant of a space that reconnects when its connection is lost."""

    def __init__(self, world: CheckedWorld, name: str, space: str) -> None:
        super().__init__(world, f"{space}/{name}", [space])
        self.space = space
        self.who = name
        self.client: SpaceClient | None = None
        self.older: list[SpaceClient] = []
        """Connections that another took over, still open as far as it knows."""
        self._no = 0

    @property
    def token(self) -> str:
        return token_of(self.who)

    def id(self) -> str:
        """The id to join as: its own, or sometimes an unused one."""
        return self.who if self.dice.random() < 0.85 else f"{self.who}-alias"

    def wire(self) -> SpaceClient:
        """The connection, made anew when it was lost; what is sent right behind the join waits for it."""
        if self.client is None or self.client.closed is not None:
            self.client = self.world.join(self.space, self.id(), self.token, name=self.name)
            self.client.on_envelope = self.heard
        return self.client

    def heard(self, envelope: Frame) -> None:
        """A message of the gateway or of another participant arrived."""

    def data(self) -> bytes:
        """What no other frame carries, marks and odd bytes included."""
        self._no += 1
        odd = bytes(self.dice.choices((0, 10, 35, 91, 123, 255), k=self.dice.choice(FRAME_SIZES)))
        return f"{self.name}/{self._no}#".encode() + odd

    def others(self) -> list[str]:
        """Who was seen here."""
        heard = [] if self.client is None else self.client.envelopes
        names = [each["from"] for each in heard[-40:] if "from" in each]
        return [*names, self.who, "ann", "bob", "collector"]

    def act(self) -> None:
        if self.client is not None and self.dice.random() < 0.04:
            self.stumble(self.client)
            return
        client = self.wire()
        streams = client.streams
        mine = [id_ for id_, each in streams.items() if each.owner == client.id]
        written = [id_ for id_, each in streams.items() if client.id in each.writers]
        match self.dice.randint(0, 15):
            case 0 | 1:
                self.chat(client)
            case 2 if len(mine) < 3:
                self.request(client)
            case 3 if mine:
                self.decide(client, self.dice.choice(mine))
            case 4 if mine and self.dice.random() < 0.4:
                self.close(client, self.dice.choice(mine))
            case 5 if written:
                # Strict order: a frame between envelopes stays there.
                self.chat(client)
                client.write(self.dice.choice(written), self.data())
                self.chat(client)
            case 6 if streams:
                client.write(self.dice.choice(list(streams)), self.data())
            case 7:
                client.send(self.dice.choice(EXTRAS), {"n": self._no})
            case _ if written:
                for _ in range(self.dice.choice((1, 1, 2, 6, 20))):
                    client.write(self.dice.choice(written), self.data())

    def stumble(self, client: SpaceClient) -> None:
        """Lose the connection, take it over from elsewhere, join again on it, or stop reading."""
        match self.dice.randint(0, 6):
            case 0:
                client.pipe.cut()
            case 1 | 2:
                self.older.append(client)
                self.client = None
                self.wire()
            case 3:
                client.join(self.space, self.id(), self.token)
            case 4 | 5:
                client.pipe.pause()
                self.world.clock.after(self.dice.randint(50_000, 1_500_000), client.pipe.resume)
            case _ if self.older:
                self.chat(self.older.pop())

    def chat(self, client: SpaceClient) -> None:
        self._no += 1
        text = f"{self.name} says {self._no} " + "x" * self.dice.choice((0, 30, 400))
        sender: Frame = self.dice.choice(({}, {}, {"from": client.id or self.who}))
        client.send("chat", {"text": text}, **sender)

    def request(self, client: SpaceClient) -> None:
        names = self.others()
        target: Any = self.dice.choice(
            (None, [], [self.dice.choice(names)], self.dice.choice(names), self.dice.sample(names, 2))
        )
        payload: Frame = {"direction": "upload", "owner": "nobody", "stream_id": "stream-0"}
        if target is not None:
            payload["target"] = target
        if self.dice.random() < 0.5:
            payload |= self.dice.choice(
                ({"overflow": "disconnect"}, {"overflow": "wait"}, {"expected_size_bytes": 9_000})
            )
        id_ = client.send("stream/request", payload)
        for _ in range(self.dice.choice((0, 0, 2))):
            # It can only guess the id; a right guess is right behind its request.
            newest = max([int(each.rpartition("-")[2]) for each in client.streams], default=0)
            client.write(f"stream-{newest + 1}", self.data())
        if self.dice.random() < 0.1:
            client.send("stream/close", {"reason": "at once"}, correlation_id=[id_])

    def decide(self, client: SpaceClient, stream: str) -> None:
        """What only an owner may, more than one thing at a time."""
        for _ in range(self.dice.choice((1, 1, 2, 3))):
            who = self.dice.choice(self.others())
            match self.dice.randint(0, 4):
                case 0 | 1:
                    client.send("stream/grant-write", {"stream_id": stream, "participant_id": who})
                case 2 | 3:
                    writers = client.streams[stream].writers if stream in client.streams else [who]
                    who = self.dice.choice([*writers, who])
                    client.send("stream/revoke-write", {"stream_id": stream, "participant_id": who})
                case _:
                    client.send("stream/transfer-ownership", {"stream_id": stream, "new_owner": who})
            client.write(stream, self.data())

    def close(self, client: SpaceClient, stream: str) -> None:
        client.send("stream/close", {"stream_id": stream})
        client.write(stream, self.data())


class Boss(Participant):
    """A participant with every capability: it grants, revokes, invites and kicks."""

    pace_ms = 120

    def __init__(self, world: CheckedWorld, name: str, space: str) -> None:
        super().__init__(world, name, space)
        self.grants: list[tuple[str, str]] = []
        self.tokens: dict[str, str] = {}

    def heard(self, envelope: Frame) -> None:
        payload = envelope["payload"]
        if envelope["kind"] == "space/invite-ack" and payload["status"] == "created":
            self.tokens[payload["participant_id"]] = payload["token"]

    def act(self) -> None:
        if self.dice.random() < 0.3:
            super().act()
            return
        client = self.wire()
        party = self.dice.choice(("ann", "bob", "cat", *GUESTS))
        match self.dice.randint(0, 9):
            case 0 | 1 | 2:
                for _ in range(self.dice.choice((1, 1, 2, 4))):
                    kinds = self.dice.sample(EXTRAS, self.dice.randint(1, 2))
                    payload = {"recipient": party, "capabilities": [{"kind": kind} for kind in kinds]}
                    self.grants.append((party, client.send("capability/grant", payload)))
            case 3 if self.grants:
                party, id_ = self.dice.choice(self.grants)
                client.send("capability/revoke", {"recipient": party, "grant_id": id_})
            case 4:
                taken = [{"kind": self.dice.choice(EXTRAS)}]
                client.send("capability/revoke", {"recipient": party, "capabilities": taken})
            case 5 | 6:
                guest = self.dice.choice(GUESTS)
                rights = [{"kind": kind} for kind in ("chat", "stream/*")]
                for _ in range(self.dice.choice((1, 1, 2))):
                    client.send("space/invite", {"participant_id": guest, "initial_capabilities": rights})
            case 7 | 8 if self.dice.random() < 0.7:
                client.send("space/kick", {"participant_id": self.dice.choice(GUESTS), "reason": "noise"})
            case _ if self.dice.random() < 0.1:
                # It is invited again right behind, so that the space does not run empty.
                client.send("space/kick", {"participant_id": "cat"})
                rights = [{"kind": "*"}]
                client.send("space/invite", {"participant_id": "cat", "initial_capabilities": rights})


class Guest(Participant):
    """A participant that joins by invitation, with the latest token that the boss received."""

    pace_ms = 90

    def __init__(self, world: CheckedWorld, name: str, space: str, boss: Boss) -> None:
        super().__init__(world, name, space)
        self._boss = boss

    @property
    def token(self) -> str:
        return self._boss.tokens.get(self.who, "none")

    def act(self) -> None:
        if self.who in self._boss.tokens or self.dice.random() < 0.05:
            super().act()


class Liar(Participant):
    """A participant with a valid token that sends false data otherwise."""

    pace_ms = 80

    def act(self) -> None:
        dice = self.dice
        client = self.wire()
        match dice.randint(0, 11):
            case 0:
                client.send("chat", {"text": "it was me"}, **{"from": dice.choice(("ann", "gateway", "boss"))})
            case 1:
                kind = dice.choice(("system/presence", "system/welcome", "system/error", "system/register"))
                client.send(kind, {"event": "join", "participant": {"id": "nobody"}})
            case 2:
                said = {"stream_id": "stream-1", "owner": self.who, "authorized_writers": [self.who]}
                client.send(dice.choice(("stream/open", "stream/write-granted", "space/invite-ack")), said)
            case 3 | 4 if client.streams:
                client.write(dice.choice(list(client.streams)), self.data())
            case 5 if client.streams:
                stream = dice.choice(list(client.streams))
                self.decide(client, stream)
                client.send("stream/close", {"stream_id": stream})
            case 6:
                client.post(dice.choice((b"{", b"[]", b"null", b"\xff\xfe", b"#abc", b"##x", b'{"kind":5}')))
            case 7:
                impostor = self.world.connect_space(self.name)
                impostor.write("stream-1", self.data())
                impostor.send("chat", {"text": "hello?"})
                impostor.join(self.space, "ann", dice.choice((self.token, "guessed")))
                impostor.send("chat", {"text": "it is me, ann"})
            case 8:
                client.post({"id": client.new_id(), "kind": "chat", "payload": {"text": "y" * 5_000}})
            case 9:
                client.send("space/kick", {"participant_id": "ann"})
            case 10:
                client.send("capability/grant", {"recipient": self.who, "capabilities": [{"kind": "*"}]})
            case _:
                self.chat(client)
