"""Freed memory goes back to the system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio
from penstock.server.engine import heap

heap.LARGE, heap.TRIM_S = 0, 0.01

async def main():
    trimmer = heap.Heap()
    kept = [b"%d" % n * 200 for n in range(100_000)]
    full = heap.resident_bytes()
    kept = kept[::500]
    held = heap.resident_bytes()
    task = asyncio.ensure_future(trimmer.run())
    deadline = asyncio.get_running_loop().time() + 10
    while heap.resident_bytes() > held - 20_000_000 and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
    task.cancel()
    print(full, held, heap.resident_bytes())

asyncio.run(main())
"""


def test_free_pages_between_used_ones_are_released() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    full, held, released = map(int, ran.stdout.split())
    assert full > 60_000_000
    assert released < held - 20_000_000, (full, held, released)
