"""Sensors report to a collector only, and the collector sends one summary to all participants, including a dashboard.

python examples/mew/sensor_collection.py [URL] [NAME=TOKEN …]
"""

import asyncio
import json

from room import participant, run

SENSORS = ("sensor-1", "sensor-2", "sensor-3")
READINGS = 10


async def collector(is_there: asyncio.Event) -> None:
    async with participant("sensor-collector") as space:
        readings = space.frames()
        is_there.set()
        values: dict[str, list[float]] = {}
        for _ in range(READINGS * len(SENSORS)):
            frame = await readings.next()
            assert frame is not None
            # The stream's metadata says which sensor it is and what it measures, so the frames need not.
            about = space.active_streams[frame.stream_id]["metadata"]
            values.setdefault(about["sensor_id"], []).append(json.loads(frame.data)["value"])
        summary = await space.open_stream(description="means of all sensors", format="jsonl")
        means = {name: sum(seen) / len(seen) for name, seen in sorted(values.items())}
        await summary.write(json.dumps({"unit": "celsius", "means": means}))
        await summary.close()
    print(f"sensor-collector received {sum(map(len, values.values()))} readings")


async def sensor(name: str, base: float) -> None:
    async with participant(name) as space:
        received = space.frames()
        stream = await space.open_stream(
            "sensor-collector",
            content_type="application/x-sensor-reading",
            format="jsonl",
            metadata={"sensor_id": name, "unit": "celsius"},
        )
        for number in range(READINGS):
            await stream.write(json.dumps({"value": base + number % 2}))
        summary = await received.next()
        assert summary is not None
        assert "means" in json.loads(summary.data)
        await stream.close()
    print(f"{name} received the summary, and no reading of another sensor")


async def dashboard(is_there: asyncio.Event) -> None:
    async with participant("dashboard") as space:
        received = space.frames()
        is_there.set()
        frame = await received.next()
        assert frame is not None
        means = json.loads(frame.data)["means"]
    print(f"dashboard received one frame: {means}")
    assert means == {"sensor-1": 20.5, "sensor-2": 21.5, "sensor-3": 22.5}


async def main() -> None:
    async with asyncio.TaskGroup() as network:
        for watcher in (collector, dashboard):
            is_there = asyncio.Event()
            network.create_task(watcher(is_there))
            await is_there.wait()
        for number, name in enumerate(SENSORS):
            network.create_task(sensor(name, 20.0 + number))


if __name__ == "__main__":
    run(main())
