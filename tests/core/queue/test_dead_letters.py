"""Dead letters, redrive and purge: a moved record is never lost or duplicated."""

from __future__ import annotations

from time import process_time

import msgspec
import pytest

from penstock.core.effects import Job
from penstock.core.errors import Refusal
from penstock.core.queue.dead_letters import begin_purge
from penstock.core.queue.enqueue import Admitted
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.core.rows import row_of
from penstock.core.steps import Steps
from tests.core.driving import QueueDriver, body_of, purge_all, record_of, redrive

THREE = Policy(max_deliveries=3)


def letter(driver: QueueDriver, stream: str = "dlq/a", id_: str = "1") -> dict[str, object]:
    envelope = msgspec.json.decode(driver.channel(stream).live[id_].body)
    header: dict[str, object] = envelope["headers"]["x-courier"]
    return header


def redriven(driver: QueueDriver, limit: int = 1_000) -> Job:
    job = redrive(driver.machine, driver.now, "a", limit)
    assert isinstance(job, Job), job
    driver.apply()
    driver.commit()
    return job


class TestMaxDeliveries:
    @pytest.mark.promise("Delivery", "after `maxDeliveries` an envelope goes to the dead letters")
    def test_the_last_failure_moves_the_record_to_the_dead_letters(self) -> None:
        driver = QueueDriver(THREE)
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1")
        for n in range(3):
            driver.nack(consumer, "1", reason=f"failure {n}")
        assert [attempt for _, _, attempt in driver.deliveries] == [1, 2, 3]
        assert driver.state("a") == (0, 0, 0)
        assert driver.channel("a").counters.dead == 1
        assert driver.batches[-1] == ["enqueue", "dead"], "one commit moves it"
        assert letter(driver) == {
            "reason": "maxDeliveries",
            "stream": "a",
            "attempts": 3,
            "firstTs": "2025-10-09T08:53:20.000Z",
            "lastError": "failure 2",
        }

    def test_expiries_count_like_failures(self) -> None:
        driver = QueueDriver(Policy(max_deliveries=2, lease_us=1_000_000))
        driver.subscribe("a", 10)
        driver.put("a", "1")
        driver.advance(2_000)
        assert letter(driver)["lastError"] == "lease expired"
        assert driver.channel("a").counters.timeout == 2

    def test_without_a_limit_it_is_delivered_for_ever(self) -> None:
        driver = QueueDriver(Policy(max_deliveries=0, retry=None))
        consumer = driver.subscribe("a", 100)
        driver.put("a", "1")
        for _ in range(60):
            driver.nack(consumer, "1")
        assert driver.deliveries[-1] == ("c", "1", 61)

    @pytest.mark.promise("Delivery", "by default an envelope fails 20 times, then it goes to the dead letters")
    def test_the_default_is_twenty_and_a_dead_letter_is_kept(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 100, lease_ms=3_600_000)
        driver.put("a", "1")
        for _ in range(20):
            driver.nack(consumer, "1")
            driver.advance(300_000)
        assert (letter(driver)["reason"], letter(driver)["attempts"]) == ("maxDeliveries", 20)
        worker = driver.subscribe("dlq/a", 200)
        for _ in range(120):
            driver.nack(worker, "1", 0)
        assert list(driver.channel("dlq/a").live) == ["1"]

    @pytest.mark.promise("Delivery", "a lost connection is not a failure: 100 of them make a dead letter")
    def test_lost_connections_are_counted_apart(self) -> None:
        driver = QueueDriver(Policy(max_deliveries=3, max_abandoned=8, retry=None))
        driver.put("a", "1")
        for _ in range(7):
            lose(driver)
        record = driver.channel("a").live["1"]
        assert (record.attempt, record.failures, record.abandoned) == (7, 0, 7)
        consumer = driver.subscribe("a", 9)
        driver.nack(consumer, "1")
        driver.nack(consumer, "1")
        assert record.failures == 2
        driver.unsubscribe(consumer)
        assert record.abandoned == 7, "a subscription that ends gives its leases back"
        lose(driver)
        assert letter(driver)["reason"] == "abandoned"
        assert letter(driver)["lastError"] == "the connection of its consumer was lost"

    def test_a_server_that_drains_abandons_nothing(self) -> None:
        driver = QueueDriver(Policy(max_abandoned=1))
        link = driver.connect()
        driver.subscribe("a", 1, link=link)
        driver.put("a", "1")
        driver.machine.drain(driver.now)
        driver.disconnect(link)
        assert driver.channel("a").live["1"].abandoned == 0

    def test_the_envelope_keeps_its_other_headers(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 1)
        raw = b'{"id":"1","headers":{"k":1e400},"payload":{"deep":[1.10]}}'
        record = record_of("1")
        record.body = raw
        driver.offer("a", record)
        driver.commit()
        driver.term(consumer, "1", "never")
        body = driver.channel("dlq/a").live["1"].body
        assert b'"k":1e400' in body
        assert b'{"deep":[1.10]}' in body
        assert letter_reason(body) == ("term", "never")

    def test_a_dead_id_is_still_a_duplicate_at_its_origin(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.term(consumer, "1")
        assert driver.put("a", "1") == [1]
        assert driver.channel("a").settled["1"].outcome == "dead"


def lose(driver: QueueDriver) -> None:
    """Lease what is ready in `a`, and lose the connection."""
    link = driver.connect()
    driver.subscribe("a", 10, link=link)
    driver.disconnect(link)


def letter_reason(body: bytes) -> tuple[object, object]:
    text = body.decode().replace("1e400", "0")
    header = msgspec.json.decode(text)["headers"]["x-courier"]
    return header["reason"], header["lastError"]


class TestFullDeadLetters:
    def driver(self) -> QueueDriver:
        return QueueDriver(policies={"dlq/a": Policy(max_depth=1)})

    @pytest.mark.promise("Delivery", "after `maxDeliveries` an envelope goes to the dead letters")
    def test_nothing_is_lost_it_stays_held_and_is_tried_again(self) -> None:
        driver = self.driver()
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1", "2")
        driver.term(consumer, "1")
        driver.term(consumer, "2", "for a reason")
        assert driver.state("a") == (0, 0, 1)
        assert driver.channel("a").held == 1
        assert driver.machine.totals.dead_blocked == 1
        assert driver.channel("a").counters.dead == 1
        driver.advance(3_000)
        assert driver.machine.totals.dead_blocked == 4
        dead = driver.subscribe("dlq/a", 1)
        driver.ack(dead, "1")
        driver.advance(1_000)
        assert driver.state("a") == (0, 0, 0)
        assert letter(driver, id_="2")["reason"] == "term", "a retry does not change why it died"
        assert letter(driver, id_="2")["lastError"] == "for a reason"

    def test_a_journal_that_refuses_the_giving_up_spares_the_record(self) -> None:
        driver = QueueDriver(policies={"dlq/a": Policy(max_depth=0)})
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1")
        record = driver.channel("a").live["1"]
        driver.machine.term(driver.now, consumer, record, None)
        driver.apply()
        assert driver.channel("a").held == 1
        driver.refuse()
        assert (driver.channel("a").held, driver.channel("a").delayed) == (0, 1)
        driver.advance(1_000)
        assert driver.deliveries[-1][1:] == ("1", 2)

    def test_a_held_record_counts_in_the_depth_of_its_origin(self) -> None:
        driver = QueueDriver(policies={"dlq/a": Policy(max_depth=0), "a": Policy(max_depth=1)})
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1")
        driver.term(consumer, "1")
        assert driver.refusal("a", record_of("2")).code == "StreamFull"
        assert driver.ack(consumer, "1") == ["LeaseExpired"]

    def test_another_record_under_the_same_id_is_not_lost(self) -> None:
        """The id may come again after its window, while its first life still lies in the dead letters."""
        driver = QueueDriver(Policy(dedup_us=1_000_000))
        consumer = driver.subscribe("a", 5)
        driver.put("a", "1")
        driver.term(consumer, "1")
        driver.advance(2_000)
        driver.offer("a", record_of("1", "second life"))
        driver.commit()
        driver.term(consumer, "1")
        bodies = [record.body for name in ("a", "dlq/a") for record in driver.channel(name).live.values()]
        assert any(b"second life" in body for body in bodies)

    def test_dead_letters_need_no_stream_of_their_own(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.machine.auto_create = False
        driver.term(consumer, "1")
        assert [record.id for record in driver.channel("dlq/a").ready] == ["1"]


class TestDeadLettersAreAStream:
    def test_they_are_delivered_like_any_other(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 1)
        driver.subscribe("dlq/a", 1, label="undertaker")
        driver.put("a", "1")
        driver.term(consumer, "1")
        assert driver.deliveries[-1] == ("undertaker", "1", 1)

    def test_what_dies_there_ends_there(self) -> None:
        driver = QueueDriver(policies={"dlq/a": Policy(max_deliveries=1)})
        consumer = driver.subscribe("a", 2)
        dead = driver.subscribe("dlq/a", 2)
        driver.put("a", "1", "2")
        driver.term(consumer, "1")
        driver.term(consumer, "2")
        driver.term(dead, "1")
        driver.nack(dead, "2")
        assert driver.state("dlq/a") == (0, 0, 0)
        assert driver.channel("dlq/a").counters.dead == 2
        assert not driver.machine.known("dlq/dlq/a")


class TestRedrive:
    def driver(self, count: int = 3) -> QueueDriver:
        driver = QueueDriver()
        consumer = driver.subscribe("a", count)
        ids = [str(n + 1) for n in range(count)]
        driver.put("a", *ids)
        for id_ in ids:
            driver.term(consumer, id_)
        return driver

    @pytest.mark.promise("Delivery", "redrive moves dead letters back")
    def test_sends_everything_home_although_the_home_remembers_the_ids(self) -> None:
        driver = self.driver()
        assert set(driver.channel("a").settled) == {"1", "2", "3"}
        job = redriven(driver)
        assert (job.moved, len(job.kept)) == (3, 0)
        assert [(r.id, r.seq, r.attempt) for r in driver.channel("a").ready] == [
            ("1", 4, 0), ("2", 5, 0), ("3", 6, 0),
        ]  # fmt: skip
        assert driver.channel("dlq/a").counters.moved == 3
        assert driver.channel("a").ready[0].body == body_of("1"), "without the header that it got"

    def test_is_bounded_and_takes_the_oldest_first(self) -> None:
        driver = self.driver()
        assert redriven(driver, 2).moved == 2
        assert [record.id for record in driver.channel("dlq/a").ready] == ["3"]

    def test_keeps_what_the_home_has_no_room_for(self) -> None:
        driver = self.driver()
        driver.channel("a").policy = Policy(max_depth=2)
        job = redriven(driver)
        assert (job.moved, len(job.kept)) == (2, 1)
        assert [record.id for record in driver.channel("dlq/a").ready] == ["3"]

    def test_keeps_what_is_live_at_home(self) -> None:
        driver = QueueDriver(Policy(dedup_us=1_000_000))
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.term(consumer, "1")
        driver.advance(2_000)
        driver.put("a", "1")
        job = redriven(driver)
        assert (job.moved, len(job.kept)) == (0, 1)
        assert driver.state("dlq/a") == (1, 0, 0)

    def test_moves_only_the_chosen_ids(self) -> None:
        driver = self.driver()
        job = redrive(driver.machine, driver.now, "a", 1, ["3", "2", "3"])
        driver.apply()
        driver.commit()
        assert isinstance(job, Job) and job.moved == 2
        assert [record.id for record in driver.channel("a").ready] == ["3", "2"]
        assert [record.id for record in driver.channel("dlq/a").ready] == ["1"]

    def test_moves_no_id_if_one_of_them_is_not_a_dead_letter(self) -> None:
        driver = self.driver()
        refusal = redrive(driver.machine, driver.now, "a", 1, ["1", "no-such-id"])
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.ref) == ("UnknownEnvelope", "no-such-id")
        assert [record.id for record in driver.channel("dlq/a").ready] == ["1", "2", "3"]

    def test_a_chosen_id_that_finds_no_room_returns_to_its_place(self) -> None:
        driver = self.driver()
        driver.channel("a").policy = Policy(max_depth=0)
        job = redrive(driver.machine, driver.now, "a", 1, ["2"])
        driver.apply()
        assert isinstance(job, Job) and (job.moved, len(job.kept)) == (0, 1)
        assert [record.id for record in driver.channel("dlq/a").ready] == ["1", "2", "3"]

    def test_may_be_asked_for_by_either_name(self) -> None:
        driver = self.driver(1)
        job = redrive(driver.machine, driver.now, "dlq/a", 10)
        assert isinstance(job, Job)
        driver.apply()
        assert job.moved == 1

    def test_of_a_stream_without_dead_letters_is_refused_and_makes_nothing(self) -> None:
        driver = QueueDriver()
        driver.put("a", "1")
        refusal = redrive(driver.machine, driver.now, "a", 10)
        assert isinstance(refusal, Refusal)
        assert refusal.code == "UnknownStream"
        assert not driver.machine.known("dlq/a")

    def test_what_failed_again_dies_again(self) -> None:
        driver = self.driver(1)
        redriven(driver)
        consumer = driver.subscribe("a", 1)
        driver.term(consumer, "1", "again")
        assert letter(driver)["lastError"] == "again"
        assert letter(driver)["attempts"] == 1

    def test_a_refused_commit_undoes_both_ends(self) -> None:
        driver = self.driver(1)
        redrive(driver.machine, driver.now, "a", 10)
        driver.apply()
        driver.refuse()
        assert driver.channel("a").live == {}
        assert driver.channel("dlq/a").counters.moved == 0
        driver.advance(1_000)
        assert driver.state("dlq/a") == (1, 0, 0)


class TestPurge:
    def test_drops_ready_and_delayed_as_facts_and_leaves_leases(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1", "2", "3", "4")
        driver.nack(consumer, "2", 1_000)
        assert driver.state("a") == (2, 1, 1)
        assert purge_all(driver.machine, driver.now, driver.channel("a")) == 3
        driver.apply()
        driver.commit()
        assert driver.batches[-1] == ["purge"] * 3
        assert driver.state("a") == (0, 1, 0)
        assert driver.channel("a").counters.purged == 3
        driver.grant(consumer, 5)
        driver.advance(2_000)
        assert driver.ids() == ["1", "2"]
        assert driver.ack(consumer, "1") == []

    def test_leaves_what_is_not_yet_committed(self) -> None:
        driver = QueueDriver()
        driver.offer("a", record_of("1"))
        assert purge_all(driver.machine, driver.now, driver.channel("a")) == 0
        driver.commit()
        assert driver.state("a") == (1, 0, 0)


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "term", "expire", "purge", "drop", "redrive"])
def test_the_identity_holds_after_every_way_out(verb: str) -> None:
    driver = QueueDriver(Policy(lease_us=1_000_000, max_deliveries=2))
    consumer = driver.subscribe("a", 3)
    driver.put("a", "1", "2", "3", "4")
    match verb:
        case "ack":
            driver.ack(consumer, "1", "2")
        case "nack":
            driver.nack(consumer, "1")
            driver.nack(consumer, "2", 500)
        case "release":
            driver.release(consumer, "1")
        case "term":
            driver.term(consumer, "1")
        case "expire":
            driver.advance(1_500)
        case "purge":
            purge_all(driver.machine, driver.now, driver.channel("a"))
        case "drop":
            driver.machine.drop(driver.now, driver.channel("a"), ["4"], "operator")
        case _:
            driver.term(consumer, "1")
            redriven(driver)
    row = driver.machine.metrics(driver.now, driver.channel("a"))
    gone = sum(row[f"q.{name}"] for name in ("ack", "dead", "drop", "purged", "moved"))
    assert row["q.in"] == gone + row["q.depth"] + row["q.if"] + row["q.delayed"]
    assert row["q.in"] == (5 if verb == "redrive" else 4)


