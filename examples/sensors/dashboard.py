"""Show the means that the collector sends. Frames of the sensors do not arrive here: their streams target the collector.

Run it with `python examples/sensors/dashboard.py [URL]` until Ctrl-C; `penstock up --demo` runs one without output.
"""

# size: an example on one page, which the demo also runs

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import penstock

TOKEN = "token-of-the-dashboard"


async def averages(space: penstock.Space) -> AsyncIterator[dict[str, Any]]:
    """Each mean that the collector sends."""
    async for frame in space.frames():
        yield json.loads(frame.data)


async def watch(url: str | None, token: str = TOKEN) -> AsyncIterator[str]:
    """Join, and format each mean as a line."""
    async with penstock.Space(url, space="demo", participant="dashboard", token=token) as space:
        async for found in averages(space):
            mean = f"{found['celsius']:.2f} °C of {found['readings']}"
            yield f"{found['from']}  {found['sensor']}  {mean}"


async def main(url: str | None) -> None:
    async for line in watch(url):
        print(line, flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
    except KeyboardInterrupt:
        pass
    except penstock.PenstockError as error:
        sys.exit(f"error: {error}")
