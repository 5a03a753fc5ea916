"""Settles: handed over, grouped by turn, bounded, confirmed, and what becomes of those that are lost."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

import penstock
from penstock.client.queue import settles
from penstock.client.queue.delivery import NEVER, State
from penstock.client.queue.settles import Settles
from penstock.core.errors import LeaseLost, PenstockError, Refusal
from tests.client.control.test_connection import linked
from tests.client.queue.test_pulled_leases import ROW
from tests.client.queue.test_subscription import subscribed
from tests.client.scripted_peer import peer, run, until


async def held(server, count, **options):
    """A subscription that holds so many deliveries."""
    client, line = await linked(server, **{name: options.pop(name) for name in ("unconfirmed_max",) if name in options})
    subscription = client.subscribe("jobs", credit=100, **options)
    await asyncio.gather(subscription.open(), line.agree())
    for seq in range(1, count + 1):
        line.deliver(seq)
    return client, line, subscription, [await anext(subscription) for _ in range(count)]


def test_a_single_ack_names_its_lease_and_grants_again():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=1)
            line.deliver(1)
            delivery = await anext(subscription)
            acking = asyncio.ensure_future(delivery.ack(confirm=True))
            ack, grant = await line.read("ack"), await line.read("grant")
            assert (ack["id"], ack["leaseId"], ack["subId"]) == ("m1", "lease-1-1", "s1")
            assert grant["n"] == 1
            assert not acking.done()
            line.ok(ack, id="m1")
            await acking
            assert delivery.is_settled
            with pytest.raises(PenstockError, match="settled before"):
                await delivery.ack()
            await client.close()

    run(go())


def test_acks_of_one_turn_travel_together_and_credit_comes_back_at_half_the_window():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=4)
            for seq in (1, 2, 3, 4):
                line.deliver(seq)
            deliveries = [await anext(subscription) for _ in range(4)]
            acking = asyncio.gather(*(delivery.ack(confirm=True) for delivery in deliveries))
            ack, grant = await line.read("ack"), await line.read("grant")
            assert ack["id"] == ["m1", "m2", "m3", "m4"] and grant["n"] == 4
            line.ok(ack, id=ack["id"])
            await acking
            line.deliver(5)
            fifth = await anext(subscription)
            acking = asyncio.ensure_future(fifth.ack(confirm=True))
            line.ok(await line.read("ack"))
            await acking
            asking = asyncio.ensure_future(client.ping())
            line.ok(await line.read("ping"))  # and not a grant: 3 of 4 are still outstanding
            await asking
            await client.close()

    run(go())


def test_batches_arrive_as_arrays_and_are_acked_as_one():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=8, batch=4)
            env = [{"id": f"m{n}", "type": "t", "payload": n} for n in (1, 2, 3)]
            line.say(
                {
                    "type": "deliver",
                    "env": env,
                    "stream": "jobs",
                    "subId": "s1",
                    "seq": [1, 2, 3],
                    "attempt": [1, 1, 2],
                    "leaseId": ["a", "b", "c"],
                    "leaseExpiresAt": 0,
                }
            )
            batch = await subscription.next_batch()
            assert [(d.id, d.seq, d.attempt, d.lease_id) for d in batch] == [
                ("m1", 1, 1, "a"),
                ("m2", 2, 1, "b"),
                ("m3", 3, 2, "c"),
            ]
            acking = asyncio.ensure_future(subscription.ack(batch, confirm=True))
            line.ok(await line.read("ack"))
            await acking
            assert all(delivery.is_settled for delivery in batch)
            await client.close()

    run(go())


def test_a_refused_array_is_asked_for_one_by_one():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=100)
            for seq in (1, 2, 3):
                line.deliver(seq)
            deliveries = [await anext(subscription) for _ in range(3)]
            acking = asyncio.ensure_future(subscription.ack(deliveries, confirm=True))
            line.refuse(await line.read("ack"), "LeaseExpired")
            line.refuse(await line.read("ack"), "AlreadyAcked")
            line.refuse(await line.read("ack"), "LeaseExpired")
            line.ok(await line.read("ack"))
            with pytest.raises(LeaseLost):
                await acking
            assert [d._state.value for d in deliveries] == ["settled", "lost", "settled"]
            await client.close()

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "`ack`, `nack`, `release` and `term` hand over and return; those of a turn travel together, in order",
)
def test_settles_return_at_once_and_travel_in_the_order_of_their_calls():
    async def go():
        async with peer() as server:
            client, line, subscription, (one, two, three, four, five) = await held(server, 5)
            await one.ack()
            await two.ack()
            await three.nack(reason="busy")
            await four.term("bad")
            await five.ack()
            frames = [await line.read() for _ in range(4)]
            assert [(frame["type"], frame["id"]) for frame in frames] == [
                ("ack", ["m1", "m2"]),
                ("nack", "m3"),
                ("term", "m4"),
                ("ack", "m5"),
            ]
            assert not one.is_settled, "the server has not answered"
            for frame in frames:
                line.ok(frame)
            await subscription.flush()
            assert one.is_settled and four.is_settled and subscription.lost == 0
            await client.close()

    run(go())


@pytest.mark.promise("SDK and command line", "at most `unconfirmed_max` settles have no answer; the next call waits")
def test_a_settle_beyond_the_bound_waits_for_an_answer():
    async def go():
        async with peer() as server:
            client, line, subscription, (one, two, three) = await held(server, 3, unconfirmed_max=2)
            await one.ack()
            await two.ack()
            waiting = [asyncio.ensure_future(three.ack()) for _ in range(2)]
            frame = await line.read("ack")
            await asyncio.sleep(0)
            assert not any(call.done() for call in waiting) and not three.is_settled
            line.ok(frame)
            done, again = await asyncio.gather(*waiting, return_exceptions=True)
            assert done is None and again.code == "AlreadyAcked"
            line.ok(await line.read("ack"))
            await subscription.flush()
            await client.close()

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "a lost settle sets `is_lost`, is counted, logged once a second and reported; only `flush` and `confirm` raise it",
)
def test_a_lost_settle_is_counted_and_reported_and_only_flush_raises_it(caplog):
    seen = []

    async def go():
        async with peer() as server:
            client, line, subscription, deliveries = await held(server, 4, on_lost=seen.append)
            for number, delivery in enumerate(deliveries[:3], 1):
                await delivery.ack()  # raises nothing of the one before
                line.refuse(await line.read("ack"), "LeaseExpired")
                await until(lambda number=number: subscription.lost == number)
            assert seen == deliveries[:3] and all(delivery.is_lost for delivery in seen)
            with pytest.raises(LeaseLost):
                await subscription.flush()
            await client.flush()  # raised once
            acking = asyncio.ensure_future(deliveries[3].ack(confirm=True))
            line.refuse(await line.read("ack"), "NotLeaseHolder")
            with pytest.raises(LeaseLost):
                await acking
            await subscription.flush()
            await client.close()

    run(go())
    lost = [record for record in caplog.records if "lost a settle" in record.getMessage()]
    assert len(lost) == 1 and lost[0].levelno == logging.WARNING


@pytest.mark.promise("SDK and command line", "a failed settle that is no lost lease is raised by the next call, once")
def test_another_failure_is_raised_by_the_next_call_whose_own_settle_still_travels():
    async def go():
        async with peer() as server:
            client, line, subscription, (one, two, three) = await held(server, 3)
            await one.ack()
            line.refuse(await line.read("ack"), "JournalUnavailable")
            await until(lambda: subscription._settles._failure)
            with pytest.raises(penstock.Unavailable):
                await two.ack()
            assert (await line.read("ack"))["id"] == "m2"
            assert one._state is State.HELD and subscription.lost == 0, "it may be settled again"
            await three.ack()
            assert (await line.read("ack"))["id"] == "m3"
            await client._connection.close()

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "a lost settle sets `is_lost`, is counted, logged once a second and reported; only `flush` and `confirm` raise it",
)
def test_after_a_cut_settles_of_pulled_leases_are_sent_again_and_those_of_subscriptions_are_not():
    async def go():
        async with peer() as server:
            client, line, subscription, (one,) = await held(server, 1)
            pulling = asyncio.ensure_future(client.pull("jobs", lease_ms=60_000))
            line.ok(await line.read("pull"), deliveries=[ROW | {"leaseId": "L9"}])
            [pulled] = await pulling
            await one.ack()
            await pulled.nack(reason="busy")
            sent = [await line.read(), await line.read()]
            assert sorted(frame["type"] for frame in sent) == ["ack", "settle"]
            await line.cut()
            line = await server.accept()
            await line.agree()
            again = await line.read("settle")
            assert (again["leaseId"], again["op"]) == ("L9", "nack")
            line.refuse(again, "AlreadyAcked")  # a nack that was not done: its lease has ended
            with pytest.raises(LeaseLost):
                await client.flush()
            assert (one.is_lost, subscription.lost, pulled.is_lost, client.lost) == (True, 1, True, 1)
            await client.close()

    run(go())


@pytest.mark.parametrize("confirm", [False, True])
def test_an_ack_of_many_takes_those_that_are_still_held_and_raises_for_the_others(confirm):
    async def go():
        async with peer() as server:
            client, line, subscription, (one, two, three) = await held(server, 3, unconfirmed_max=1)
            await one.ack()
            acking = asyncio.ensure_future(subscription.ack([two, two, three], confirm=confirm))
            ack = await line.read("ack")
            line.say({"type": "expired", "id": "m2", "leaseId": "lease-2-1", "subId": "s1"})
            await until(lambda: two.is_lost)
            line.ok(ack)
            ack = await line.read("ack")
            assert ack["id"] == "m3"
            line.ok(ack)
            with pytest.raises(LeaseLost, match="m2"):
                await acking
            await subscription.flush()
            assert three.is_settled and (subscription._owed, client._unconfirmed.count) == (3, 0)
            await client._connection.close()

    run(go())


def test_a_confirmed_ack_of_more_than_the_bound_raises_the_loss_of_its_first_part():
    async def go():
        async with peer() as server:
            client, line, subscription, deliveries = await held(server, 2, unconfirmed_max=1)
            acking = asyncio.ensure_future(subscription.ack([deliveries[0], *deliveries], confirm=True))
            line.refuse(await line.read("ack"), "LeaseExpired")
            line.ok(await line.read("ack"))
            with pytest.raises(LeaseLost):
                await acking
            assert deliveries[1].is_settled
            await client._connection.close()

    run(go())


@pytest.mark.promise("SDK and command line", "a failed settle that no caller can retry is left to its lease")
def test_flush_raises_a_failure_and_leaves_the_delivery_to_its_lease():
    async def go():
        async with peer() as server:
            client, line, subscription, (one, two) = await held(server, 2)
            await one.ack()
            flushing = [asyncio.ensure_future(subscription.flush()) for _ in range(2)]
            line.refuse(await line.read("ack"), "JournalUnavailable")
            for flush in flushing:
                with pytest.raises(penstock.Unavailable):
                    await flush
            assert one._state is State.HELD and one._renew_at == NEVER
            acking = asyncio.ensure_future(two.ack(confirm=True))
            flush = asyncio.ensure_future(subscription.flush())
            line.refuse(await line.read("ack"), "JournalUnavailable")
            for call in (acking, flush):
                with pytest.raises(penstock.Unavailable):
                    await call
            assert two._state is State.HELD and two._renew_at < NEVER, "its caller may settle it again"
            await subscription.flush()
            await client._connection.close()

    run(go())


@pytest.mark.parametrize("is_flush", [True, False])
def test_a_failure_after_its_waiting_call_was_cancelled_is_raised_by_the_next_call(is_flush):
    async def go():
        async with peer() as server:
            client, line, subscription, (one,) = await held(server, 1)
            waiting = asyncio.ensure_future(one.ack(confirm=not is_flush))
            if is_flush:
                await waiting
                waiting = asyncio.ensure_future(subscription.flush())
            ack = await line.read("ack")
            waiting.cancel()
            await asyncio.wait([waiting])
            line.refuse(ack, "JournalUnavailable")
            await until(lambda: one._state is State.HELD)
            assert one._renew_at == NEVER
            with pytest.raises(penstock.Unavailable):
                await subscription.flush()
            await client._connection.close()

    run(go())


def test_a_settle_whose_answer_was_cancelled_is_lost():
    async def go():
        async with peer() as server:
            client, line, subscription, deliveries = await held(server, 2)
            answers = []
            submit = client._connection.submit
            client._connection.submit = lambda *args, **more: answers.append(submit(*args, **more)) or answers[-1]
            await subscription.ack(deliveries)
            await line.read("ack")
            answers[0].cancel()
            with pytest.raises(LeaseLost, match="cancelled"):
                await subscription.flush()
            assert all(delivery.is_lost for delivery in deliveries) and subscription.lost == 2
            await client._connection.close()

    run(go())


@pytest.mark.parametrize("is_again", [False, True])
def test_a_lease_that_the_loop_lost_while_a_thread_claimed_it_stays_lost(is_again):
    async def go():
        async with peer() as server:
            client, line, subscription, (one,) = await held(server, 1)
            if is_again:
                line.deliver(1, attempt=2)
                again = await anext(subscription)
            else:
                subscription._lost(one, LeaseLost(Refusal("LeaseExpired", "expired")))
            owed = subscription._owed
            one._state = State.SETTLING  # the write of a `claim` whose check came before the loss
            subscription._hand_over(one, "ack", {})
            assert one.is_lost and (subscription.lost, subscription._owed) == (1, owed)
            assert list(subscription._held.values()) == ([again] if is_again else [])
            asking = asyncio.ensure_future(client.ping())
            line.ok(await line.read("ping"))  # and no ack before it
            await asking
            await client._connection.close()

    run(go())


def test_an_ack_that_the_server_has_done_before_is_done():
    async def go():
        async with peer() as server:
            client, line, subscription, (one,) = await held(server, 1)
            await one.ack()
            line.refuse(await line.read("ack"), "AlreadyAcked")
            await subscription.flush()
            assert one.is_settled
            await client.close()

    run(go())


@pytest.mark.promise("SDK and command line", "leaving a subscription or a client flushes its settles, for 5 s at most")
def test_leaving_waits_for_the_answers_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(settles, "LEAVE_S", 0.05)

    async def go():
        async with peer() as server:
            client, line, subscription, (one, two) = await held(server, 2)
            await one.ack()
            closing = asyncio.ensure_future(client.flush())
            line.ok(await line.read("ack"))
            await closing
            await two.ack()
            closing = asyncio.ensure_future(subscription.close())
            await line.read("ack")  # no answer
            line.ok(await line.read("unsubscribe"))
            await closing
            assert one.is_settled and two.is_lost and subscription.lost == 1
            await client.close()

    run(go())


@pytest.mark.promise("SDK and command line", "leases are renewed until their settle is answered")
def test_a_lease_is_renewed_while_its_settle_has_no_answer():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=2, lease_ms=1000)
            line.deliver(1)
            await (await anext(subscription)).ack()
            ack = await line.read("ack")
            extend = await line.read("extend")
            assert extend["leaseId"] == "lease-1-1"
            line.refuse(extend, "AlreadyAcked")
            line.ok(ack)
            await subscription.flush()
            assert subscription.lost == 0
            await client.close()

    run(go())


def test_an_ack_that_was_not_sent_does_not_settle_the_next_delivery_of_its_envelope():
    async def go():
        async with peer() as server:
            client, line, subscription, (one, two) = await held(server, 2)
            await one.ack()
            await two.ack()
            subscription._delivered_again(1, "lease-1-2")  # arrives in the turn of the acks
            assert (await line.read("ack"))["id"] == "m2"
            assert one.is_lost and subscription.lost == 1
            await client._connection.close()

    run(go())


def test_what_on_lost_raises_is_logged(caplog):
    def report(delivery):
        raise ValueError("no pager")

    async def go():
        async with peer() as server:
            client, line, _, (one,) = await held(server, 1, on_lost=report)
            await one.ack()
            line.refuse(await line.read("ack"), "LeaseExpired")
            await until(lambda: one.is_lost)
            await client._connection.close()

    run(go())
    assert "no pager" in caplog.text


def test_a_bound_below_one_is_refused():
    with pytest.raises(PenstockError, match="unconfirmed_max"):
        penstock.connect_sync("unix:/nowhere", unconfirmed_max=0)


def test_the_sync_twin_hands_over_too():
    async def script(server):
        line = await server.accept()
        await line.agree()
        for seq in (1, 2):
            line.deliver(seq)
        frames = [await line.read("ack")]
        if isinstance(frames[0]["id"], str):
            frames.append(await line.read("ack"))
        assert str([frame["id"] for frame in frames]).count("m") == 2
        answered = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, answered.set)
        await answered.wait()
        for frame in frames:
            line.ok(frame)
        line.ok(await line.read("unsubscribe"))

    def use(url):
        with penstock.connect_sync(url) as client, client.subscribe("jobs", credit=10) as jobs:
            one, two = next(jobs), next(jobs)
            one.ack()
            two.ack()
            assert not one.is_settled
            with pytest.raises(PenstockError, match="settled before"):
                one.nack()
            jobs.flush()
            assert one.is_settled and two.is_settled and jobs.lost == 0

    async def go():
        async with peer() as server:
            await asyncio.gather(asyncio.to_thread(use, server.url), script(server))

    run(go())


class Model:
    """A server that answers settles at random, and what must be true of each delivery afterwards."""

    MOST = 4

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.arrived = []
        self.called = []
        self.fate = {}
        self.open_at_most = 0

    def judge(self, id_):
        return self.fate.setdefault(id_, self.dice.choice(["ok", "ok", "ok", "LeaseExpired"]))

    async def answer(self, line):
        """Answer frames as a server does: an array fails as a whole, and what it did is `AlreadyAcked` afterwards."""
        waiting, done = [], set()
        while True:
            frame = await line.read()
            if "id" not in frame:
                line.ok(frame)
                continue
            ids = frame["id"] if isinstance(frame["id"], list) else [frame["id"]]
            self.arrived += [id_ for id_ in ids if id_ not in self.arrived]
            waiting.append((frame, ids))
            self.open_at_most = max(self.open_at_most, sum(len(ids) for _, ids in waiting))
            if self.dice.random() < 0.3 and len(waiting) < self.MOST:
                await asyncio.sleep(0)
            for frame, ids in waiting:
                bad = [id_ for id_ in ids if self.judge(id_) != "ok"]
                if len(ids) == 1 and ids[0] in done:
                    line.refuse(frame, "AlreadyAcked")
                elif bad:
                    line.refuse(frame, self.fate[bad[0]])
                else:
                    line.ok(frame)
                done |= set(ids) - set(bad)
            waiting.clear()

    async def play(self, server):
        lost = []
        client, line = await linked(server, unconfirmed_max=self.MOST)
        subscription = client.subscribe("jobs", credit=50, on_lost=lost.append)
        await asyncio.gather(subscription.open(), line.agree())
        answering = asyncio.create_task(self.answer(line))
        deliveries = []
        for seq in range(1, 21):
            line.deliver(seq)
        for _ in range(20):
            deliveries.append(delivery := await anext(subscription))
            self.called.append(delivery.id)
            await self.dice.choice([delivery.ack, delivery.ack, delivery.ack, delivery.release])()
            if self.dice.random() < 0.2:
                await asyncio.sleep(0)
        try:
            await subscription.flush()
        except LeaseLost:
            pass
        answering.cancel()
        await client._connection.close()
        refused = [id_ for id_ in self.called if self.fate[id_] != "ok"]
        assert self.arrived == self.called, "settles travel in the order of their calls"
        assert self.open_at_most <= self.MOST, "the bound holds"
        assert {delivery.id for delivery in lost} == set(refused), "each loss is reported"
        assert subscription.lost == len(lost) == len(refused), "and counted once"
        assert [d.is_settled for d in deliveries] == [self.fate[d.id] == "ok" for d in deliveries]
        assert client._unconfirmed.count == 0


def play(*seeds):
    async def go():
        for seed in seeds:
            async with peer() as server:
                await Model(seed).play(server)

    run(go())


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_server_answers_order_bound_and_losses_hold(seed):
    play(seed)


def _backwards(self):
    self._end_acks()
    unsent, self._unsent = self._unsent, []
    for frame in reversed(unsent):
        self._send(frame)


def _all_settled(self, frame, error, end=Settles._end):
    end(self, frame, None)


def _unbounded(self, delivery, body=None, add=Settles.add):
    add(self, delivery, body)
    self.unconfirmed.count -= 1


@pytest.mark.parametrize(("name", "mutant"), [("send", _backwards), ("_end", _all_settled), ("add", _unbounded)])
def test_a_mutant_is_noticed(monkeypatch, name, mutant):
    monkeypatch.setattr(Settles, name, mutant)
    with pytest.raises(AssertionError):
        play(*range(5))
