"""Shows what the collector found. Frames of the sensors do not come here: their streams are for the collector.

Run it with `python examples/sensors/dashboard.py http://localhost:8787`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import penstock

TOKEN = "token-of-the-dashboard"


async def averages(space: penstock.Space) -> AsyncIterator[dict[str, Any]]:
    """What the collector says, as it says it."""
    async for frame in space.frames():
        yield json.loads(frame.data)


async def main(url: str) -> None:
    async with penstock.Space(url, space="demo", participant="dashboard", token=TOKEN) as space:
        async for found in averages(space):
            mean = f"{found['celsius']:.2f} °C of {found['readings']}"
            print(f"{found['from']}  {found['sensor']}  {mean}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