def test_the_row_of_a_dead_record_says_who_gave_it_up_and_why() -> None:
    driver = QueueDriver()
    consumer = driver.subscribe("a", 1)
    driver.put("a", "1")
    driver.machine.term(driver.now, consumer, driver.held(consumer, "1"), "not an image")
    driver.apply()
    rows = [row_of(fact) for fact in driver.machine.commit_log.facts]
    dead = next(row for row in rows if row.event == "dead")
    assert (dead.reason, dead.peer) == ("term", "operator")
    assert dead.meta == '{"error":"not an image"}'


def test_dead_letters_that_find_no_room_at_home_keep_their_place_by_urgency() -> None:
    urgent = Policy(priority=True, max_deliveries=1)
    driver = QueueDriver(policies={"q": Policy(max_deliveries=1, max_depth=4), "dlq/q": urgent})
    consumer = driver.subscribe("q", 4)
    driver.put("q", "1", "2", "3", "4")
    for id_ in "1234":
        driver.term(consumer, id_)
    driver.put("q", "a", "b", "c", "d")  # there is no room at home
    job = redrive(driver.machine, driver.now, "q", 2)
    assert not isinstance(job, Refusal)
    driver.apply()
    driver.commit()
    assert (job.moved, len(job.kept)) == (0, 2)
    assert [record.id for record in driver.channel("dlq/q").ready] == ["1", "2", "3", "4"]


