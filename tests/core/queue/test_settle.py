"""A lease ends by its holder, by the clock, or with its link, and by no other client."""

from __future__ import annotations

import pytest

from penstock.core.limits import Limits
from penstock.core.links import Consumer
from penstock.core.queue.machine import WAKE_MAX
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
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 5)
        driver.put("a", "1")
        assert driver.ack(consumer, "1") == []
        assert driver.state("a") == (0, 0, 0)
        assert driver.batches[-1] == ["ack"]
        driver.advance(60_000)
        assert driver.ids() == ["1"]

    def test_twice_is_refused_as_already_acked(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 5)
        driver.put("a", "1")
        assert driver.ack(consumer, "1", "1") == ["AlreadyAcked"]
        assert driver.ack(consumer, "1") == ["AlreadyAcked"]
        assert driver.channel("a").counters.ack == 1

    def test_a_refusal_because_of_an_uncommitted_ack_waits_for_its_commit(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 5)
        driver.put("a", "1")
        driver.machine.ack(driver.now, consumer, ["1"])
        (denied,) = driver.machine.ack(driver.now, consumer, ["1"])
        assert denied.gate == driver.machine.commit_log.gate

    def test_of_an_id_never_seen_is_unknown(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 5)
        assert driver.ack(consumer, "nobody") == ["UnknownEnvelope"]

    def test_of_an_id_not_yet_committed_is_unknown(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 5)
        driver.offer("a", record_of("1"))
        assert [one.refusal.code for one in driver.machine.ack(driver.now, consumer, ["1"])] == ["UnknownEnvelope"]

    def test_of_what_another_holds_is_refused_and_leaves_it_alone(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 1, label="holder")
        other = driver.subscribe("a", 1, label="other")
        driver.put("a", "1")
        assert driver.ack(other, "1") == ["NotLeaseHolder"]
        assert driver.state("a") == (0, 1, 0)

    def test_of_what_was_never_delivered_is_refused(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a")
        driver.put("a", "1")
        assert driver.ack(consumer, "1") == ["NotLeaseHolder"]

    def test_after_expiry_is_rejected_even_without_another_holder(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.advance(5_000)
        assert driver.ack(consumer, "1") == ["LeaseExpired"]
        assert driver.state("a") == (1, 0, 0)

    @pytest.mark.promise(
        "Invariants",
        "3: first deliveries are in order, a record has one holder, and a late settle has no effect on another lease",
    )
    def test_after_redelivery_to_another_never_settles_theirs(self) -> None:
        driver = QueueDriver(SHORT)
        slow = driver.subscribe("a", 1, label="slow")
        driver.put("a", "1")
        quick = driver.subscribe("a", 1, label="quick")
        driver.advance(5_000)
        assert driver.deliveries[-1] == ("quick", "1", 2)
        assert driver.ack(slow, "1") == ["LeaseExpired"]
        assert driver.ack(quick, "1") == []

    def test_forgotten_ids_are_unknown_again(self) -> None:
        driver = QueueDriver(Policy(dedup_us=1_000_000))
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1", "2")
        driver.ack(consumer, "1")
        driver.advance(1_000)
        driver.grant(consumer, 1)
        driver.ack(consumer, "2")
        assert driver.ack(consumer, "1") == ["UnknownEnvelope"]


class TestLateAck:
    POLICY = Policy(lease_us=5_000_000, late_ack="accept")

    @pytest.mark.parametrize("redelivery", ["tail", "head"])
    def test_settles_a_record_that_no_other_holds(self, redelivery: str) -> None:
        driver = QueueDriver(Policy(lease_us=5_000_000, late_ack="accept", redelivery=redelivery))  # type: ignore[arg-type]
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1", "2", "3")
        driver.advance(5_000)
        assert driver.state("a") == (3, 0, 0)
        assert driver.ack(consumer, "2") == []
        assert [record.id for record in driver.channel("a").ready if record.id != "3"] == ["1"]
        assert driver.channel("a").counters.ack == 1

    def test_never_settles_anothers(self) -> None:
        driver = QueueDriver(self.POLICY)
        slow = driver.subscribe("a", 1, label="slow")
        driver.put("a", "1")
        driver.subscribe("a", 1, label="quick")
        driver.advance(5_000)
        assert driver.ack(slow, "1") == ["LeaseExpired"]
        assert driver.state("a") == (0, 1, 0)

    def test_of_an_id_that_is_given_twice_counts_once(self) -> None:
        driver = QueueDriver(self.POLICY)
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.advance(5_000)
        assert driver.ack(consumer, "1", "1") == ["AlreadyAcked"]
        assert driver.channel("a").counters.ack == 1

    def test_is_not_for_strangers(self) -> None:
        driver = QueueDriver(self.POLICY)
        driver.subscribe("a", 1)
        stranger = driver.subscribe("a")
        driver.put("a", "1")
        driver.advance(5_000)
        assert driver.ack(stranger, "1") != []
        assert driver.state("a") == (1, 0, 0)


class TestExpiry:
    @pytest.mark.promise("The document's testing strategy", "Unit: ack, nack, timeout")
    @pytest.mark.promise("Delivery", "an expired lease is redelivered without any request")
    def test_redelivers_without_a_request_to_a_subscription_with_credit(self) -> None:
        driver = QueueDriver(SHORT)
        driver.subscribe("a", 5)
        driver.put("a", "1")
        driver.advance(4_999.999)
        assert driver.deliveries == [("c", "1", 1)]
        driver.advance(0.001)
        assert driver.deliveries == [("c", "1", 1), ("c", "1", 2)]
        counters = driver.channel("a").counters
        assert (counters.timeout, counters.re, counters.out, counters.nack) == (1, 1, 2, 0)

    def test_is_reported_to_a_holder_that_asked(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 1)
        consumer.expiry_wanted = True
        driver.put("a", "1")
        lease_id = driver.machine.lease_id(driver.held(consumer, "1"))
        driver.advance(5_000)
        assert driver.expired == [("c", "1", lease_id)]

    def test_is_not_reported_to_a_holder_that_did_not_ask(self) -> None:
        driver = QueueDriver(SHORT)
        driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.advance(5_000)
        assert driver.expired == []

    def test_uses_the_subscriptions_own_lease(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 1, lease_ms=60_000)
        driver.put("a", "1")
        driver.advance(59_999)
        assert driver.state("a") == (0, 1, 0)
        driver.advance(1)
        assert driver.state("a") == (1, 0, 0)
        assert consumer.leases == {}

    def test_waits_for_the_back_off(self) -> None:
        driver = QueueDriver(Policy(lease_us=5_000_000, retry=Retry(base_us=2_000_000)))
        driver.subscribe("a", 5)
        driver.put("a", "1")
        driver.advance(5_000)
        assert driver.state("a") == (0, 0, 1)
        driver.advance(2_000)
        assert driver.deliveries[-1] == ("c", "1", 2)

    def test_many_at_one_instant_keep_their_order(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 4)
        driver.put("a", "1", "2", "3", "4")
        driver.advance(5_000)
        driver.grant(consumer, 4)
        assert driver.ids() == ["1", "2", "3", "4"] * 2

    def test_leases_of_one_consumer_share_a_timer_and_end_one_after_the_other(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 3)
        for id_ in ("1", "2", "3"):
            driver.put("a", id_)
            driver.advance(1_000)
        assert len(driver.machine.timers.heap) == 1
        driver.ack(consumer, "1")
        driver.advance(2_999)
        assert driver.state("a") == (0, 2, 0)
        driver.advance(1)
        assert driver.state("a") == (1, 1, 0)
        driver.advance(1_000)
        assert driver.state("a") == (2, 0, 0)
        assert consumer.ticket == 0

    def test_a_shorter_lease_after_a_longer_one_ends_first(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1")
        consumer.lease_us = 1_000_000  # as after another subscribe without a label
        driver.put("a", "2")
        driver.advance(1_000)
        assert list(driver.channel("a").ready) == [driver.channel("a").live["2"]]
        driver.advance(4_000)
        assert driver.state("a") == (2, 0, 0)

    def test_many_leases_of_one_consumer_take_several_turns(self) -> None:
        driver = QueueDriver(SHORT)
        driver.subscribe("a", WAKE_MAX + 5)
        driver.put("a", *map(str, range(WAKE_MAX + 5)))
        driver.us += 5_000_000
        driver.machine.wake(driver.now)
        driver.apply()
        assert driver.state("a") == (WAKE_MAX, 5, 0)
        driver.advance(0)
        assert driver.state("a") == (WAKE_MAX + 5, 0, 0)

    def test_a_consumer_that_is_gone_and_holds_nothing_has_no_timer(self) -> None:
        driver = QueueDriver(SHORT)
        driver.put("a", "1")
        consumer = driver.machine.pull(driver.now, driver.link, "a", 1, 1_000_000)
        assert isinstance(consumer, Consumer)
        driver.apply()
        assert consumer.ticket
        driver.ack(consumer, "1")
        assert (consumer.ticket, driver.machine.consumers) == (0, {})


class TestExtend:
    @pytest.mark.promise("Delivery", "extend prolongs a lease")
    def test_counts_from_now_and_keeps_the_lease(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        lease_id = driver.machine.lease_id(driver.held(consumer, "1"))
        driver.advance(4_000)
        done = driver.extend(consumer, "1")
        assert isinstance(done, Done)
        assert (done.gate, done.deadline_us) == (0, driver.us + 5_000_000)
        driver.advance(4_999)
        assert driver.held(consumer, "1", lease_id).attempt == 1
        driver.advance(1)
        assert driver.state("a") == (1, 0, 0)

    def test_leaves_the_deadlines_of_other_leases_alone(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 3)
        driver.put("a", "1", "2", "3")
        driver.extend(consumer, "1", 9_000)
        driver.extend(consumer, "3", 2_000)
        for ms, ready in ((2_000, 1), (3_000, 2), (4_000, 3)):
            driver.advance(ms - 1)
            assert driver.state("a")[0] == ready - 1
            driver.advance(1)
            assert driver.state("a")[0] == ready

    def test_takes_the_length_asked_for_even_a_shorter_one(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.extend(consumer, "1", 1_000)
        driver.advance(1_000)
        assert driver.state("a") == (1, 0, 0)

    def test_a_lease_is_bounded_as_a_whole(self) -> None:
        driver = QueueDriver(SHORT, limits=Limits(lease_max_ms=12_000))
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        start = driver.us
        driver.advance(4_000)
        driver.extend(consumer, "1", 5_000)
        driver.advance(4_500)
        done = driver.extend(consumer, "1", 5_000)
        assert isinstance(done, Done)
        assert done.deadline_us == start + 12_000_000
        driver.advance(3_499)
        assert driver.state("a") == (0, 1, 0)
        driver.us += 1_000
        assert code(driver.machine.extend(driver.now, consumer, driver.held(consumer, "1"), 0)) == "LeaseExpired"

    def test_an_expired_lease_cannot_be_extended(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.advance(5_000)
        assert driver.denial(consumer, "1") == "LeaseExpired"


class TestNack:
    @pytest.mark.promise("The document's testing strategy", "Unit: ack, nack, timeout")
    def test_requeues_at_once_and_counts(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1")
        driver.nack(consumer, "1", reason="boom")
        assert driver.deliveries == [("c", "1", 1), ("c", "1", 2)]
        assert driver.channel("a").counters.nack == 1
        assert driver.channel("a").live["1"].error == "boom"
        assert driver.batches[-1] == ["nack"]

    @pytest.mark.promise("Delivery", "nack can delay the redelivery")
    def test_a_delay_keeps_it_out_and_within_the_depth(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 5)
        driver.put("a", "1")
        driver.nack(consumer, "1", 700)
        assert driver.state("a") == (0, 0, 1)
        driver.advance(699)
        assert len(driver.deliveries) == 1
        driver.advance(1)
        assert driver.deliveries[-1] == ("c", "1", 2)

    def test_without_a_delay_the_policy_backs_off(self) -> None:
        driver = QueueDriver(Policy(retry=Retry(base_us=1_000_000, factor=3.0, max_us=5_000_000)))
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1")
        for wait in (1_000, 3_000, 5_000, 5_000):
            driver.nack(consumer, "1")
            assert driver.state("a") == (0, 0, 1)
            driver.advance(wait - 1)
            assert driver.state("a") == (0, 0, 1)
            driver.advance(1)
            assert driver.state("a") == (0, 1, 0)

    def test_a_delay_of_its_own_beats_the_policy(self) -> None:
        driver = QueueDriver(Policy(retry=Retry(base_us=60_000_000)))
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1")
        driver.nack(consumer, "1", 0)
        assert driver.deliveries[-1] == ("c", "1", 2)

    @pytest.mark.parametrize(("draw", "delay_ms"), [(b"\x00\x00", 1_000), (b"\xff\xff", 750)])
    def test_jitter_shortens_by_its_share(self, draw: bytes, delay_ms: int) -> None:
        driver = QueueDriver(
            Policy(retry=Retry(base_us=1_000_000, jitter=0.25)), entropy=lambda size: (draw * size)[:size]
        )
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1")
        driver.nack(consumer, "1")
        driver.advance(delay_ms - 1)
        assert driver.state("a") == (0, 0, 1)
        driver.advance(1)
        assert driver.state("a") == (0, 1, 0)

    def test_a_held_lease_id_is_checked_exactly(self) -> None:
        driver = QueueDriver(SHORT)
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1")
        old = driver.machine.lease_id(driver.held(consumer, "1"))
        driver.advance(5_000)
        new = driver.machine.lease_id(driver.held(consumer, "1"))
        assert old != new
        assert driver.denial(consumer, "1", old) == "LeaseExpired"
        assert driver.held(consumer, "1", new).attempt == 2


class TestRelease:
    @pytest.mark.promise("Delivery", "release does not count as an attempt")
    def test_gives_back_first_in_line_and_does_not_count(self) -> None:
        driver = QueueDriver(Policy(max_deliveries=2))
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1", "2")
        for _ in range(5):
            driver.release(consumer, "1")
            driver.grant(consumer, 1)
            assert driver.deliveries[-1][1] == "1"
        counters = driver.channel("a").counters
        assert (counters.release, counters.nack, counters.dead) == (5, 0, 0)
        driver.nack(consumer, "1")
        assert "1" in driver.channel("a").live, "one failure of two"

    def test_is_an_observation_and_not_a_fact(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.machine.release(driver.now, consumer, driver.held(consumer, "1"))
        batch = driver.machine.commit_log.take_batch()
        assert batch is not None
        assert (batch.facts, [seen.event for seen in batch.observations]) == ([], ["release"])

    @pytest.mark.promise("Invariants", "8: every bound holds")
    def test_observations_are_bounded_and_counted(self) -> None:
        driver = QueueDriver(limits=Limits(observations_max=2))
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        for _ in range(4):
            driver.machine.release(driver.now, consumer, driver.held(consumer, "1"))
            driver.grant(consumer, 1)
        assert driver.machine.commit_log.observations_dropped == 2


class TestBackoff:
    @pytest.mark.promise(
        "Delivery", "the first five redeliveries follow at once, then a back-off of 1 s doubles to 5 min"
    )
    def test_a_consumer_that_always_fails_does_not_spin(self) -> None:
        driver = QueueDriver(entropy=bytes)
        consumer = driver.subscribe("a", 1_000)
        driver.put("a", "1")
        for failures in range(1, 6):
            driver.nack(consumer, "1")
            assert driver.deliveries[-1][2] == failures + 1, "at once"
        for delay_ms in (1_000, 2_000, 4_000):
            driver.nack(consumer, "1")
            driver.advance(delay_ms - 1)
            assert driver.state("a") == (0, 0, 1)
            driver.advance(1)
            assert driver.state("a") == (0, 1, 0)

    def test_expiries_wait_like_nacks(self) -> None:
        driver = QueueDriver(Policy(lease_us=1_000_000), entropy=bytes)
        driver.subscribe("a", 1_000)
        driver.put("a", "1")
        driver.advance(5_999)
        assert driver.state("a") == (0, 1, 0)
        driver.advance(1)
        assert driver.state("a") == (0, 0, 1)

    def test_a_delay_that_the_holder_asks_for_is_kept(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 1_000)
        driver.put("a", "1")
        for _ in range(15):
            driver.nack(consumer, "1", 0)
        assert driver.deliveries[-1][2] == 16

    def test_a_holder_may_ask_for_a_back_off_from_the_first_failure_on(self) -> None:
        driver = QueueDriver(entropy=bytes)
        consumer = driver.subscribe("a", 1_000)
        driver.put("a", "1")
        for delay_ms in (1_000, 2_000):
            driver.machine.nack(driver.now, consumer, driver.held(consumer, "1"), None, None, backoff=True)
            driver.commit()
            driver.advance(delay_ms - 1)
            assert driver.state("a") == (0, 0, 1)
            driver.advance(1)
            assert driver.state("a") == (0, 1, 0)

    def test_an_own_back_off_begins_with_the_first_failure(self) -> None:
        driver = QueueDriver(Policy(retry=Retry(base_us=1_000_000)))
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1")
        driver.nack(consumer, "1")
        assert driver.state("a") == (0, 0, 1)

    @pytest.mark.parametrize("retry", [Policy().retry, Retry(base_us=1_000_000)])
    def test_the_sixth_lost_connection_in_a_row_waits(self, retry: Retry) -> None:
        driver = QueueDriver(Policy(retry=retry), entropy=bytes)
        driver.put("a", "1")

        def lose(times: int) -> None:
            for _ in range(times):
                link = driver.connect()
                driver.subscribe("a", 1, link=link)
                driver.disconnect(link)

        lose(5)
        assert driver.state("a") == (1, 0, 0)
        consumer = driver.subscribe("a", 1)
        driver.release(consumer, "1")
        driver.unsubscribe(consumer)
        lose(5)
        assert driver.state("a") == (1, 0, 0), "another end between them: not in a row"
        lose(1)
        assert driver.state("a") == (0, 0, 1)
        driver.advance(1_000)
        assert driver.state("a") == (1, 0, 0)


class TestDisconnect:
    @pytest.mark.promise("Delivery", "a disconnect releases leases or holds them, as configured")
    def test_gives_leases_back_at_once_in_their_order(self) -> None:
        driver = QueueDriver()
        link = driver.connect()
        driver.subscribe("a", 2, label="gone", link=link)
        driver.put("a", "1", "2", "3")
        driver.subscribe("a", label="stays")
        driver.disconnect(link)
        assert [record.id for record in driver.channel("a").ready] == ["1", "2", "3"]
        assert driver.channel("a").live["1"].attempt == 1

    def test_delivers_them_to_waiting_subscriptions(self) -> None:
        driver = QueueDriver()
        link = driver.connect()
        driver.subscribe("a", 1, label="gone", link=link)
        driver.put("a", "1")
        driver.subscribe("a", 1, label="stays")
        driver.disconnect(link)
        assert driver.deliveries[-1] == ("stays", "1", 2)

    @pytest.mark.promise("Delivery", "a disconnect releases leases or holds them, as configured")
    def test_hold_keeps_them_to_their_end(self) -> None:
        driver = QueueDriver(Policy(lease_us=5_000_000, on_disconnect="hold"))
        link = driver.connect()
        driver.subscribe("a", 1, label="gone", link=link)
        driver.put("a", "1")
        driver.subscribe("a", 1, label="stays")
        driver.disconnect(link)
        assert driver.state("a") == (0, 1, 0)
        driver.advance(5_000)
        assert driver.deliveries[-1] == ("stays", "1", 2)
        assert [c.label for c in driver.machine.consumers.values()] == ["stays"]

    def test_hold_lets_the_same_principal_settle_from_elsewhere(self) -> None:
        driver = QueueDriver(Policy(lease_us=5_000_000, on_disconnect="hold"))
        link = driver.connect(SAM)
        driver.subscribe("a", 1, link=link)
        driver.put("a", "1")
        driver.disconnect(link)
        holder = driver.machine.holder_for(SAM, "1", None, "a")
        assert isinstance(holder, Consumer)
        assert driver.ack(holder, "1") == []
        assert driver.machine.consumers == {}

    def test_unsubscribing_one_of_two_leaves_the_other(self) -> None:
        driver = QueueDriver()
        one = driver.subscribe("a", 1, label="one")
        two = driver.subscribe("a", 1, label="two")
        driver.put("a", "1", "2")
        driver.unsubscribe(one)
        assert driver.state("a") == (1, 1, 0)
        assert driver.ack(two, "2") == []


class TestHolderFor:
    """Settles from outside a subscription: who is meant."""

    def test_by_lease_id(self) -> None:
        driver = QueueDriver()
        driver.put("a", "1")
        consumer = driver.pull("a")
        lease_id = driver.machine.lease_id(driver.held(consumer, "1"))
        assert driver.machine.holder_for(OPERATOR, "1", lease_id, None) is consumer
        assert code(driver.machine.holder_for(SAM, "1", lease_id, None)) == "NotLeaseHolder"
        assert code(driver.machine.holder_for(OPERATOR, "2", lease_id, None)) == "UnknownEnvelope"
        driver.ack(consumer, "1")
        assert code(driver.machine.holder_for(OPERATOR, "1", lease_id, None)) == "AlreadyAcked"

    @pytest.mark.parametrize(
        "lease_id", ["", ".", "..", "zz.zz.000001", "1.1.000000", "1", "1.1.1.1", "\x00", "-1.-1.000001"]
    )
    def test_a_made_up_lease_id_is_unknown(self, lease_id: str) -> None:
        driver = QueueDriver()
        driver.put("a", "1")
        driver.pull("a")
        assert code(driver.machine.holder_for(OPERATOR, "1", lease_id, None)) == "LeaseExpired"

    def test_an_ended_lease_id_is_expired(self) -> None:
        driver = QueueDriver(SHORT)
        driver.put("a", "1")
        consumer = driver.pull("a")
        lease_id = driver.machine.lease_id(driver.held(consumer, "1"))
        driver.advance(5_000)
        assert code(driver.machine.holder_for(OPERATOR, "1", lease_id, None)) == "LeaseExpired"
        driver.pull("a")
        assert code(driver.machine.holder_for(OPERATOR, "1", lease_id, None)) == "LeaseExpired"

    def test_by_stream(self) -> None:
        driver = QueueDriver(SHORT)
        driver.put("a", "1", "2")
        consumer = driver.pull("a")
        machine = driver.machine
        assert machine.holder_for(OPERATOR, "1", None, "a") is consumer
        assert code(machine.holder_for(SAM, "1", None, "a")) == "NotLeaseHolder"
        assert code(machine.holder_for(OPERATOR, "2", None, "a")) == "NotLeaseHolder"
        assert code(machine.holder_for(OPERATOR, "3", None, "a")) == "UnknownEnvelope"
        assert code(machine.holder_for(OPERATOR, "1", None, "b")) == "UnknownStream"
        assert not machine.known("b")
        driver.ack(consumer, "1")
        assert code(machine.holder_for(OPERATOR, "1", None, "a")) == "AlreadyAcked"

    def test_the_operator_speaks_for_everybody(self) -> None:
        driver = QueueDriver()
        driver.link = driver.connect(SAM)
        driver.put("a", "1")
        consumer = driver.pull("a")
        lease_id = driver.machine.lease_id(driver.held(consumer, "1"))
        assert driver.machine.holder_for(OPERATOR, "1", None, "a") is consumer
        assert driver.machine.holder_for(OPERATOR, "1", lease_id, None) is consumer
        assert driver.machine.holder_for(SAM, "1", lease_id, None) is consumer

    def test_a_lease_of_another_boot_is_not_this_ones(self) -> None:
        driver = QueueDriver()
        driver.put("a", "1")
        consumer = driver.pull("a")
        lease_id = driver.machine.lease_id(driver.held(consumer, "1"))
        assert driver.machine.lease_of(lease_id) is driver.held(consumer, "1")
        assert driver.machine.lease_of(lease_id[:-1] + "f") is None
