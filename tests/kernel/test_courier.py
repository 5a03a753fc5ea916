"""Penstock behind a kernel pipe: in this process, and through a connected client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

import penstock
from penstock.core.clock import Now
from penstock.core.errors import PenstockError
from penstock.core.limits import Limits
from penstock.core.scopes import Principal, require
from penstock.kernel import Kernel, Pipe, courier_pipe
from tests.kernel.test_kernel import everything, turns
from tests.paths import ROOT
from tests.server_process import ServerProcess, environment

PATIENCE_S = 20.0


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(bounded())


def envelope(id_: str, payload: Any = None) -> dict[str, Any]:
    return {"id": id_, "ts": "2026-01-01T00:00:00Z", "type": "note", "payload": payload}


async def heard(pipe: Pipe, kind: str) -> dict[str, Any]:
    """The next frame of one type."""
    while True:
        frame: dict[str, Any] = await pipe.read()
        assert frame is not None, f"the pipe ended before a frame of type {kind}"
        if frame["type"] == kind:
            return frame


async def conversation(pipe: Pipe, stream: str) -> None:
    """What every target does alike."""
    await pipe.write({"type": "hello", "version": "v1"})
    assert (await heard(pipe, "ok"))["reqId"] == "hello"
    await pipe.write({"type": "subscribe", "stream": stream})
    for name in ("a", "b"):
        await pipe.write({"type": "enqueue", "to": stream, "env": envelope(name), "reqId": name})
        assert (await heard(pipe, "ok"))["reqId"] == name, "nothing is delivered without credit"
    await pipe.write({"type": "grant", "n": 1})
    first = await heard(pipe, "deliver")
    assert (first["env"]["id"], first["attempt"]) == ("a", 1)
    await pipe.write({"type": "nack", "id": "a", "reqId": "n"})
    assert (await heard(pipe, "ok"))["reqId"] == "n"
    await pipe.write({"type": "grant", "n": 2})
    got = [(await heard(pipe, "deliver"))["env"]["id"] for _ in range(2)]
    assert got == ["b", "a"]
    await pipe.write({"type": "ack", "id": got})
    await pipe.write({"type": "fly", "reqId": "x"})
    assert (await heard(pipe, "error"))["code"] == "UnknownOp"
    await pipe.write({"type": "stats", "stream": stream, "reqId": "last"})
    pipe.end()
    (last,) = await everything(pipe)
    assert (last["reqId"], last["result"]["inflight"], last["result"]["depth"]) == ("last", 0, 0)


@pytest.mark.promise(
    "Stream Kernel",
    "the design document's snippet runs: in by one pipe, out by another, in process and through a client",
)
def test_a_queue_of_this_process() -> None:
    async def go() -> None:
        await conversation(courier_pipe(penstock.QueueCore(), object_mode=True), "jobs")

    run(go())


@pytest.mark.promise(
    "Stream Kernel",
    "the design document's snippet runs: in by one pipe, out by another, in process and through a client",
)
@pytest.mark.parametrize("door", ["control", "http"])
def test_a_connected_client(server: ServerProcess, stream: str, door: str) -> None:
    async def go() -> None:
        async with penstock.connect(getattr(server, door)) as client:
            await conversation(courier_pipe(client, object_mode=True), stream)

    run(go())


@pytest.mark.promise(
    "Stream Kernel",
    "the design document's snippet runs: in by one pipe, out by another, in process and through a client",
)
def test_an_envelope_goes_in_by_one_pipe_and_comes_out_by_another() -> None:
    """The seed's snippet, found by what it does, between a pipe of requests and a pipe of results."""

    async def go() -> None:
        async with Kernel() as kernel:
            core = penstock.QueueCore()
            kernel.register(
                "courier",
                {"type": "transform", "accepts": ["envelope"], "produces": ["envelope", "view"]},
                courier_pipe(core, object_mode=True),
            )
            (courier,) = kernel.lookup(accepts="envelope")
            requests, results, log = (kernel.create_pipe(object_mode=True) for _ in range(3))
            kernel.connect(requests, courier)
            kernel.split(courier, [results, log])
            await requests.write({"type": "subscribe", "stream": "jobs", "credit": 5})
            await requests.write({"type": "enqueue", "to": "jobs", "env": envelope("a", {"n": 1})})
            assert (await heard(results, "deliver"))["env"]["payload"] == {"n": 1}
            core.enqueue("jobs", envelope("b"))  # other users of the queue are served too
            assert (await heard(log, "deliver"))["env"]["id"] == "a"
            assert (await heard(log, "deliver"))["env"]["id"] == "b"

    run(go())


