"""The witness reads everything that passes between clients and the server, and checks the server against it.

It sees requests when they reach the server and answers when the server writes them, so its verdict does not depend on the network. It
never looks into the machine.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable

import msgspec

from penstock.core.errors import TABLE
from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.dialects.courier.wire import envelopes
from penstock.testing.network import SimConnection
from tests.simulation.queue import checks
from tests.simulation.queue.checks import Broken
from tests.simulation.queue.conversation import Awaited, Conversation, Frame, ends
from tests.simulation.queue.history import TERMINAL, History, Place


class Witness:
    """Remembers what was promised. Raises `Broken` when the server breaks its word."""

    def __init__(self, history: History, policy_for: Callable[[str], Policy]) -> None:
        self.history = history
        self._policy_for = policy_for
        self.acknowledged: dict[tuple[str, str], int] = {}
        """Enqueues that were answered: stream and id, and the number in the answer."""
        self.confirmed: dict[Place, str] = {}
        """Final settles that were confirmed."""
        self.brought_back = 0
        """Settles that the journal refused: their records are live again."""
        self.deliveries = 0
        self.probe: Callable[[SimConnection], tuple[object, int | None]] | None = None
        """The state of the machine, and how many answers a connection has coming unless it is being closed."""
        self.conversations: dict[int, Conversation] = {}
        self._holders: dict[Place, tuple[int, str]] = {}
        self._newest: dict[tuple[str, str], Place] = {}
        self.ended_runs: set[str] = set()
        """Runs of cells that crashed while the others went on: an answer that waited for others may still give their leases, which are over."""
        self._leases: dict[str, Place] = {}
        self._firsts: dict[object, list[tuple[int, int]]] = {}
        """First deliveries of this life in each stream, or each key or level of it: numbers of lease and record."""
        self._unordered: set[Place] = set()

    def restarted(self) -> None:
        """A new life: deliveries begin again from the oldest record."""
        self._firsts.clear()

    def committed(self, rows: list[Row]) -> None:
        """Rows became durable."""
        self.history.add(rows)
        for row in rows:
            enqueued_us = self.history.recorded.get((row.channel, row.seq))  # None: the journal refused the record
            # A rule may fire for a record that is still on its way to the disk: then neither row nor time is known.
            is_known = row.ref_at is not None or row.event in TERMINAL
            if row.ref_offset is not None and is_known and enqueued_us not in (None, row.ref_at):
                raise Broken(checks.TIMES, f"`{row.event}` of `{row.id}` has the time {row.ref_at}")
            if row.event == "ack" and (row.channel, row.seq) in self._holders:
                no, _ = self._holders[row.channel, row.seq]
                if self.conversations[no].who != row.peer:
                    holder = self.conversations[no].who
                    raise Broken(checks.HOLDER, f"`{row.peer}` acked `{row.id}`, which `{holder}` holds")

    def refused(self, rows: list[Row]) -> None:
        """Rows were refused: what they settled comes back, out of its turn."""
        for row in rows:
            if row.event in TERMINAL:
                self.brought_back += 1
                self._unordered.add((row.channel, row.seq))

    # To the server

    def arriving(self, pipe: SimConnection, data: bytes) -> Callable[[], None] | None:
        talk = self.conversations[pipe.no]
        if pipe.framed:
            self._message(talk, data)
        else:
            *lines, talk.rest = (talk.rest + data).split(b"\n")
            for line in lines:
                self._line(talk, line)
        if not talk.vandal or self.probe is None:
            return None
        probe = self.probe
        before, coming = probe(pipe)
        whole = pipe.framed or b"\n" in data

        def compare() -> None:
            after, now_coming = probe(pipe)
            if after != before:
                raise Broken(checks.BAD_INPUT, f"{data!r} changed the state")
            if whole and coming is not None and now_coming is not None and now_coming <= coming:
                raise Broken(checks.BAD_INPUT, f"{data!r} was not answered")

        return compare

    def _line(self, talk: Conversation, line: bytes) -> None:
        try:
            frame = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if not isinstance(frame, dict):
            return
        kind = frame.get("type")
        if kind == "subscribe":
            talk.granted += max(_number(frame.get("credit")), 0)
            talk.automatic = talk.automatic or bool(frame.get("auto"))
        elif kind == "grant":
            talk.granted += max(_number(frame.get("n")), 0)
        req_id = frame.get("reqId")
        if isinstance(req_id, int):
            frame["places"] = self._places(talk, frame)
            talk.requests[req_id] = frame

    def _places(self, talk: Conversation, frame: Frame) -> list[tuple[str, Place | None]]:
        """Which records a settle means, as far as can be said when it arrives."""
        ids = frame.get("id")
        ids = ids if isinstance(ids, list) else [ids]
        if frame.get("leaseId") in self._leases:
            return [(str(id_), self._leases[frame["leaseId"]]) for id_ in ids]
        if frame.get("type") == "settle":
            return [(str(id_), self._newest.get((str(frame.get("stream")), str(id_)))) for id_ in ids]
        return [(str(id_), talk.place(str(id_))) for id_ in ids]

    def _message(self, talk: Conversation, data: bytes) -> None:
        try:
            message = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if not isinstance(message, dict):
            return
        talk.granted += max(_number(message.get("credit")), 0)
        talk.messages += 1
        for op in ("ack", "nack", "release", "term", "extend"):
            ids = message.get(op, [])
            talk.awaited += [
                Awaited(talk.messages, op, str(id_), message) for id_ in (ids if isinstance(ids, list) else [ids])
            ]

    # From the server

    def sent(self, pipe: SimConnection, messages: list[bytes]) -> None:
        talk = self.conversations[pipe.no]
        if pipe.framed:
            for message in messages:
                self._said_on_socket(pipe, talk, msgspec.json.decode(message))
        else:
            for line in b"".join(messages).splitlines():
                self._said(pipe, talk, msgspec.json.decode(line))

    def _said(self, pipe: SimConnection, talk: Conversation, frame: Frame) -> None:
        match frame["type"]:
            case "deliver":
                one = not isinstance(frame["seq"], list)
                columns = [[frame[key]] if one else frame[key] for key in ("env", "seq", "attempt", "leaseId")]
                for env, seq, attempt, lease_id in zip(*columns, strict=True):
                    self._delivered(pipe, talk, frame["stream"], env, seq, attempt, lease_id)
                self._drew(talk, len(columns[0]))
            case "ok":
                request = self._in_order(talk, frame["reqId"])
                if talk.vandal:
                    raise Broken(checks.BAD_INPUT, f"{request} was answered {frame}")
                if request is not None:
                    if frame["reqId"] in talk.succeeded:
                        raise Broken(checks.ANSWERS, f"{request} was answered twice")
                    talk.succeeded.add(frame["reqId"])
                    self._succeeded(pipe, talk, request, frame["result"])
            case "error":
                request = self._in_order(talk, frame["reqId"])
                if frame["reqId"] in talk.succeeded:
                    raise Broken(checks.ANSWERS, f"{request} succeeded and failed")
                self._failed(frame, frame["detail"])

    def _said_on_socket(self, pipe: SimConnection, talk: Conversation, message: Frame) -> None:
        assert talk.stream is not None
        if "deliver" in message:
            one = not isinstance(message["seq"], list)
            columns = [[message[key]] if one else message[key] for key in ("deliver", "seq", "attempt", "leaseId")]
            for env, seq, attempt, lease_id in zip(*columns, strict=True):
                self._delivered(pipe, talk, talk.stream, env, seq, attempt, lease_id)
            self._drew(talk, len(columns[0]))
        elif "settled" in message:
            awaited = talk.waited_for(message["settled"], settled=True)
            if awaited is None:
                raise Broken(checks.ANSWERS, f"{message} answers no settle that still waits")
            if ends(awaited.op, awaited.message):
                self._confirmed(pipe, talk, awaited.id, talk.place(awaited.id), awaited.op)
        elif "error" in message:
            self._failed(message["error"], message["error"]["message"])
            talk.waited_for(message["error"].get("ref", ""))

    def _in_order(self, talk: Conversation, req_id: object) -> Frame | None:
        if not isinstance(req_id, int):
            return None
        if req_id < talk.answered:
            raise Broken(checks.ANSWERS, f"request {req_id} was answered after request {talk.answered}")
        talk.answered = req_id
        return talk.requests.get(req_id)

    def _drew(self, talk: Conversation, count: int) -> None:
        talk.delivered += count
        if talk.delivered > talk.granted and not talk.automatic:
            raise Broken(checks.CREDIT, f"`{talk.who}` granted {talk.granted} and got {talk.delivered}")

    def _delivered(
        self,
        pipe: SimConnection,
        talk: Conversation,
        stream: str,
        env: Frame,
        seq: int,
        attempt: int,
        lease_id: str,
    ) -> None:
        """A subscription got a record: the server writes it in the turn in which it leases it."""
        place = (stream, seq)
        if place in self.history.settled or place in self.confirmed:
            raise Broken(checks.DURABLE, f"`{env['id']}` of `{stream}` was settled and is delivered again")
        self._leased(pipe, talk, stream, env, seq, attempt, lease_id)

    def _leased(
        self,
        pipe: SimConnection,
        talk: Conversation,
        stream: str,
        env: Frame,
        seq: int,
        attempt: int,
        lease_id: str,
    ) -> None:
        """A client received a lease; a pull's may be late, because its answer waited for others."""
        id_ = env["id"]
        place = (stream, seq)
        self.deliveries += 1
        if self.history.ids.get(place) != id_:
            raise Broken(checks.VISIBLE, f"`{id_}` of `{stream}` was delivered and is not durable")
        if lease_id in self._leases:
            raise Broken(checks.HOLDER, f"lease `{lease_id}` of `{id_}` was given out before")
        self._leases[lease_id] = place
        self._newest[stream, id_] = place
        talk.places.setdefault(id_, {})[stream] = seq
        is_over = lease_id.rpartition(".")[2] in self.ended_runs
        if place not in self._holders or (not is_over and _is_later(lease_id, self._holders[place][1])):
            self._holders[place] = (pipe.no, lease_id)
        if attempt == 1 and place not in self.history.delayed and place not in self._unordered:
            self._in_sequence(stream, env, lease_id, seq)

    def _in_sequence(self, stream: str, env: Frame, lease_id: str, seq: int) -> None:
        """Leases are numbered as they are given; connections are written to in any order within a turn."""
        policy = self._policy_for(stream)
        headers = env.get("headers") or {}
        lane: object = None
        if policy.partitioned:
            lane = env.get("partitionKey", headers.get("partitionKey", seq))  # without a key there is no order
        elif policy.priority:
            lane = envelopes.priority(msgspec.json.encode(env))
        lease = _number_of(lease_id)
        # Another run begins again from the oldest record; what an earlier one gave may still be on its way.
        firsts = self._firsts.setdefault((stream, lane, lease_id.rpartition(".")[2]), [])
        at = bisect(firsts, (lease, seq))
        if (at > 0 and firsts[at - 1][1] > seq) or (at < len(firsts) and firsts[at][1] < seq):
            raise Broken(checks.ORDER, f"`{stream}` delivers {seq} out of turn: {firsts[max(at - 3, 0) : at + 3]}")
        firsts.insert(at, (lease, seq))

    def _failed(self, error: Frame, text: str) -> None:
        kind = TABLE.get(error["code"])
        if kind is None or not error.get("hint") or not text or "\n" in text or error["status"] != kind.status:
            raise Broken(checks.BAD_INPUT, f"{error} is not an error of the table")
        if error["code"] == "AlreadyAcked" and error["ref"] not in self.history.settled_ids:
            raise Broken(checks.DURABLE, f"`{error['ref']}` is called settled and no settle is durable")

    def _succeeded(self, pipe: SimConnection, talk: Conversation, request: Frame, result: Frame) -> None:
        match request["type"]:
            case "enqueue" | "send":
                many = "ids" in result
                stream = str(result.get("to", request["to"]))
                pairs = zip(result["ids"], result["seqs"], strict=True) if many else [(result["id"], result["seq"])]
                for id_, seq in pairs:
                    if self.history.ids.get((stream, seq)) != id_:
                        raise Broken(checks.DURABLE, f"`{id_}` in `{stream}` is acknowledged and not durable")
                    self.acknowledged[stream, id_] = seq
            case "ack" | "nack" | "term" | "settle":
                op = str(request.get("op", request["type"]))
                if ends(op, request):
                    for id_, place in request["places"]:
                        self._confirmed(pipe, talk, id_, place, op, by_name=request["type"] == "settle")
            case "pull":
                got = result["deliveries"]
                if len(got) > request.get("max", 1):
                    raise Broken(checks.CREDIT, f"{request} got {len(got)}")
                for row in got:
                    self._leased(
                        pipe,
                        talk,
                        row["stream"],
                        row["deliver"],
                        row["seq"],
                        row["attempt"],
                        row["leaseId"],
                    )
            case "peek":
                for row in result["rows"]:
                    if (row["stream"], row["seq"]) not in self.history.ids:
                        raise Broken(checks.VISIBLE, f"{row} is seen and not durable")
            case "metrics":
                for row in result["streams"]:
                    checks.metrics_balance(row["q"], row["id"])
                    if row["q"]["q.in"] > self.history.counts.get(row["id"], 0):
                        raise Broken(checks.VISIBLE, f"{row} counts what is not durable")

    def _confirmed(
        self,
        pipe: SimConnection,
        talk: Conversation,
        id_: str,
        place: Place | None,
        op: str,
        *,
        by_name: bool = False,
    ) -> None:
        """A final settle is confirmed: it must be durable, and the holder's."""
        if place is None:
            if id_ not in talk.places and not by_name:
                raise Broken(checks.HOLDER, f"`{talk.who}` was never given `{id_}` and may {op} it")
            return
        if self._holders[place][0] != pipe.no:
            # Another record of this id, new or a dead letter, was leased here before this settle and written after it.
            here = talk.places.get(id_, {}).items()
            place = next((one for one in here if self._holders[one][0] == pipe.no), place)
        if place not in self.history.settled and place not in self.history.fated:
            raise Broken(checks.DURABLE, f"{op} of `{id_}` is confirmed and not durable")
        no, _ = self._holders[place]
        if no != pipe.no and not (by_name and self.conversations[no].who == talk.who):
            raise Broken(checks.HOLDER, f"`{talk.who}` may {op} `{id_}`, which `{self.conversations[no].who}` holds")
        self.confirmed[place] = op


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _number_of(lease_id: str) -> int:
    return int(lease_id.partition(".")[0], 16)


def _is_later(lease_id: str, than: str) -> bool:
    """Leases of one run are numbered; another run's are over."""
    same_run = lease_id.rpartition(".")[2] == than.rpartition(".")[2]
    return not same_run or _number_of(lease_id) > _number_of(than)
