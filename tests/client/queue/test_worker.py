"""Handlers of `work`: the outcome of their deliveries, and how they learn of a lost lease."""

from __future__ import annotations

import asyncio
import logging

import pytest

import penstock
from penstock.core.errors import LeaseLost, PenstockError
from tests.client.control.test_connection import linked
from tests.client.queue.test_subscription import subscribed
from tests.client.scripted_peer import peer, run, until


class Job:
    """A subscription at work, and the other end of its line."""

    def __init__(self, client, line, work, begun):
        self.client = client
        self.line = line
        self.work = work
        self.begun = begun

    async def read(self, kind):
        """The next frame that is no grant of credit, which must be of this kind."""
        while (frame := await self.line.read())["type"] == "grant":
            self.line.ok(frame)
        assert frame["type"] == kind, frame
        self.line.ok(frame, id=frame.get("id"))
        return frame

    async def expire(self, seq):
        """Let a lease end, once its handler is in the middle of its work."""
        await until(lambda: seq in self.begun)
        self.line.say({"type": "expired", "id": f"m{seq}", "leaseId": f"lease-{seq}-1", "subId": "s1"})


async def at_work(server, handler, **options):
    concurrency = options.pop("concurrency", 1)
    client, line, subscription, _ = await subscribed(server, **options)
    begun = []

    async def noted(delivery):
        begun.append(delivery.seq)
        await handler(delivery)

    return Job(client, line, asyncio.create_task(subscription.work(noted, concurrency=concurrency)), begun)


def worked(handler, script, **options):
    """Run a handler against a script of the server's side."""

    async def go():
        async with peer() as server:
            job = await at_work(server, handler, **options)
            await script(job)
            await job.client.close()
            with pytest.raises((PenstockError, asyncio.CancelledError)):
                await job.work

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "`work` acks when the handler returns, nacks when it raises, bounds concurrency, and releases on cancellation",
)
def test_a_handler_that_returns_has_its_delivery_acked():
    async def handler(delivery):
        assert delivery.payload == 1

    async def script(job):
        job.line.deliver(1)
        assert (await job.read("ack"))["leaseId"] == "lease-1-1"

    worked(handler, script)


@pytest.mark.promise(
    "SDK and command line",
    "`work` acks when the handler returns, nacks when it raises, bounds concurrency, and releases on cancellation",
)
def test_a_handler_that_raises_has_its_delivery_nacked_and_the_next_one_comes(caplog):
    async def handler(delivery):
        if delivery.seq == 1:
            raise ValueError("no such file")

    async def script(job):
        job.line.deliver(1)
        assert (await job.read("nack"))["reason"] == "ValueError: no such file"
        job.line.deliver(2)
        assert (await job.read("ack"))["id"] == "m2"

    worked(handler, script)
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "seq=1" in record.getMessage() and "no such file" in caplog.text


@pytest.mark.promise("SDK and command line", "no failure of a handler ends `work`")
def test_a_cancellation_of_something_that_a_handler_waited_for_does_not_end_the_work():
    async def handler(delivery):
        if delivery.seq == 1:
            other = asyncio.create_task(asyncio.Event().wait())
            other.cancel()
            await other

    async def script(job):
        job.line.deliver(1)
        nacked = await job.read("nack")
        assert nacked["leaseId"] == "lease-1-1" and nacked["reason"] == "CancelledError"
        job.line.deliver(2)
        assert (await job.read("ack"))["leaseId"] == "lease-2-1"
        assert not job.work.done()

    worked(handler, script)


@pytest.mark.promise("SDK and command line", "no failure of a handler ends `work`")
def test_a_plain_function_that_raises_stop_iteration_has_its_delivery_nacked():
    def handler(delivery):
        return next(iter(()))

    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server)
            job = Job(client, line, asyncio.create_task(subscription.work(handler)), [])
            line.deliver(1)
            assert (await job.read("nack"))["reason"] == "StopIteration"
            await client._connection.close()
            with pytest.raises(PenstockError):
                await job.work

    run(go())