def test_a_byte_pipe_carries_lines_cut_anywhere() -> None:
    async def go() -> None:
        pipe = courier_pipe(penstock.QueueCore())
        lines = b"".join(
            msgspec.json.encode({"type": "enqueue", "to": "jobs", "env": envelope(name), "reqId": name}) + b"\n"
            for name in ("a", "ü", "c")
        )

        async def write() -> None:
            for start in range(0, len(lines), 3):
                await pipe.write(lines[start : start + 3])
            pipe.end()

        writing = asyncio.ensure_future(write())
        answers = b"".join(await everything(pipe)).splitlines()
        assert [msgspec.json.decode(line)["reqId"] for line in answers] == ["a", "ü", "c"]
        await writing

    run(go())


def test_a_lease_that_ends_by_itself_is_noticed() -> None:
    class Clock:
        us = 0

        def __call__(self) -> Now:
            return Now(self.us, self.us)

    async def go() -> None:
        clock = Clock()
        core = penstock.QueueCore(clock=clock)
        pipe = courier_pipe(core, object_mode=True)
        await pipe.write({"type": "subscribe", "stream": "jobs", "credit": 5, "leaseMs": 1_000})
        await pipe.write({"type": "enqueue", "to": "jobs", "env": envelope("a")})
        assert (await heard(pipe, "deliver"))["attempt"] == 1
        clock.us += 1_000_001
        assert (await heard(pipe, "deliver"))["attempt"] == 2
        pipe.end()

    run(go())


def test_the_end_gives_back_what_was_held() -> None:
    async def go() -> None:
        core = penstock.QueueCore()
        core.enqueue("jobs", envelope("a"))
        pipe = courier_pipe(core, object_mode=True)
        await pipe.write({"type": "subscribe", "stream": "jobs", "credit": 5})
        await heard(pipe, "deliver")
        assert core.stats("jobs")["inflight"] == 1
        pipe.end()
        assert await everything(pipe) == []
        assert (core.stats("jobs")["inflight"], core.stats("jobs")["consumers"]) == (0, 0)

    run(go())


@pytest.mark.promise("Stream Kernel", "the adapter buffers little for a consumer that does not read")
def test_one_that_does_not_read_holds_little_and_is_not_lost() -> None:
    """Counted, not timed: deliveries stop at the bound of the link and continue when the consumer reads."""

    async def go() -> None:
        core = penstock.QueueCore(limits=Limits(outbox_max=20_000))
        for number in range(500):
            core.enqueue("jobs", envelope(str(number), "x" * 900))
        pipe = courier_pipe(core, high_water_mark=5_000)
        await pipe.write(b'{"type":"subscribe","stream":"jobs","credit":1000}\n')
        await turns(50)
        core.tick()
        held = pipe.readable.size
        assert 5_000 <= held < 60_000
        assert core.stats("jobs")["inflight"] < 60
        # Requests wait too: their answers would have to wait here.
        asked = 0
        while asked < 100:
            asking = asyncio.ensure_future(pipe.write(b'{"type":"peek","stream":"jobs"}\n' * 100))
            await turns(10)
            if not asking.done():
                asking.cancel()
                break
            asked += 1
        assert asked < 10 and pipe.readable.size < 60_000
        seen = 0
        while seen < 500:
            seen += (await pipe.read()).count(b'"type":"deliver"')
        pipe.end()

    run(go())


def test_who_speaks_may_be_restricted() -> None:
    async def go() -> None:
        reader = Principal("reader", scopes=require(["streams:*:read"]))
        pipe = courier_pipe(penstock.QueueCore(), object_mode=True, principal=reader)
        await pipe.write({"type": "enqueue", "to": "jobs", "env": envelope("a")})
        assert (await heard(pipe, "error"))["code"] == "Forbidden"
        pipe.end()

    run(go())


def test_what_cannot_work_is_raised_where_it_is_read(start_server: Any) -> None:
    async def go() -> None:
        with pytest.raises(PenstockError):
            courier_pipe(object())
        pipe = courier_pipe(penstock.QueueCore(), object_mode=True)
        await pipe.write(7)
        with pytest.raises(PenstockError, match="Control v1"):
            await pipe.read()
        server = start_server()
        async with penstock.connect(server.control, reconnect=False) as client:
            open_one = courier_pipe(client, object_mode=True)
            await open_one.write({"type": "ping", "reqId": 1})
            assert (await open_one.read())["reqId"] == 1
            server.kill()
            assert await open_one.read() is None, "a server that is gone ends the pipe"
            with pytest.raises(PenstockError, match="Unreachable"):
                await courier_pipe(client).read()

    run(go())


@pytest.mark.promise(
    "Stream Kernel",
    "the design document's snippet runs: in by one pipe, out by another, in process and through a client",
)
def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/kernel.py")],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "enqueued: {'id': 'e-1', 'seq': 1}",
        "delivered: hello",
        "acked: {'id': 'e-1'}",
    ]
