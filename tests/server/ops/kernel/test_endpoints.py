"""The server's entry in a kernel's endpoint file: merged, renewed, removed, without damage to other entries."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from penstock.server.ops.kernel.endpoints import SLICE, Advertisement, totals
from tests.dialects.courier.talking import Broker, filled

OTHER = {
    "id": "localhost:timer1:0x0001:system:no:none:u",
    "type": "inproc",
    "coordinates": "node:timer1",
    "extra": 1.50,
}


class Clock:
    ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


def advertising(file: Path, broker: Broker, clock: Clock | None = None) -> Advertisement:
    return Advertisement(
        file,
        broker.runtime,
        "http://127.0.0.1:8787",
        "tcp://127.0.0.1:9787",
        now_ms=clock or Clock(),
    )


@pytest.mark.promise("Stream Kernel", "the advertisement is renewed, merged and removed, and never damages the file")
def test_an_entry_has_every_field_the_kernels_tools_read(tmp_path: Path) -> None:
    broker = Broker()
    worker = broker.control()
    worker.say(type_="subscribe", stream="jobs", credit=1)
    filled(broker, "jobs", "a", "b", "c")
    file = tmp_path / "reports" / "router-endpoints.json"
    clock = Clock()
    ours = advertising(file, broker, clock)
    asyncio.run(ours.beat())
    assert json.loads(file.read_text()) == [
        {
            "id": "courier@tcp://127.0.0.1:9787",
            "type": "process",
            "coordinates": "tcp://127.0.0.1:9787",
            "metadata": {
                "service": "courier",
                "version": "0",
                "http": "http://127.0.0.1:8787",
                "ws": "ws://127.0.0.1:8787/v1/control",
                "stats": {"streams": 1, "depth": 2, "inflight": 1, "rateIn": 0.0, "rateOut": 0.0},
            },
            "announcedAt": clock.ms,
            "updatedAt": clock.ms,
            "expiresAt": clock.ms + 30_000,
        }
    ]


@pytest.mark.promise("Stream Kernel", "the advertisement is renewed, merged and removed, and never damages the file")
def test_each_beat_renews_it_and_others_keep_theirs(tmp_path: Path) -> None:
    file = tmp_path / "router-endpoints.json"
    file.write_text(json.dumps([OTHER]))
    file.chmod(0o640)
    clock = Clock()
    ours = advertising(file, Broker(), clock)
    asyncio.run(ours.beat())
    began = clock.ms
    clock.ms += 10_000
    later = {"id": "later", "type": "worker"}
    file.write_text(json.dumps([*json.loads(file.read_text()), later]))
    asyncio.run(ours.beat())
    first, entry, last = json.loads(file.read_text())
    assert (first, last) == (OTHER, later)
    assert (entry["announcedAt"], entry["updatedAt"], entry["expiresAt"]) == (
        began,
        clock.ms,
        clock.ms + 30_000,
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.write_text(json.dumps([OTHER]))  # a host has rewritten the whole file
    asyncio.run(ours.beat())
    assert len(json.loads(file.read_text())) == 2
    asyncio.run(ours.stop())
    assert json.loads(file.read_text()) == [OTHER]
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "no draft is left behind"


@pytest.mark.promise("Stream Kernel", "the advertisement is renewed, merged and removed, and never damages the file")
@pytest.mark.parametrize("content", ["{", '{"nodes": []}', "[1]", "\x00\x01", "[" * 100_000, '[{"id": 1}, "x"]'])
def test_a_foreign_file_is_left_alone_until_it_is_repaired(tmp_path: Path, content: str) -> None:
    file = tmp_path / "router-endpoints.json"
    file.write_text(content)
    ours = advertising(file, Broker())
    asyncio.run(ours.beat())
    asyncio.run(ours.stop())
    assert file.read_text() == content
    file.write_text("\n")
    asyncio.run(ours.beat())
    assert len(json.loads(file.read_text())) == 1


def test_trouble_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "router-endpoints.json"
    file.write_text("{}")
    ours = advertising(file, Broker())
    for _ in range(3):
        asyncio.run(ours.beat())
    assert [record.msg for record in caplog.records] == ["advertise.off"]


def test_a_place_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file where a folder should be")
    ours = advertising(tmp_path / "reports" / "router-endpoints.json", Broker())
    asyncio.run(ours.beat())
    asyncio.run(ours.stop())


def test_very_many_streams_are_added_up_in_turns() -> None:
    """Between two slices the loop serves other clients: none waits for the sum over all streams."""
    broker = Broker()
    filled(broker, "s0", "a")
    channel = broker.machine.channels["s0"]
    broker.machine.channels.update({f"s{n}": channel for n in range(1, 5 * SLICE)})

    async def go() -> int:
        others = 0
        adding = asyncio.ensure_future(totals(broker.machine, lambda: broker.us))
        while not adding.done():
            others += 1
            await asyncio.sleep(0)
        assert adding.result()["depth"] == 5 * SLICE
        return others

    assert asyncio.run(go()) >= 5
