"""Three sensors, each with a stream to the collector only: other participants of the space do not receive the readings.

Run it with `python examples/sensors/sensors.py [URL]` until Ctrl-C; `penstock up --demo` runs it too.
"""

# size: an example on one page, which the demo also runs

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
    url: str | None, sensor: str, readings: Iterable[float], pause_s: float = PAUSE_S, *, token: str | None = None
) -> None:
    """Join, and send the readings to the collector."""
    token = token or f"token-of-{sensor}"
    async with penstock.Space(url, space="demo", participant=sensor, token=token) as space:
        left = [name for name, about in space.active_streams.items() if about["owner"] == sensor]
        if left:  # a stream survives a restart of the server, and a short absence of its owner
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
    """Readings of a sensor: a sine around a base that grows with the sensor's number."""
    warmth = 20 + SENSORS.index(sensor)
    return (warmth + 5 * math.sin(step / 10) for step in count())


async def main(url: str | None) -> None:
    await asyncio.gather(*(measure(url, sensor, weather(sensor)) for sensor in SENSORS))


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
    except KeyboardInterrupt:
        pass
    except penstock.PenstockError as error:
        sys.exit(f"error: {error}")
