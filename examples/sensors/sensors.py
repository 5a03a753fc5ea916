"""Three sensors, each with a stream to the collector alone: the others in the space are not bothered with it.

Run it with `python examples/sensors/sensors.py http://localhost:8787`.
"""

import asyncio
import json
import math
import sys
from collections.abc import Iterable

import penstock

SENSORS = ("sensor-1", "sensor-2", "sensor-3")
PAUSE_S = 0.2


async def measure(url: str, sensor: str, readings: Iterable[float], pause_s: float = PAUSE_S) -> None:
    """Join, and tell the collector one reading after the other."""
    async with penstock.Space(url, space="demo", participant=sensor, token=f"token-of-{sensor}") as space:
        stream = await space.open_stream(target="collector", content_type="application/json")
        for celsius in readings:
            await stream.write(json.dumps({"celsius": celsius}))
            await asyncio.sleep(pause_s)
        await stream.close()


async def main(url: str) -> None:
    days = [[20 + n + 5 * math.sin(step / 10) for step in range(1_000)] for n in range(len(SENSORS))]
    await asyncio.gather(*(measure(url, sensor, day) for sensor, day in zip(SENSORS, days, strict=True)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