def test_the_failure_of_a_settle_is_logged_when_handlers_do_not_wait(caplog):
    async def handler(delivery):
        pass

    async def script(job):
        job.line.deliver(1)
        job.line.refuse(await job.line.read("ack"), "JournalUnavailable")
        job.line.deliver(2)
        assert (await job.read("ack"))["id"] == "m2"

    worked(handler, script)
    assert "a delivery of `jobs` could not be settled" in caplog.text


def test_a_lease_that_is_lost_while_the_acks_of_a_batch_wait_does_not_nack_the_others():
    async def handler(batch):
        pass

    async def go():
        async with peer() as server:
            client, line = await linked(server, unconfirmed_max=1)
            subscription = client.subscribe("jobs", credit=10)
            await asyncio.gather(subscription.open(), line.agree())
            for seq in (1, 2, 3):
                line.deliver(seq)
            await until(lambda: len(subscription._buffer) == 3)
            job = Job(client, line, asyncio.create_task(subscription.work_batch(handler)), [])
            ack = await line.read("ack")
            second = subscription._held[2]
            line.say({"type": "expired", "id": "m2", "leaseId": "lease-2-1", "subId": "s1"})
            await until(lambda: second.is_lost)
            line.ok(ack)
            assert (await job.read("ack"))["id"] == "m3"
            await client._connection.close()
            with pytest.raises(PenstockError):
                await job.work

    run(go())


def test_what_a_handler_settles_itself_stays_so():
    async def handler(delivery):
        await delivery.term("never")

    async def script(job):
        job.line.deliver(1)
        assert (await job.read("term"))["reason"] == "never"
        job.line.deliver(2)
        assert (await job.read("term"))["id"] == "m2"

    worked(handler, script)


@pytest.mark.promise(
    "SDK and command line",
    "`LeaseLost` is raised inside the handler, at its `await`, once; the awaited call is cleaned up",
)
def test_a_lost_lease_is_raised_inside_the_handler_at_its_await():
    seen = []

    async def handler(delivery):
        if delivery.seq == 1:
            try:
                await asyncio.get_running_loop().create_future()
            except LeaseLost as error:
                seen.append(error.code)
                assert delivery.is_lost
                raise

    async def script(job):
        job.line.deliver(1)
        await job.expire(1)
        job.line.deliver(2)
        assert (await job.read("ack"))["id"] == "m2", "the worker is free again, and nothing is settled"

    worked(handler, script)
    assert seen == ["LeaseExpired"]


def test_a_handler_may_go_on_after_a_lost_lease_but_settles_nothing():
    went_on = []

    async def handler(delivery):
        if delivery.seq == 1:
            with pytest.raises(LeaseLost):
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(0)
            went_on.append(delivery.seq)

    async def script(job):
        job.line.deliver(1)
        await job.expire(1)
        job.line.deliver(2)
        assert (await job.read("ack"))["id"] == "m2"

    worked(handler, script)
    assert went_on == [1]


@pytest.mark.promise(
    "SDK and command line",
    "`LeaseLost` is raised inside the handler, at its `await`, once; the awaited call is cleaned up",
)
def test_a_task_group_inside_a_handler_is_ended_whole():
    ended = []

    async def child():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("child")

    async def handler(delivery):
        if delivery.seq == 1:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(child())
            except LeaseLost:
                ended.append("group")
                raise

    async def script(job):
        job.line.deliver(1)
        await job.expire(1)
        job.line.deliver(2)
        await job.read("ack")

    worked(handler, script)
    assert ended == ["child", "group"]


