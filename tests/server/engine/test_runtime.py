"""The loop around the machine: one append and one write a turn, and no answer before its commit."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.control.session import ControlSession
from tests.dialects.courier.talking import Broker, HandJournal, ListWire, envelope, line


def enqueues(stream: str, *ids: str, **more: Any) -> bytes:
    return b"".join(line(type_="enqueue", to=stream, env=envelope(id_, **more), reqId=id_) for id_ in ids)


def by_hand(policy: Policy | None = None, limits: Limits | None = None) -> tuple[Broker, HandJournal]:
    journal = HandJournal()
    return Broker(policy, limits=limits, journal=journal), journal


class TestTurns:
    def test_nothing_is_written_inside_the_call_that_brought_the_bytes(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.send(line(type_="ping", reqId=1))
        assert peer.wire.writes == []
        broker.run()
        assert len(peer.wire.writes) == 1

    @pytest.mark.promise("Foundations", "a connection is written to once a turn, in one file")
    def test_many_answers_of_one_turn_are_one_write(self) -> None:
        broker = Broker()
        peer = broker.control()
        for n in range(50):
            peer.send(line(type_="ping", reqId=n))
        broker.run()
        assert len(peer.wire.writes) == 1
        assert len(peer.heard()) == 50

    def test_deliveries_and_answers_of_one_commit_are_one_write(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=100)
        peer.send(enqueues("a", *(str(n) for n in range(20))))
        broker.run()
        assert len(peer.wire.writes) == 1
        assert len(peer.heard()) == 40

    def test_what_all_connections_sent_in_a_turn_is_one_append(self) -> None:
        broker, journal = by_hand()
        for n, peer in enumerate([broker.control() for _ in range(5)]):
            peer.send(enqueues("a", str(n)))
        broker.run()
        assert journal.appended == [5]

    @pytest.mark.promise("Foundations", "an enqueue of several envelopes is one commit")
    def test_an_array_is_one_append(self) -> None:
        broker, journal = by_hand()
        broker.control().send({"type": "enqueue", "to": "a", "env": [envelope(str(n)) for n in range(100)]})
        broker.run()
        assert journal.appended == [100]

    def test_a_quiet_connection_is_not_written_to(self) -> None:
        broker = Broker()
        quiet, loud = broker.control(), broker.control()
        loud.say(type_="ping", reqId=1)
        assert (quiet.wire.writes, len(loud.wire.writes)) == ([], 1)


class TestDurability:
    @pytest.mark.promise("Foundations", "a change is visible only when it is durable")
    def test_an_envelope_is_seen_and_answered_only_when_durable(self) -> None:
        broker, journal = by_hand()
        producer, consumer = broker.control(), broker.subscribe("a", credit=5)
        producer.send(enqueues("a", "1"))
        broker.run()
        assert (producer.heard(), consumer.heard()) == ([], [])
        assert broker.counts("a")["q.depth"] == 0
        journal.commit()
        broker.run()
        assert [frame["reqId"] for frame in producer.heard()] == ["1"]
        assert [frame["deliver"]["id"] for frame in consumer.heard()] == ["1"]

    def test_a_settle_is_confirmed_only_when_durable(self) -> None:
        broker, journal = by_hand()
        producer, consumer = broker.control(), broker.subscribe("a", credit=5, confirm=True)
        producer.send(enqueues("a", "1"))
        broker.run()
        journal.commit()
        broker.run()
        consumer.heard()
        consumer.send({"ack": "1"})
        broker.run()
        assert consumer.heard() == []
        journal.commit()
        broker.run()
        assert [frame["settled"] for frame in consumer.heard()] == ["1"]

    @pytest.mark.promise("Idempotency", "a duplicate of an uncommitted id waits for the same commit")
    def test_a_duplicate_of_an_uncommitted_id_waits_for_the_first(self) -> None:
        broker, journal = by_hand()
        first, second = broker.control(), broker.control()
        first.send(enqueues("a", "1"))
        broker.run()
        second.send(enqueues("a", "1"))
        broker.run()
        assert second.heard() == []
        journal.commit()
        broker.run()
        assert second.heard()[0]["result"]["duplicate"] is True

    def test_an_already_acked_waits_for_the_ack_it_rests_on(self) -> None:
        broker, journal = by_hand()
        peer = broker.control()
        peer.send(line(type_="subscribe", stream="a", credit=1) + enqueues("a", "1"))
        broker.run()
        journal.commit()
        broker.run()
        peer.heard()
        peer.send(line(type_="ack", id="1") + line(type_="ack", id="1", reqId="again"))
        broker.run()
        assert peer.heard() == []
        journal.refuse()
        broker.run()
        (answer,) = peer.heard()
        assert (answer["reqId"], answer["code"]) == ("again", "JournalUnavailable")

    def test_a_refused_batch_is_answered_503_and_never_was(self) -> None:
        broker, journal = by_hand()
        producer, consumer = broker.control(), broker.subscribe("a", credit=5)
        producer.send(enqueues("a", "1", "2"))
        broker.run()
        journal.refuse("the disk is full")
        broker.run()
        answers = producer.heard()
        assert [(a["reqId"], a["code"], a["status"]) for a in answers] == [
            ("1", "JournalUnavailable", 503),
            ("2", "JournalUnavailable", 503),
        ]
        assert answers[0]["detail"] == "the disk is full"
        assert answers[0]["retryAfterMs"] > 0
        assert consumer.heard() == []
        producer.send(enqueues("a", "1"))
        broker.run()
        journal.commit()
        broker.run()
        assert [answer["type"] for answer in producer.heard()] == ["ok"]

    def test_when_only_fresh_facts_are_refused_settles_are_confirmed(self) -> None:
        broker, journal = by_hand()
        producer, consumer = broker.control(), broker.subscribe("a", credit=5, confirm=True)
        producer.send(enqueues("a", "1"))
        broker.run()
        journal.commit()
        broker.run()
        producer.heard()
        consumer.heard()
        producer.send(enqueues("a", "2"))
        consumer.send({"ack": "1"})
        broker.run()
        journal.commit(refused="no space for records")
        broker.run()
        assert [answer["code"] for answer in producer.heard()] == ["JournalUnavailable"]
        assert [frame["settled"] for frame in consumer.heard()] == ["1"]

    def test_a_pulls_answer_does_not_carry_a_refused_enqueue_past_its_refusal(self) -> None:
        """The commit that refuses the enqueue also brings the dead letter that the pull waits for."""
        broker, journal = by_hand()
        peer, worker = broker.control(), broker.control()
        worker.send(line(type_="subscribe", stream="a", credit=1) + enqueues("a", "1"))
        broker.run()
        journal.commit()
        broker.run()
        peer.send(line(type_="pull", stream="dlq/a", waitMs=60_000, reqId="pull"))
        worker.send(line(type_="term", id="1"))
        peer.send(enqueues("b", "new"))
        broker.run()
        journal.commit(refused="no space for records")
        broker.run()
        pulled, enqueued = peer.heard()
        assert [row["deliver"]["id"] for row in pulled["result"]["deliveries"]] == ["1"]
        assert (enqueued["reqId"], enqueued["code"]) == ("new", "JournalUnavailable")

    def test_an_answer_to_a_connection_that_is_gone_is_dropped(self) -> None:
        broker, journal = by_hand()
        peer = broker.control()
        peer.send(enqueues("a", "1"))
        broker.run()
        peer.gone()
        journal.commit()
        broker.run()
        assert peer.wire.writes == []
        assert broker.counts("a")["q.depth"] == 1

    def test_requests_without_a_connection_are_called_back(self) -> None:
        broker, journal = by_hand()
        outcomes: list[Refusal | None] = []
        gate = broker.machine.commit_log.gate
        broker.control().send(enqueues("a", "1"))
        broker.runtime.when(gate, True, outcomes.append)
        broker.run()
        assert outcomes == []
        journal.refuse("full")
        broker.run()
        assert [refusal.code for refusal in outcomes if refusal] == ["JournalUnavailable"]
        broker.runtime.when(gate, True, outcomes.append)
        assert len(outcomes) == 2

    def test_waiting_for_an_empty_batch_makes_one(self) -> None:
        broker, journal = by_hand()
        outcomes: list[Refusal | None] = []
        broker.runtime.when(broker.machine.commit_log.gate, False, outcomes.append)
        broker.run()
        assert journal.appended == [0]
        journal.commit()
        assert outcomes == [None]


def armed(broker: Broker) -> list[int]:
    """When the timers that the runtime has asked for will fire."""
    return [us for us, _, timer in broker.scheduler._timers if timer.call is not None]


class TestTime:
    @pytest.mark.promise("Foundations", "the runtime arms one timer, for the earliest deadline")
    def test_one_timer_is_armed_for_the_earliest_deadline(self) -> None:
        broker = Broker(Policy(lease_us=5_000_000))
        broker.subscribe("a", credit=100)
        producer = broker.control()
        for n in range(20):
            producer.send(enqueues("a", str(n)))
            broker.advance(10)
        assert armed(broker) == [broker.machine.next_deadline()]

    def test_an_earlier_deadline_moves_it(self) -> None:
        broker = Broker()
        broker.subscribe("a", credit=1)
        broker.control().send(enqueues("a", "1"))
        broker.run()
        pull = broker.control()
        pull.send(line(type_="pull", stream="b", waitMs=1_000, reqId=1))
        broker.run()
        assert armed(broker) == [broker.us + 1_000_000]
        broker.us += 1_000_000
        broker.run()
        assert len(pull.heard()) == 1

    def test_a_timer_alone_brings_an_expired_lease_back(self) -> None:
        broker = Broker(Policy(lease_us=5_000_000))
        peer = broker.subscribe("a", credit=2)
        broker.control().send(enqueues("a", "1"))
        broker.run()
        peer.heard()
        broker.us += 5_000_000
        broker.run()
        assert [frame["attempt"] for frame in peer.heard()] == [2]


class TestDrain:
    def test_with_nothing_leased_it_is_over_at_once(self) -> None:
        broker = Broker()
        peer, socket = broker.control(), broker.subscribe("a", credit=1)
        abandoned: list[int] = []
        broker.runtime.drain(abandoned.append)
        broker.run()
        assert abandoned == [0]
        assert [frame["code"] for frame in peer.heard()] == ["Draining"]
        assert (peer.wire.closed, socket.wire.closed) == ((1001, "Draining"), (1001, "Draining"))

    def test_leases_may_settle_and_nothing_new_is_taken(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=5)
        peer.say(type_="enqueue", to="a", env=envelope("1"))
        abandoned: list[int] = []
        broker.runtime.drain(abandoned.append)
        broker.run()
        assert abandoned == []
        assert broker.runtime.health(broker.now)["status"] == "draining"
        (error,) = peer.say(type_="enqueue", to="a", env=envelope("2"))
        assert (error["code"], error["status"]) == ("Draining", 503)
        (answer, bye) = peer.say(type_="ack", id="1", reqId=1)
        assert (answer["type"], bye["code"]) == ("ok", "Draining")
        assert abandoned == [0]

    def test_what_does_not_settle_in_time_is_given_up_and_counted(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=5)
        peer.say(type_="enqueue", to="a", env=envelope("1"))
        abandoned: list[int] = []
        broker.runtime.drain(abandoned.append)
        broker.run()
        broker.us += 4_999_999
        broker.run()
        assert abandoned == []
        broker.us += 1
        broker.run()
        assert abandoned == [1]
        assert peer.wire.closed == (1001, "Draining")
        broker.us += 60_000_000
        broker.run()
        assert abandoned == [1]

    def test_it_waits_for_the_journal(self) -> None:
        broker, journal = by_hand()
        peer = broker.control()
        peer.send(enqueues("a", "1"))
        broker.run()
        abandoned: list[int] = []
        broker.runtime.drain(abandoned.append)
        broker.run()
        assert abandoned == []
        journal.commit()
        broker.run()
        assert abandoned == [0]
        assert [frame["type"] for frame in peer.heard()] == ["ok", "error"]

    def test_a_waiting_pull_is_answered(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="pull", stream="a", waitMs=60_000, reqId=1)
        broker.runtime.drain(lambda _: None)
        broker.run()
        assert peer.heard()[0] == {"type": "ok", "reqId": 1, "result": {"deliveries": []}}


def test_health_says_who_we_are() -> None:
    broker = Broker()
    broker.control()
    broker.us += 1_500_000
    health = broker.runtime.health(broker.now)
    assert (health["ok"], health["clients"], health["uptime"], health["version"]) == (True, 1, 1.5, "0")
    assert health["bootId"] != Broker().runtime.boot_id or len(health["bootId"]) == 16


@pytest.mark.promise("Foundations", "a connection's messages are handled strictly in order")
@pytest.mark.parametrize("count", [1, 7])
def test_everything_written_for_one_peer_arrives_in_the_order_of_events(count: int) -> None:
    broker = Broker()
    peer = broker.control()
    peer.say(type_="subscribe", stream="a", credit=100)
    for n in range(count):
        peer.send(enqueues("a", str(n)))
        broker.run()
    ids = [frame["env"]["id"] for frame in peer.heard() if frame["type"] == "deliver"]
    assert ids == [str(n) for n in range(count)]


class TestFailures:
    """A bug ends one session, and no other."""

    def logged(self, broker: Broker) -> list[tuple[str, dict[str, Any]]]:
        events: list[tuple[str, dict[str, Any]]] = []
        broker.runtime._log = broker.runtime.peers._log = lambda event, **fields: events.append((event, fields))
        return events

    def test_a_read_that_fails_after_a_commit_ends_its_session_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broker, journal = by_hand()
        events = self.logged(broker)
        broken, other = broker.control(), broker.control()
        broken.send(enqueues("a", "1") + line(type_="explain", stream="a", reqId="x"))
        other.send(enqueues("b", "2") + line(type_="stats", stream="b", reqId="y"))
        outcomes: list[Refusal | None] = []
        broker.runtime.when(broker.machine.commit_log.gate, False, lambda refusal: {}["broken"])
        broker.runtime.when(broker.machine.commit_log.gate, False, outcomes.append)
        broker.run()

        def fail(*_: object) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr("penstock.dialects.courier.operations.queries.explain", fail)
        journal.commit()
        broker.run()
        assert broken.wire.closed == (1011, "Internal")
        assert [frame["reqId"] for frame in other.heard()] == ["2", "y"]
        assert other.wire.closed is None
        assert outcomes == [None]
        assert [name for name, _ in events if "failed" in name] == ["session.failed", "commit.callback_failed"]

    def test_an_answer_that_cannot_be_made_ends_its_session_alone(self) -> None:
        broker, journal = by_hand()
        broken, other = broker.control(), broker.control()
        broken.session.answers.after(broker.machine.commit_log.gate, lambda refusal: b"%d" % "x")  # type: ignore[str-format]
        other.send(enqueues("b", "2"))
        broker.run()
        journal.commit()
        broker.run()
        assert broken.wire.closed == (1011, "Internal")
        assert [frame["reqId"] for frame in other.heard()] == ["2"]

    def test_events_go_to_the_log_that_was_given(self) -> None:
        broker = Broker(Policy(lease_us=1_000_000))
        events = self.logged(broker)
        session = ControlSession(broker.runtime, token_needed=False)
        broker.runtime.peers.open(session, ListWire(), ANONYMOUS, "test", agent="jen")
        peer = broker.control()
        peer.say(type_="enqueue", to="a", env=envelope("1"))
        for _ in range(8):
            peer.say(type_="pull", stream="a", max=1, reqId="p")
            peer.say(type_="nack", id="1", reqId="n")
            broker.advance(600_000)
        opened = [fields["who"] for event, fields in events if event == "conn.open"]
        assert opened == ["jen", "anonymous"]
        assert [fields["id"] for event, fields in events if event == "redelivery.hot"] == ["1"] * 3