def test_a_redrive_that_the_journal_refuses_leaves_the_memory_of_ids_as_it_was() -> None:
    driver = QueueDriver()
    consumer = driver.subscribe("q", 9)
    driver.put("q", "1", "2", "3")
    driver.term(consumer, "1")
    driver.advance(5)
    driver.ack(consumer, "2")
    before = list(driver.channel("q").order)
    redrive(driver.machine, driver.now, "q", 1)
    driver.apply()
    driver.refuse()
    assert list(driver.channel("q").order) == list(driver.channel("q").settled) == before
    answer = driver.offer("q", record_of("1"))
    assert isinstance(answer, Admitted)
    assert answer.duplicates == ["1"]
    assert driver.machine.revived == {}


class TestDrop:
    @pytest.mark.promise(
        "Operations", "one envelope that waits, or one dead letter, can be dropped or redriven by its id"
    )
    def test_drops_what_is_ready_or_delayed_and_records_who_asked(self) -> None:
        driver = QueueDriver()
        driver.put("a", "1", "2")
        driver.offer("a", record_of("3", due_wall_us=driver.now.wall_us + 60_000_000))
        driver.commit()
        assert driver.channel("a").delayed == 1
        assert driver.machine.drop(driver.now, driver.channel("a"), ["3", "1"], "ann") == 2
        rows = [row_of(fact) for fact in driver.machine.commit_log.facts]
        assert [(row.event, row.id, row.peer, row.reason) for row in rows] == [
            ("purge", "3", "ann", "requested"),
            ("purge", "1", "ann", "requested"),
        ]
        driver.commit()
        driver.advance(120_000)
        assert driver.state("a") == (1, 0, 0)
        counters = driver.channel("a").counters
        assert (counters.purged, counters.drop) == (2, 0), "`drop` counts what a full stream loses"

    @pytest.mark.parametrize(("ids", "code"), [(["2", "1"], "EnvelopeLeased"), (["2", "9"], "UnknownEnvelope")])
    def test_drops_nothing_if_one_id_is_leased_or_unknown(self, ids: list[str], code: str) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 1)
        driver.put("a", "1", "2")
        refusal = driver.machine.drop(driver.now, driver.channel("a"), ids, "ann")
        assert isinstance(refusal, Refusal) and refusal.code == code
        assert driver.state("a") == (1, 1, 0)

    def test_a_record_on_its_way_to_full_dead_letters_stays(self) -> None:
        driver = QueueDriver(policies={"dlq/a": Policy(max_depth=0)})
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.term(consumer, "1")
        refusal = driver.machine.drop(driver.now, driver.channel("a"), ["1"], "ann")
        assert isinstance(refusal, Refusal) and refusal.code == "StreamFull"

    def test_frees_the_key_that_a_delayed_record_blocked(self) -> None:
        driver = QueueDriver(Policy(partitioned=True))
        consumer = driver.subscribe("a", 1)
        for id_ in "12":
            driver.offer("a", Record(id_, "t", b'{"id":"%b","partitionKey":"k"}' % id_.encode()))
        driver.commit()
        driver.nack(consumer, "1", 60_000)
        driver.machine.grant(driver.now, consumer, 1)
        driver.apply()
        assert [id_ for _, id_, _ in driver.deliveries] == ["1"]
        driver.machine.drop(driver.now, driver.channel("a"), ["1"], "ann")
        driver.apply()
        assert [id_ for _, id_, _ in driver.deliveries] == ["1", "2"]

    def test_a_refused_commit_brings_it_back(self) -> None:
        driver = QueueDriver()
        driver.put("a", "1")
        driver.machine.drop(driver.now, driver.channel("a"), ["1"], "ann")
        driver.refuse()
        driver.advance(60_000)
        assert driver.state("a") == (1, 0, 0)
        assert driver.channel("a").counters.purged == 0

    def test_a_record_that_a_purge_or_a_redrive_holds_does_not_wait_for_room(self) -> None:
        driver = QueueDriver()
        driver.put("dlq/a", "1", "2")
        assert isinstance(driver.machine.begin_redrive(driver.now, "a", 1), Job)
        assert Steps(begin_purge(driver.channel("dlq/a"), 1)).all().records
        for id_ in "12":
            refusal = driver.machine.drop(driver.now, driver.channel("dlq/a"), [id_], "ann")
            assert isinstance(refusal, Refusal) and refusal.code == "UnknownEnvelope"
        codes = [row["code"] for row in driver.machine.explain(driver.now, driver.channel("dlq/a"))["reasons"]]
        assert "dead_letters_full" not in codes


