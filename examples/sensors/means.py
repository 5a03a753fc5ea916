"""The collector without Spark: an ordinary participant that computes the same means.

`penstock up --demo` runs it if no pipeline runs. The collector in `space.yaml` then has a token, and no `type: pipeline`.
"""

# size: an example on one page, which the demo also runs

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import penstock

WINDOW_S = 2


class Windows:
    """Readings of the open windows, by sensor."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, list[float]]] = {}

    def add(self, now_s: float, sensor: str, celsius: float) -> Iterator[dict[str, Any]]:
        """Add a reading. A window ends with the first reading after it."""
        start_s = int(now_s) // WINDOW_S * WINDOW_S
        began_s, readings = self._open.get(sensor, (start_s, []))
        if start_s > began_s:
            yield {
                "sensor": sensor,
                "from": datetime.fromtimestamp(began_s, UTC).isoformat(),
                "celsius": fmean(readings),
                "readings": len(readings),
            }
            began_s, readings = start_s, []
        readings.append(celsius)
        self._open[sensor] = began_s, readings


async def collect(url: str, token: str) -> None:
    """Join, and send the means of the readings to the whole space."""
    windows = Windows()
    async with penstock.Space(url, space="demo", participant="collector", token=token) as space:
        frames = space.frames()
        averages = await space.open_stream(
            content_type="application/json", description="mean of each sensor, every two seconds"
        )
        async for frame in frames:
            if frame.stream_id == averages.id:
                continue  # a broadcast returns to its sender
            sensor = space.stream(frame.stream_id).owner
            for found in windows.add(time.time(), sensor, json.loads(frame.data)["celsius"]):
                await averages.write(json.dumps(found))