@pytest.mark.promise(
    "SDK and command line",
    "`LeaseLost` is raised inside the handler, at its `await`, once; the awaited call is cleaned up",
)
def test_a_loss_that_the_handler_caused_itself_is_raised_once():
    heard = []

    async def handler(delivery):
        if delivery.seq == 1:
            with pytest.raises(LeaseLost):
                await delivery.extend()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            heard.append("not interrupted")

    async def script(job):
        job.line.deliver(1)
        job.line.refuse(await job.line.read("extend"), "LeaseExpired")
        job.line.deliver(2)
        assert (await job.read("ack"))["id"] == "m2"

    worked(handler, script)
    assert heard == ["not interrupted"]


def test_a_handler_that_hears_nothing_of_the_loss_leaves_no_cancellation_behind():
    """One that waits for something that refuses to be cancelled: the worker takes the next delivery all the same."""

    async def stubborn():
        for _ in range(2):
            try:
                await asyncio.sleep(0)
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                return

    async def handler(delivery):
        if delivery.seq == 1:
            await asyncio.create_task(stubborn())
            assert asyncio.current_task().cancelling() == 1
        else:
            assert asyncio.current_task().cancelling() == 0

    async def script(job):
        job.line.deliver(1)
        await job.expire(1)
        job.line.deliver(2)
        assert (await job.read("ack"))["id"] == "m2"

    worked(handler, script)


@pytest.mark.promise(
    "SDK and command line",
    "`work` acks when the handler returns, nacks when it raises, bounds concurrency, and releases on cancellation",
)
def test_handlers_work_side_by_side_and_no_more_of_them_than_were_asked_for():
    at_once, most, gates = set(), [], {}

    async def handler(delivery):
        at_once.add(delivery.seq)
        most.append(len(at_once))
        gates[delivery.seq] = asyncio.Event()
        await gates[delivery.seq].wait()
        at_once.discard(delivery.seq)

    async def script(job):
        for seq in range(1, 6):
            job.line.deliver(seq)
        await until(lambda: len(gates) == 3)
        for seq in range(1, 6):
            await until(lambda seq=seq: seq in gates)
            gates[seq].set()
            await job.read("ack")

    worked(handler, script, concurrency=3)
    assert max(most) == 3


@pytest.mark.promise(
    "SDK and command line",
    "`work` acks when the handler returns, nacks when it raises, bounds concurrency, and releases on cancellation",
)
def test_cancelling_the_work_stops_its_handlers_and_unsubscribes():
    ended = []

    async def handler(delivery):
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as error:
            ended.append(isinstance(error, LeaseLost))
            raise

    async def script(job):
        job.line.deliver(1)
        job.line.deliver(2)
        await until(lambda: len(job.begun) == 2)
        job.work.cancel()
        await job.read("unsubscribe")
        with pytest.raises(asyncio.CancelledError):
            await job.work

    worked(handler, script, concurrency=2)
    assert ended == [False, False]


def test_a_subscription_that_the_server_ends_for_good_ends_the_work_with_its_reason():
    async def go():
        async with peer() as server:
            job = await at_work(server, None, concurrency=2)
            job.line.say({"type": "error", "reqId": "req", "code": "Forbidden", "detail": "no", "ref": "s1"})
            with pytest.raises(PenstockError) as caught:
                await job.work
            assert caught.value.code == "Forbidden"
            await job.client.close()

    run(go())


@pytest.mark.parametrize("concurrency", [0, -1, 1_000_000])
def test_a_silly_number_of_handlers_is_refused(concurrency):
    async def go():
        async with peer() as server:
            client, _, subscription, _ = await subscribed(server)
            with pytest.raises(PenstockError) as caught:
                await subscription.work(None, concurrency=concurrency)
            assert caught.value.refusal.ref == "concurrency"
            await client.close()

    run(go())


@pytest.mark.promise("SDK and command line", "`work` nacks with a back-off from the first failure on")
def test_an_envelope_whose_handler_fails_comes_back_after_a_back_off(server, stream):
    async def fail(delivery):
        raise ValueError("boom")

    async def go():
        async with penstock.connect(server.control) as client:
            await client.enqueue(stream, {"type": "t", "payload": 1})
            work = asyncio.create_task(client.subscribe(stream).work(fail))
            while not (rows := await client.peek(stream, state="delayed")):
                pass  # each round asks the server
            assert (rows[0].attempt, rows[0].last_error) == (1, "ValueError: boom")
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    run(go())


