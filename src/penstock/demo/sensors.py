"""Three sensors, each with a stream to the collector alone: the others in the space are not bothered with it.

Run it with `python examples/sensors/sensors.py http://localhost:8787`; `penstock up --demo` runs it too.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Iterable, Iterator
from itertools import count

import penstock

SENSORS = ("sensor-1", "sensor-2", "sensor-3")
PAUSE_S = 0.2


async def measure(
    url: str, sensor: str, readings: Iterable[float], pause_s: float = PAUSE_S, *, token: str | None = None
) -> None:
    """Join, and tell the collector one reading after the other."""
    token = token or f"token-of-{sensor}"
    async with penstock.Space(url, space="demo", participant=sensor, token=token) as space:
        left = [name for name, about in space.active_streams.items() if about["owner"] == sensor]
        if left:  # a stream outlives the server, and its owner for a while
            stream = space.stream(left[0])
        else:
            stream = await space.open_stream(
                target="collector", content_type="application/json", description="degrees Celsius"
            )
        for celsius in readings:
            await stream.write(json.dumps({"celsius": round(celsius, 3)}))
            await asyncio.sleep(pause_s)
        await stream.close()


def weather(sensor: str) -> Iterator[float]:
    """What a sensor reads: it is warmer where the number is higher, and the day is short."""
    warmth = 20 + SENSORS.index(sensor)
    return (warmth + 5 * math.sin(step / 10) for step in count())


async def main(url: str) -> None:
    await asyncio.gather(*(measure(url, sensor, weather(sensor)) for sensor in SENSORS))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
