"""Spaces of a real server over WebSockets: fifty participants, readers that stop reading, and a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.integration.serving import PATIENCE_S, Bytes, Http, client_frame, handshake, run, server_frame
from tests.server_process import ServerProcess

CROWD = [f"p{n}" for n in range(49)]
CONFIG = msgspec.json.encode(
    {
        "limits": {"space_outbox_max": 200_000},
        "spaces": [
            {
                "space": {"id": "demo"},
                "participants": {
                    name: {"tokens": [f"{name}-token"], "capabilities": [{"kind": "*"}]}
                    for name in (*CROWD, "collector")
                }
                | {"guest": {"tokens": ["guest-token"], "capabilities": [{"kind": "chat"}]}},
            }
        ],
    }
).decode()
MIB = 1024 * 1024


class Participant:
    """A client on a WebSocket that keeps what it reads until a test takes it."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.frames: list[bytes] = []
        """Frames that came while something else was waited for."""

    async def say(self, kind: str, payload: Any = None, **more: Any) -> None:
        await self.ws.send_str(msgspec.json.encode({"kind": kind, "payload": payload, **more}).decode())

    async def read(self) -> dict[str, Any] | bytes:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.ws.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            return bytes(message.data)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return dict(msgspec.json.decode(message.data))

    async def until(self, kind: str, **wanted: Any) -> dict[str, Any]:
        """The next envelope of a kind whose payload says this; frames on the way are kept."""
        while True:
            message = await self.read()
            if isinstance(message, bytes):
                self.frames.append(message)
            elif message["kind"] == kind and wanted.items() <= (message.get("payload") or {}).items():
                return message

    async def frame(self) -> bytes:
        """The next frame; envelopes before it are skipped."""
        while not self.frames:
            message = await self.read()
            if isinstance(message, bytes):
                self.frames.append(message)
        return self.frames.pop(0)

    async def open_stream(self, *target: str) -> str:
        await self.say("stream/request", {"direction": "upload", "target": list(target)}, id=f"request-{id(self)}")
        while True:
            opened = await self.until("stream/open")
            if opened["correlation_id"] == [f"request-{id(self)}"]:
                return str(opened["payload"]["stream_id"])


def is_presence(message: dict[str, Any] | bytes, event: str, name: str) -> bool:
    """Whether this is a join or a leave."""
    if isinstance(message, bytes) or message["kind"] != "system/presence":
        return False
    said = message["payload"]
    return (said["event"], said["participant"]["id"]) == (event, name)


@asynccontextmanager
async def space(server: ServerProcess):
    """Joins people, who all leave with the block."""
    async with aiohttp.ClientSession() as session:

        async def join(name: str, token: str | None = None) -> Participant:
            ws = await session.ws_connect(f"{server.http}/ws?space=demo", max_msg_size=0)
            participant = Participant(ws)
            text = {"type": "join", "participantId": name, "token": token or f"{name}-token"}
            await ws.send_str(msgspec.json.encode(text).decode())
            welcome = await participant.until("system/welcome")
            assert welcome["payload"]["you"]["id"] == name
            return participant

        yield join


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    process = ServerProcess(tmp_path_factory.mktemp("spaces"), config=CONFIG)
    yield process
    process.kill()


@pytest.mark.promise(
    "Targeted delivery: the proposal, line by line", "integration: aggregation, mixed streams, late joiners"
)
def test_fifty_participants_aggregate_and_broadcast(server: ServerProcess) -> None:
    async def work() -> None:
        async with space(server) as join:
            collector = await join("collector")
            crowd = await asyncio.gather(*(join(name) for name in CROWD))
            streams = await asyncio.gather(*(each.open_stream("collector") for each in crowd))
            assert len(set(streams)) == 49
            for n in range(5):
                for each, id_ in zip(crowd, streams, strict=True):
                    await each.ws.send_bytes(f"#{id_}#{n}".encode() + b"\x00\xff")
            got = [await collector.frame() for _ in range(5 * 49)]
            for id_ in streams:
                assert [frame for frame in got if frame.startswith(f"#{id_}#".encode())] == [
                    f"#{id_}#{n}".encode() + b"\x00\xff" for n in range(5)
                ]
            # The collector's answer goes to all, itself included, in order among what it says.
            world = await collector.open_stream()
            for n in range(10):
                await collector.ws.send_str(f"#{world}#{n}")
            await collector.say("chat", {"text": "done"})
            for each in (*crowd, collector):
                await each.until("chat", text="done")
                assert each.frames == [f"#{world}#{n}".encode() for n in range(10)]

    run(work())