def test_a_server_that_knows_no_back_off_gets_a_plain_nack():
    async def handler(delivery):
        raise ValueError("boom")

    async def script(job):
        job.line.deliver(1)
        assert "backoff" not in await job.read("nack")

    worked(handler, script)


@pytest.mark.promise("SDK and command line", "a handler of `work` that does not wait needs no task and no future")
def test_handlers_that_do_not_wait_run_in_one_turn_of_one_worker():
    tasks = []

    async def handler(delivery):
        tasks.append(asyncio.current_task())

    async def script(job):
        job.line.say(
            {
                "type": "deliver",
                "env": [{"id": f"m{n}", "type": "t", "payload": n} for n in range(50)],
                "stream": "jobs",
                "subId": "s1",
                "seq": list(range(50)),
                "attempt": [1] * 50,
                "leaseId": [f"l{n}" for n in range(50)],
                "leaseExpiresAt": 0,
            }
        )
        ack = await job.read("ack")
        assert len(ack["id"]) == 50, "one frame for all"

    worked(handler, script, concurrency=8)
    assert len(set(tasks)) == 1 and len(tasks) == 50


def test_a_handler_that_raises_before_it_waits_is_nacked_and_a_plain_function_too(caplog):
    def handler(delivery):
        if delivery.seq == 1:
            raise ValueError("at once")
        return 7  # no awaitable

    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server)
            working = asyncio.create_task(subscription.work(handler))
            job = Job(client, line, working, [])
            line.deliver(1)
            assert (await job.read("nack"))["reason"] == "ValueError: at once"
            line.deliver(2)
            assert (await job.read("nack"))["reason"].startswith("TypeError")
            await client._connection.close()
            with pytest.raises(PenstockError):
                await working

    run(go())


def test_what_a_handler_waits_for_sees_its_task_from_the_first_step_on():
    seen = []

    async def handler(delivery):
        async with asyncio.timeout(5):  # keeps the task in which it began
            await asyncio.sleep(0)
        seen.append(delivery.seq)

    async def script(job):
        for seq in (1, 2):
            job.line.deliver(seq)
        await until(lambda: len(seen) == 2)

    worked(handler, script, concurrency=2)


@pytest.mark.promise(
    "SDK and command line", "`work_batch` acks a list when its handler returns and nacks it when it raises"
)
def test_a_batch_handler_gets_what_has_arrived_and_settles_it_as_one():
    sizes = []

    async def handler(batch):
        sizes.append(len(batch))
        if batch[0].seq == 4:
            raise ValueError("no room")
        if batch[0].seq == 1:
            await batch[1].term("never")

    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server)
            for seq in (1, 2, 3):
                line.deliver(seq)
            await until(lambda: len(subscription._buffer) == 3)
            job = Job(client, line, asyncio.create_task(subscription.work_batch(handler, max=2)), [])
            assert (await job.read("term"))["id"] == "m2"
            assert (await job.read("ack"))["id"] == ["m1", "m3"]
            line.deliver(4)
            line.deliver(5)
            await until(lambda: len(sizes) >= 3)
            nacked = [(await job.read("nack"))["id"]]
            if sizes[2] == 2:
                nacked.append((await job.read("nack"))["id"])
            assert nacked == ["m4", "m5"][: sizes[2]]
            await client._connection.close()
            with pytest.raises(PenstockError):
                await job.work

    run(go())
    assert sizes[:2] == [2, 1]
    with pytest.raises(PenstockError, match="max is at least 1"):
        run(_no_room())


async def _no_room():
    async with peer() as server:
        client, _, subscription, _ = await subscribed(server)
        try:
            await subscription.work_batch(None, max=0)
        finally:
            await client._connection.close()
