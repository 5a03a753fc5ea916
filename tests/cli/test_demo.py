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
from penstock.demo.sensors import SENSORS
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
