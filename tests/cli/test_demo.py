"""`penstock up --demo` without Spark: every part runs, and all parts stop with the server."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.admin import RemoteSpaces
from penstock.core.errors import PenstockError, Refusal
from penstock.core.relay.bounds import RelayLimits
from penstock.demo import means, process, story
from penstock.demo.sensors import SENSORS
from penstock.demo.task import DemoTask
from penstock.dialects.streamservice.keys import StreamKeys
from tests.server_process import ServerProcess

PATIENCE_S = 20.0
POLL_S = 0.05
STORY = re.compile(r"^  story    (http://\S+)/#/tokens\?topic=([0-9a-f]{64})&key=([0-9a-f]{64})$", re.M)


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(POLL_S)
    return found


def demo_process(server: ServerProcess) -> int:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    [pid] = [pid for pid in children if b"penstock.demo" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(pid)


async def rule_of(server: ServerProcess) -> dict[str, Any]:
    """The one trigger of a server, with its counts."""
    token = (server.data / "run" / "operator.token").read_text().strip()
    async with penstock.connect(server.control, token) as client:
        [rule] = (await client.trigger("ls"))["triggers"]
        return dict(rule)


async def first_words(pub: str, topic: str, key: str) -> str:
    keys = StreamKeys("sha256", topic, bytes.fromhex(key), "0" * 64, bytes(32), bytes(32))
    async with asyncio.timeout(PATIENCE_S), penstock.TokenStream(pub, keys) as stream:
        return "".join(await stream.next_batch())


def streams_of(server: ServerProcess) -> dict[str, dict[str, Any]]:
    token = (server.data / "run" / "operator.token").read_text().strip()
    [space] = RemoteSpaces(server.http, token).survey("demo").spaces
    return {stream["owner"]: stream for stream in space["streams"]}


@pytest.mark.promise(
    "SDK and command line",
    "the demo runs agents with a trigger, sensors and a story; it stops with its server and restarts after any failure",
)
def test_every_part_is_alive_and_goes_with_the_server(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server("--demo", "--relay")
    console, topic, key = wait_for(lambda: STORY.search(server.log())).groups()
    assert console == server.http
    pid = demo_process(server)
    assert asyncio.run(first_words(server.endpoints["pub"], topic, key)).startswith("Chapter 1. ")

    def means_are_told() -> dict[str, dict[str, Any]] | None:
        streams = streams_of(server)
        return streams if streams.get("collector", {}).get("frames") else None

    streams = wait_for(means_are_told)
    for sensor in SENSORS:
        assert streams[sensor]["target"] == ["collector"]
        assert streams[sensor]["frames"] == streams[sensor]["deliveries"] > 0

    rule = wait_for(lambda: (told := asyncio.run(rule_of(server)))["counters"]["emitted"] and told)
    assert rule["id"] == "demo-built"

    assert (server.data / "run" / "demo.log").read_text() == ""
    assert "collector in Python" in server.log()
    opened = {sensor: streams[sensor]["stream_id"] for sensor in SENSORS}
    server.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())

    # Streams outlive a server; the sensors go on with theirs instead of opening more at every start.
    again = start_server("--demo")
    streams = wait_for(lambda: (told := streams_of(again)) and all(told[each]["frames"] for each in SENSORS) and told)
    assert {sensor: streams[sensor]["stream_id"] for sensor in SENSORS} == opened


class Flaky:
    """A part that fails a few times in its own way."""

    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.over = asyncio.Event()

    async def __call__(self) -> None:
        if not self._failures:
            self.over.set()
            await asyncio.Event().wait()
        failure = self._failures.pop(0)
        if failure is not None:
            raise ExceptionGroup("in a group", [failure])


@pytest.mark.promise(
    "SDK and command line",
    "the demo runs agents with a trigger, sensors and a story; it stops with its server and restarts after any failure",
)
def test_a_part_that_fails_begins_again_and_says_why_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PAUSE_FIRST_S", 0.001)
    gone = PenstockError(Refusal("Unreachable", "the server is gone"))

    async def run() -> None:
        part = Flaky(gone, gone, ValueError("not JSON"), None)
        task = asyncio.create_task(process.keep("sam", part))
        async with asyncio.timeout(PATIENCE_S):
            await part.over.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run())
    said = capfd.readouterr().err.splitlines()
    assert said == ["sam: Unreachable: the server is gone", "sam: not JSON", "sam: it ended by itself"]


def test_without_a_space_or_a_relay_only_the_agents_act() -> None:
    assert [name for name, _ in process.parts(DemoTask("tcp://127.0.0.1:1"))] == [
        "architect",
        "jen",
        "ops",
        "sam",
        "kim",
    ]


def test_a_relay_holds_this_chapter_and_nothing_whole_before_it() -> None:
    assert story.CHAPTER_S < story.HELD_S < story.CHAPTER_S + story.REST_S
    assert RelayLimits().max_pending_per_topic > story.CHAPTER > story.CHAPTER_S / story.PACE_S


def test_a_window_is_reported_with_the_first_reading_after_it() -> None:
    windows = means.Windows()
    told = [
        found
        for at_s, celsius in ((10.0, 1.0), (11.9, 3.0), (12.0, 5.0), (13.0, 7.0), (20.0, 9.0))
        for found in windows.add(at_s, "sensor-1", celsius)
    ]
    assert [(one["from"], one["celsius"], one["readings"]) for one in told] == [
        ("1970-01-01T00:00:10+00:00", 2.0, 2),
        ("1970-01-01T00:00:12+00:00", 6.0, 2),
    ]
