"""Freed memory goes back to the system."""

from __future__ import annotations

import subprocess
import sys

from penstock.server.engine.process_memory import resident_bytes, return_free_memory

PROGRAM = """
import asyncio
from penstock.server.engine import process_memory as memory

memory.LARGE, memory.TRIM_S = 0, 0.01

async def main():
    trimmer = memory.MemoryTrimmer()
    kept = [b"%d" % n * 200 for n in range(100_000)]
    full = memory.resident_bytes()
    kept = kept[::500]
    held = memory.resident_bytes()
    task = asyncio.ensure_future(trimmer.run())
    deadline = asyncio.get_running_loop().time() + 10
    while memory.resident_bytes() > held - 20_000_000 and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
    task.cancel()
    print(full, held, memory.resident_bytes())

asyncio.run(main())
"""


def test_free_pages_between_used_ones_are_released() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    full, held, released = map(int, ran.stdout.split())
    assert full > 60_000_000
    assert released < held - 20_000_000, (full, held, released)


def test_free_memory_is_returned() -> None:
    return_free_memory()  # or what earlier tests freed is used again
    before = resident_bytes()
    pieces = [b"x" * 100_000 + bytes((number % 256,)) for number in range(1_000)]
    assert resident_bytes() > before + 40_000_000
    del pieces
    return_free_memory()
    assert resident_bytes() < before + 40_000_000