def _letters(driver: QueueDriver, count: int) -> None:
    body = b'{"id":"%d","partitionKey":"k","headers":{}}'
    driver.offer("dlq/a", *(Record(str(n), "t", body % n) for n in range(count)))
    driver.commit()


def _redrive_chosen(driver: QueueDriver, ids: list[str]) -> Job:
    job = redrive(driver.machine, driver.now, "a", 1, ids)
    assert isinstance(job, Job)
    driver.apply()
    return job


@pytest.mark.parametrize(
    "policy",
    [Policy(), Policy(redelivery="head"), Policy(partitioned=True), Policy(priority=True)],
    ids=["tail", "head", "keys", "priority"],
)
class TestChosen:
    def test_the_others_keep_their_order_and_what_finds_no_room_gets_its_place_back(self, policy: Policy) -> None:
        driver = QueueDriver(policies={"dlq/a": policy, "a": Policy(max_depth=2)})
        _letters(driver, 12)
        channel = driver.channel("dlq/a")
        assert driver.machine.drop(driver.now, channel, ["8", "0", "3"], "ann") == 3
        driver.commit()
        assert [record.id for record in channel.ready] == ["1", "2", "4", "5", "6", "7", "9", "10", "11"]
        job = _redrive_chosen(driver, ["10", "2", "7", "1", "5"])
        driver.commit()
        assert (job.moved, len(job.kept)) == (2, 3)
        assert list(driver.channel("a").live) == ["10", "2"]
        left = ["1", "4", "5", "6", "7", "9", "11"]
        assert [record.id for record in channel.ready] == left
        assert (len(channel.ready), channel.held, channel.balance) == (7, 0, 0)
        consumer = driver.subscribe("dlq/a", 1)
        for id_ in left:
            driver.ack(consumer, id_)
            driver.grant(consumer, 1)
        assert driver.ids() == left

    @pytest.mark.parametrize("verb", ["drop", "redrive"])
    def test_many_ids_cost_one_pass_over_a_long_stream(self, policy: Policy, verb: str) -> None:
        def cost(count: int) -> float:
            driver = QueueDriver(policies={"dlq/a": policy, "a": Policy(max_depth=0)})
            _letters(driver, 20_000)
            chosen = [str(20_000 - n) for n in range(1, 2 * count, 2)]
            start = process_time()
            if verb == "drop":
                driver.machine.drop(driver.now, driver.channel("dlq/a"), chosen, "ann")
            else:
                _redrive_chosen(driver, chosen)
            return process_time() - start

        assert min(cost(500), cost(500)) < 10 * cost(20), "a pass for each id costs 25 times as much"