def test_what_is_sent_right_before_a_close_is_handled(server: ServerProcess) -> None:
    """More messages than one turn handles, and the goodbye, in one write."""

    async def work() -> None:
        async with space(server) as join:
            reader = await join("p1")
            with silent(server, "p2") as writer:
                while not is_presence(await reader.read(), "join", "p2"):
                    pass
                texts = [f"{n}" for n in range(1_200)]
                sent = [msgspec.json.encode({"kind": "chat", "payload": {"text": text}}) for text in texts]
                writer.write(
                    b"".join(client_frame(0x81, data) for data in sent) + client_frame(0x88, (1000).to_bytes(2, "big"))
                )
                for text in texts:
                    assert (await reader.until("chat"))["payload"]["text"] == text
                while not is_presence(await reader.read(), "leave", "p2"):
                    pass

    run(work())


def memory(server: ServerProcess, what: str) -> int:
    """Bytes of the server's memory: `VmRSS` now, `VmHWM` at most so far."""
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"there is no {what}")


@contextmanager
def silent(server: ServerProcess, name: str) -> Iterator[Bytes]:
    """A client that joins and reads only on request."""
    connection = handshake(server.http, "/ws?space=demo")
    text = {"type": "join", "participantId": name, "token": f"{name}-token"}
    connection.write(client_frame(0x81, msgspec.json.encode(text)))
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.promise("MEW gateway", "for slow readers frames are dropped and counted, envelopes never")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no such way to ask for a process's memory")
def test_a_target_that_stops_reading_costs_little_memory_and_delays_no_other(server: ServerProcess) -> None:
    async def work() -> None:
        async with space(server) as join:
            writer, other = await join("p0"), await join("p1")
            paused = stack.enter_context(silent(server, "p2"))
            while not is_presence(await other.read(), "join", "p2"):
                pass
            to_paused, to_other = await writer.open_stream("p2"), await writer.open_stream("p1")
            before = memory(server, "VmRSS")
            frame = f"#{to_paused}#".encode() + bytes(MIB // 2)
            for n in range(20):  # ten megabytes each
                for _ in range(20):
                    await writer.ws.send_bytes(frame)
                await writer.ws.send_str(f"#{to_other}#{n}")
                assert await other.frame() == f"#{to_other}#{n}".encode()
            grown = memory(server, "VmHWM") - before
            assert grown < 64 * MIB, f"it grew by {grown / MIB:.1f} MiB"
            # No client was disconnected, and the reader finds whole frames and the number it missed.
            seen = 0
            while True:
                opcode, data = await asyncio.to_thread(server_frame, paused)
                if opcode == 2:
                    assert data == frame
                    seen += 1
                elif b'"frames_dropped"' in data:
                    break
            lost = msgspec.json.decode(data)["payload"]
            assert lost["stream_id"] == to_paused and 0 < seen < 400

    with ExitStack() as stack:
        run(work())


@pytest.mark.promise("MEW gateway", "a file over a targeted stream arrives whole however slow its reader is")
def test_a_file_arrives_whole_at_a_reader_that_is_slower_than_its_sender(server: ServerProcess) -> None:
    frames, size = 1_024, 64 * 1024

    async def work() -> None:
        async with space(server) as join:
            writer, other = await join("p0"), await join("p1")
            slow = stack.enter_context(silent(server, "p5"))
            while not is_presence(await other.read(), "join", "p5"):
                pass
            about = {"target": ["p5"], "expected_size_bytes": frames * size}
            await writer.say("stream/request", about)
            id_ = (await writer.until("stream/open"))["payload"]["stream_id"]
            head = f"#{id_}#".encode()

            async def send() -> None:
                for n in range(frames):
                    await writer.ws.send_bytes(head + n.to_bytes(4, "big") + bytes(size - 4))

            sending = asyncio.create_task(send())
            # The reader takes nothing until the sender can go no further, which is well before the end.
            while await held(other, id_) == 0:
                pass
            assert not sending.done()
            for n in range(frames):
                data = await asyncio.to_thread(next_frame, slow)
                assert data[len(head) : len(head) + 4] == n.to_bytes(4, "big"), n
            await sending

    async def held(other: Participant, id_: str) -> int:
        """How many frames wait, after a round trip of another participant: a slow reader delays no other."""
        await other.say("chat", {"text": "still here"})
        await other.until("chat", text="still here")
        (found,) = [
            each
            for each in operator.get("/v1/spaces?space=demo").json["spaces"][0]["streams"]
            if each["stream_id"] == id_
        ]
        return len(found["behind"])

    def next_frame(slow: Bytes) -> bytes:
        while True:
            opcode, data = server_frame(slow)
            if opcode == 2:
                return data

    operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    with ExitStack() as stack:
        run(work())


@pytest.mark.promise("MEW gateway", "for slow readers frames are dropped and counted, envelopes never")
def test_a_participant_that_does_not_read_envelopes_is_disconnected_with_a_reason(server: ServerProcess) -> None:
    async def work() -> None:
        async with space(server) as join:
            talker = await join("p0")
            slow = stack.enter_context(silent(server, "p3"))
            while not is_presence(await talker.read(), "join", "p3"):
                pass
            text = "x" * 900_000
            n = 0
            while True:
                await talker.say("chat", {"text": text, "n": n})
                message = await talker.read()
                if is_presence(message, "leave", "p3"):
                    break
                n += 1
                assert n < 100, "nobody was let go"
            messages = []
            while not messages or messages[-1][0] != 8:
                messages.append(await asyncio.to_thread(server_frame, slow))
            assert int.from_bytes(messages[-1][1][:2], "big") == 4008
            assert msgspec.json.decode(messages[-2][1])["payload"]["error"] == "slow_consumer"
            chats = [msgspec.json.decode(data) for opcode, data in messages[:-2] if opcode == 1]
            numbers = [each["payload"]["n"] for each in chats if each["kind"] == "chat"]
            assert numbers == list(range(len(numbers)))  # what it got is complete up to the end

    with ExitStack() as stack:
        run(work())


@pytest.mark.promise("MEW gateway", "who waits for an answer that is too large is notified by its correlation")
def test_large_answers_arrive_or_who_waits_is_notified(server: ServerProcess) -> None:
    async def work() -> None:
        async with space(server) as join:
            asking, tool = await join("p6"), await join("p7")
            for size, kind in ((3 * MIB, "mcp/response"), (6 * MIB, "system/error")):
                await asking.say("mcp/request", {"method": "tools/call"}, id=f"q{size}", to=["p7"])
                await tool.until("mcp/request")
                await tool.say("mcp/response", {"result": "x" * size}, to=["p6"], correlation_id=[f"q{size}"])
                answer = await asking.until(kind)
                assert answer["correlation_id"] == [f"q{size}"]

    run(work())


@pytest.mark.promise("MEW gateway", "confirmed changes survive a restart and a crash")
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_crash_and_a_planned_restart_keep_what_was_confirmed(
    start_server: Callable[..., ServerProcess], end: str
) -> None:
    told: dict[str, str] = {}
    server = start_server(config=CONFIG)

    async def before() -> None:
        async with space(server) as join:
            owner, target, writer = await join("p0"), await join("p1"), await join("p2")
            await owner.say("space/invite", {"participant_id": "x", "initial_capabilities": [{"kind": "mcp/request"}]})
            told["token"] = (await owner.until("space/invite-ack"))["payload"]["token"]
            grant = {"recipient": "guest", "capabilities": [{"kind": "mcp/request"}]}
            await owner.say("capability/grant", grant)
            await owner.until("capability/grant")
            await owner.say("space/kick", {"participant_id": "p4", "reason": "noise"})
            await owner.until("space/kick")
            told["stream"] = await owner.open_stream("p1")
            await owner.say("stream/transfer-ownership", {"stream_id": told["stream"], "new_owner": "p2"})
            await writer.until("stream/ownership-transferred")
            await target.until("stream/ownership-transferred")
            await writer.say("stream/grant-write", {"stream_id": told["stream"], "participant_id": "p0"})
            await owner.until("stream/write-granted")
            await asyncio.to_thread(getattr(server, end))  # all three are connected

    async def after() -> None:
        async with space(again) as join:
            for name, token in (("x", told["token"]), ("guest", "guest-token")):
                allowed = await join(name, token)
                await allowed.say("mcp/request", {"method": "m"})
                await allowed.until("mcp/request")
            target, writer, granted = await join("p1"), await join("p2"), await join("p0")
            await granted.ws.send_str(f"#{told['stream']}#granted")
            assert await target.frame() == f"#{told['stream']}#granted".encode()
            await writer.ws.send_str(f"#{told['stream']}#x")
            assert await target.frame() == f"#{told['stream']}#x".encode()
            assert await writer.open_stream() == "stream-2"  # numbers are never used again
            with silent(again, "p4") as kicked:
                opcode, data = await asyncio.to_thread(server_frame, kicked)
                assert opcode == 1 and msgspec.json.decode(data)["payload"]["error"] == "kicked"
                assert (await asyncio.to_thread(server_frame, kicked))[0] == 8

    run(before())
    again = start_server(config=CONFIG)
    run(after())
    log = again.log()
    assert told["token"] not in log and "p0-token" not in log
