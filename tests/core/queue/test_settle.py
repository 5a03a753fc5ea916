"""A lease ends by its holder, by the clock, or with its link, and by no other client."""

from __future__ import annotations

import pytest

from penstock.core.limits import Limits
from penstock.core.links import Consumer
from penstock.core.queue.policy import Policy, Retry
from penstock.core.queue.settle import Denied, Done
from penstock.core.scopes import OPERATOR, Principal, require
from tests.core.driving import QueueDriver, record_of

SHORT = Policy(lease_us=5_000_000)
SAM = Principal("sam", scopes=require(["streams:*:*"]))


def code(answer: object) -> str:
    assert isinstance(answer, Denied), answer
    return answer.refusal.code


class TestAck:
    @pytest.mark.promise("The document's testing strategy", "Unit: ack, nack, timeout")
    @pytest.mark.promise("Delivery", "ack settles an envelope")
    def test_settles_for_good(self) -> None:
        bench = QueueDriver(SHORT)
        consumer = bench.subscribe("a", 5)
        bench.put("a", "1")
        assert bench.ack(consumer, "1") == []
        assert bench.state("a") == (0, 0, 0)
        assert bench.batches[-1] == ["ack"]
        bench.advance(60_000)
        assert bench.ids() == ["1"]

    def test_twice_is_refused_as_already_acked(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 5)
        bench.put("a", "1")
        assert bench.ack(consumer, "1", "1") == ["AlreadyAcked"]
        assert bench.ack(consumer, "1") == ["AlreadyAcked"]
        assert bench.channel("a").counters.ack == 1

    def test_a_refusal_because_of_an_uncommitted_ack_waits_for_its_commit(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 5)
        bench.put("a", "1")
        bench.machine.ack(bench.now, consumer, ["1"])
        (denied,) = bench.machine.ack(bench.now, consumer, ["1"])
        assert denied.gate == bench.machine.commit_log.gate

    def test_of_an_id_never_seen_is_unknown(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 5)
        assert bench.ack(consumer, "nobody") == ["UnknownEnvelope"]

    def test_of_an_id_not_yet_committed_is_unknown(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 5)
        bench.offer("a", record_of("1"))
        assert [one.refusal.code for one in bench.machine.ack(bench.now, consumer, ["1"])] == ["UnknownEnvelope"]

    def test_of_what_another_holds_is_refused_and_leaves_it_alone(self) -> None:
        bench = QueueDriver()
        bench.subscribe("a", 1, label="holder")
        other = bench.subscribe("a", 1, label="other")
        bench.put("a", "1")
        assert bench.ack(other, "1") == ["NotLeaseHolder"]
        assert bench.state("a") == (0, 1, 0)

    def test_of_what_was_never_delivered_is_refused(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a")
        bench.put("a", "1")
        assert bench.ack(consumer, "1") == ["NotLeaseHolder"]

    def test_after_expiry_is_rejected_even_without_another_holder(self) -> None:
        bench = QueueDriver(SHORT)
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1")
        bench.advance(5_000)
        assert bench.ack(consumer, "1") == ["LeaseExpired"]
        assert bench.state("a") == (1, 0, 0)

    @pytest.mark.promise(
        "Invariants",
        "3: first deliveries are in order, a record has one holder, and a late settle has no effect on another lease",
    )
    def test_after_redelivery_to_another_never_settles_theirs(self) -> None:
        bench = QueueDriver(SHORT)
        slow = bench.subscribe("a", 1, label="slow")
        bench.put("a", "1")
        quick = bench.subscribe("a", 1, label="quick")
        bench.advance(5_000)
        assert bench.deliveries[-1] == ("quick", "1", 2)
        assert bench.ack(slow, "1") == ["LeaseExpired"]
        assert bench.ack(quick, "1") == []

    def test_forgotten_ids_are_unknown_again(self) -> None:
        bench = QueueDriver(Policy(dedup_us=1_000_000))
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1", "2")
        bench.ack(consumer, "1")
        bench.advance(1_000)
        bench.grant(consumer, 1)
        bench.ack(consumer, "2")
        assert bench.ack(consumer, "1") == ["UnknownEnvelope"]


class TestLateAck:
    POLICY = Policy(lease_us=5_000_000, late_ack="accept")

    @pytest.mark.parametrize("redelivery", ["tail", "head"])
    def test_settles_a_record_that_no_other_holds(self, redelivery: str) -> None:
        bench = QueueDriver(Policy(lease_us=5_000_000, late_ack="accept", redelivery=redelivery))  # type: ignore[arg-type]
        consumer = bench.subscribe("a", 2)
        bench.put("a", "1", "2", "3")
        bench.advance(5_000)
        assert bench.state("a") == (3, 0, 0)
        assert bench.ack(consumer, "2") == []
        assert [record.id for record in bench.channel("a").ready if record.id != "3"] == ["1"]
        assert bench.channel("a").counters.ack == 1

    def test_never_settles_anothers(self) -> None:
        bench = QueueDriver(self.POLICY)
        slow = bench.subscribe("a", 1, label="slow")
        bench.put("a", "1")
        bench.subscribe("a", 1, label="quick")
        bench.advance(5_000)
        assert bench.ack(slow, "1") == ["LeaseExpired"]
        assert bench.state("a") == (0, 1, 0)

    def test_is_not_for_strangers(self) -> None:
        bench = QueueDriver(self.POLICY)
        bench.subscribe("a", 1)
        stranger = bench.subscribe("a")
        bench.put("a", "1")
        bench.advance(5_000)
        assert bench.ack(stranger, "1") != []
        assert bench.state("a") == (1, 0, 0)


class TestExpiry:
    @pytest.mark.promise("The document's testing strategy", "Unit: ack, nack, timeout")
    @pytest.mark.promise("Delivery", "an expired lease is redelivered without any request")
    def test_redelivers_without_a_request_to_a_subscription_with_credit(self) -> None:
        bench = QueueDriver(SHORT)
        bench.subscribe("a", 5)
        bench.put("a", "1")
        bench.advance(4_999.999)
        assert bench.deliveries == [("c", "1", 1)]
        bench.advance(0.001)
        assert bench.deliveries == [("c", "1", 1), ("c", "1", 2)]
        counters = bench.channel("a").counters
        assert (counters.timeout, counters.re, counters.out, counters.nack) == (1, 1, 2, 0)

    def test_is_reported_to_a_holder_that_asked(self) -> None:
        bench = QueueDriver(SHORT)
        consumer = bench.subscribe("a", 1)
        consumer.expiry_wanted = True
        bench.put("a", "1")
        lease_id = bench.machine.lease_id(bench.held(consumer, "1"))
        bench.advance(5_000)
        assert bench.expired == [("c", "1", lease_id)]

    def test_is_not_reported_to_a_holder_that_did_not_ask(self) -> None:
        bench = QueueDriver(SHORT)
        bench.subscribe("a", 1)
        bench.put("a", "1")
        bench.advance(5_000)
        assert bench.expired == []

    def test_uses_the_subscriptions_own_lease(self) -> None:
        bench = QueueDriver(SHORT)
        consumer = bench.subscribe("a", 1, lease_ms=60_000)
        bench.put("a", "1")
        bench.advance(59_999)
        assert bench.state("a") == (0, 1, 0)
        bench.advance(1)
        assert bench.state("a") == (1, 0, 0)
        assert consumer.leases == {}

    def test_waits_for_the_back_off(self) -> None:
        bench = QueueDriver(Policy(lease_us=5_000_000, retry=Retry(base_us=2_000_000)))
        bench.subscribe("a", 5)
        bench.put("a", "1")
        bench.advance(5_000)
        assert bench.state("a") == (0, 0, 1)
        bench.advance(2_000)
        assert bench.deliveries[-1] == ("c", "1", 2)

    def test_many_at_one_instant_keep_their_order(self) -> None:
        bench = QueueDriver(SHORT)
        consumer = bench.subscribe("a", 4)
        bench.put("a", "1", "2", "3", "4")
        bench.advance(5_000)
        bench.grant(consumer, 4)
        assert bench.ids() == ["1", "2", "3", "4"] * 2


class TestExtend:
    @pytest.mark.promise("Delivery", "extend prolongs a lease")
    def test_counts_from_now_and_keeps_the_lease(self) -> None:
        bench = QueueDriver(SHORT)
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1")
        lease_id = bench.machine.lease_id(bench.held(consumer, "1"))
        bench.advance(4_000)
        done = bench.extend(consumer, "1")
        assert isinstance(done, Done)
        assert (done.gate, done.deadline_us) == (0, bench.us + 5_000_000)
        bench.advance(4_999)
        assert bench.held(consumer, "1", lease_id).attempt == 1
        bench.advance(1)
        assert bench.state("a") == (1, 0, 0)

    def test_takes_the_length_asked_for_even_a_shorter_one(self) -> None:
        bench = QueueDriver(SHORT)
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1")
        bench.extend(consumer, "1", 1_000)
        bench.advance(1_000)
        assert bench.state("a") == (1, 0, 0)

    def test_a_lease_is_bounded_as_a_whole(self) -> None:
        bench = QueueDriver(SHORT, limits=Limits(lease_max_ms=12_000))
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1")
        start = bench.us
        bench.advance(4_000)
        bench.extend(consumer, "1", 5_000)
        bench.advance(4_500)
        done = bench.extend(consumer, "1", 5_000)
        assert isinstance(done, Done)
        assert done.deadline_us == start + 12_000_000
        bench.advance(3_499)
        assert bench.state("a") == (0, 1, 0)
        bench.us += 1_000
        assert code(bench.machine.extend(bench.now, consumer, bench.held(consumer, "1"), 0)) == "LeaseExpired"

    def test_an_expired_lease_cannot_be_extended(self) -> None:
        bench = QueueDriver(SHORT)
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1")
        bench.advance(5_000)
        assert bench.denial(consumer, "1") == "LeaseExpired"


class TestNack:
    @pytest.mark.promise("The document's testing strategy", "Unit: ack, nack, timeout")
    def test_requeues_at_once_and_counts(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 2)
        bench.put("a", "1")
        bench.nack(consumer, "1", reason="boom")
        assert bench.deliveries == [("c", "1", 1), ("c", "1", 2)]
        assert bench.channel("a").counters.nack == 1
        assert bench.channel("a").live["1"].error == "boom"
        assert bench.batches[-1] == ["nack"]

    @pytest.mark.promise("Delivery", "nack can delay the redelivery")
    def test_a_delay_keeps_it_out_and_within_the_depth(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 5)
        bench.put("a", "1")
        bench.nack(consumer, "1", 700)
        assert bench.state("a") == (0, 0, 1)
        bench.advance(699)
        assert len(bench.deliveries) == 1
        bench.advance(1)
        assert bench.deliveries[-1] == ("c", "1", 2)

    def test_without_a_delay_the_policy_backs_off(self) -> None:
        bench = QueueDriver(Policy(retry=Retry(base_us=1_000_000, factor=3.0, max_us=5_000_000)))
        consumer = bench.subscribe("a", 10)
        bench.put("a", "1")
        for wait in (1_000, 3_000, 5_000, 5_000):
            bench.nack(consumer, "1")
            assert bench.state("a") == (0, 0, 1)
            bench.advance(wait - 1)
            assert bench.state("a") == (0, 0, 1)
            bench.advance(1)
            assert bench.state("a") == (0, 1, 0)

    def test_a_delay_of_its_own_beats_the_policy(self) -> None:
        bench = QueueDriver(Policy(retry=Retry(base_us=60_000_000)))
        consumer = bench.subscribe("a", 10)
        bench.put("a", "1")
        bench.nack(consumer, "1", 0)
        assert bench.deliveries[-1] == ("c", "1", 2)

    @pytest.mark.parametrize(("draw", "delay_ms"), [(b"\x00\x00", 1_000), (b"\xff\xff", 750)])
    def test_jitter_shortens_by_its_share(self, draw: bytes, delay_ms: int) -> None:
        bench = QueueDriver(
            Policy(retry=Retry(base_us=1_000_000, jitter=0.25)), entropy=lambda size: (draw * size)[:size]
        )
        consumer = bench.subscribe("a", 10)
        bench.put("a", "1")
        bench.nack(consumer, "1")
        bench.advance(delay_ms - 1)
        assert bench.state("a") == (0, 0, 1)
        bench.advance(1)
        assert bench.state("a") == (0, 1, 0)

    def test_a_held_lease_id_is_checked_exactly(self) -> None:
        bench = QueueDriver(SHORT)
        consumer = bench.subscribe("a", 2)
        bench.put("a", "1")
        old = bench.machine.lease_id(bench.held(consumer, "1"))
        bench.advance(5_000)
        new = bench.machine.lease_id(bench.held(consumer, "1"))
        assert old != new
        assert bench.denial(consumer, "1", old) == "LeaseExpired"
        assert bench.held(consumer, "1", new).attempt == 2


class TestRelease:
    @pytest.mark.promise("Delivery", "release does not count as an attempt")
    def test_gives_back_first_in_line_and_does_not_count(self) -> None:
        bench = QueueDriver(Policy(max_deliveries=2))
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1", "2")
        for _ in range(5):
            bench.release(consumer, "1")
            bench.grant(consumer, 1)
            assert bench.deliveries[-1][1] == "1"
        counters = bench.channel("a").counters
        assert (counters.release, counters.nack, counters.dead) == (5, 0, 0)
        bench.nack(consumer, "1")
        assert "1" in bench.channel("a").live, "one failure of two"

    def test_is_an_observation_and_not_a_fact(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1")
        bench.machine.release(bench.now, consumer, bench.held(consumer, "1"))
        batch = bench.machine.commit_log.take_batch()
        assert batch is not None
        assert (batch.facts, [seen.event for seen in batch.observations]) == ([], ["release"])

    @pytest.mark.promise("Invariants", "8: every bound holds")
    def test_observations_are_bounded_and_counted(self) -> None:
        bench = QueueDriver(limits=Limits(observations_max=2))
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1")
        for _ in range(4):
            bench.machine.release(bench.now, consumer, bench.held(consumer, "1"))
            bench.grant(consumer, 1)
        assert bench.machine.commit_log.observations_dropped == 2


class TestDisconnect:
    @pytest.mark.promise("Delivery", "a disconnect releases leases or holds them, as configured")
    def test_gives_leases_back_at_once_in_their_order(self) -> None:
        bench = QueueDriver()
        link = bench.connect()
        bench.subscribe("a", 2, label="gone", link=link)
        bench.put("a", "1", "2", "3")
        bench.subscribe("a", label="stays")
        bench.disconnect(link)
        assert [record.id for record in bench.channel("a").ready] == ["1", "2", "3"]
        assert bench.channel("a").live["1"].attempt == 1

    def test_delivers_them_to_waiting_subscriptions(self) -> None:
        bench = QueueDriver()
        link = bench.connect()
        bench.subscribe("a", 1, label="gone", link=link)
        bench.put("a", "1")
        bench.subscribe("a", 1, label="stays")
        bench.disconnect(link)
        assert bench.deliveries[-1] == ("stays", "1", 2)

    @pytest.mark.promise("Delivery", "a disconnect releases leases or holds them, as configured")
    def test_hold_keeps_them_to_their_end(self) -> None:
        bench = QueueDriver(Policy(lease_us=5_000_000, on_disconnect="hold"))
        link = bench.connect()
        bench.subscribe("a", 1, label="gone", link=link)
        bench.put("a", "1")
        bench.subscribe("a", 1, label="stays")
        bench.disconnect(link)
        assert bench.state("a") == (0, 1, 0)
        bench.advance(5_000)
        assert bench.deliveries[-1] == ("stays", "1", 2)
        assert [c.label for c in bench.machine.consumers.values()] == ["stays"]

    def test_hold_lets_the_same_principal_settle_from_elsewhere(self) -> None:
        bench = QueueDriver(Policy(lease_us=5_000_000, on_disconnect="hold"))
        link = bench.connect(SAM)
        bench.subscribe("a", 1, link=link)
        bench.put("a", "1")
        bench.disconnect(link)
        holder = bench.machine.holder_for(SAM, "1", None, "a")
        assert isinstance(holder, Consumer)
        assert bench.ack(holder, "1") == []
        assert bench.machine.consumers == {}

    def test_unsubscribing_one_of_two_leaves_the_other(self) -> None:
        bench = QueueDriver()
        one = bench.subscribe("a", 1, label="one")
        two = bench.subscribe("a", 1, label="two")
        bench.put("a", "1", "2")
        bench.unsubscribe(one)
        assert bench.state("a") == (1, 1, 0)
        assert bench.ack(two, "2") == []


class TestHolderFor:
    """Settles from outside a subscription: who is meant."""

    def test_by_lease_id(self) -> None:
        bench = QueueDriver()
        bench.put("a", "1")
        consumer = bench.pull("a")
        lease_id = bench.machine.lease_id(bench.held(consumer, "1"))
        assert bench.machine.holder_for(OPERATOR, "1", lease_id, None) is consumer
        assert code(bench.machine.holder_for(SAM, "1", lease_id, None)) == "NotLeaseHolder"
        assert code(bench.machine.holder_for(OPERATOR, "2", lease_id, None)) == "UnknownEnvelope"
        bench.ack(consumer, "1")
        assert code(bench.machine.holder_for(OPERATOR, "1", lease_id, None)) == "AlreadyAcked"

    @pytest.mark.parametrize(
        "lease_id", ["", ".", "..", "zz.zz.000001", "1.1.000000", "1", "1.1.1.1", "\x00", "-1.-1.000001"]
    )
    def test_a_made_up_lease_id_is_unknown(self, lease_id: str) -> None:
        bench = QueueDriver()
        bench.put("a", "1")
        bench.pull("a")
        assert code(bench.machine.holder_for(OPERATOR, "1", lease_id, None)) == "LeaseExpired"

    def test_an_ended_lease_id_is_expired(self) -> None:
        bench = QueueDriver(SHORT)
        bench.put("a", "1")
        consumer = bench.pull("a")
        lease_id = bench.machine.lease_id(bench.held(consumer, "1"))
        bench.advance(5_000)
        assert code(bench.machine.holder_for(OPERATOR, "1", lease_id, None)) == "LeaseExpired"
        bench.pull("a")
        assert code(bench.machine.holder_for(OPERATOR, "1", lease_id, None)) == "LeaseExpired"

    def test_by_stream(self) -> None:
        bench = QueueDriver(SHORT)
        bench.put("a", "1", "2")
        consumer = bench.pull("a")
        machine = bench.machine
        assert machine.holder_for(OPERATOR, "1", None, "a") is consumer
        assert code(machine.holder_for(SAM, "1", None, "a")) == "NotLeaseHolder"
        assert code(machine.holder_for(OPERATOR, "2", None, "a")) == "NotLeaseHolder"
        assert code(machine.holder_for(OPERATOR, "3", None, "a")) == "UnknownEnvelope"
        assert code(machine.holder_for(OPERATOR, "1", None, "b")) == "UnknownStream"
        assert not machine.known("b")
        bench.ack(consumer, "1")
        assert code(machine.holder_for(OPERATOR, "1", None, "a")) == "AlreadyAcked"

    def test_the_operator_speaks_for_everybody(self) -> None:
        bench = QueueDriver()
        bench.link = bench.connect(SAM)
        bench.put("a", "1")
        consumer = bench.pull("a")
        lease_id = bench.machine.lease_id(bench.held(consumer, "1"))
        assert bench.machine.holder_for(OPERATOR, "1", None, "a") is consumer
        assert bench.machine.holder_for(OPERATOR, "1", lease_id, None) is consumer
        assert bench.machine.holder_for(SAM, "1", lease_id, None) is consumer

    def test_a_lease_of_another_boot_is_not_this_ones(self) -> None:
        bench = QueueDriver()
        bench.put("a", "1")
        consumer = bench.pull("a")
        lease_id = bench.machine.lease_id(bench.held(consumer, "1"))
        assert bench.machine.lease_of(lease_id) is bench.held(consumer, "1")
        assert bench.machine.lease_of(lease_id[:-1] + "f") is None
