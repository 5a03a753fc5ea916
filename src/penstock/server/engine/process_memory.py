"""The memory of this process: how much is resident, and how freed memory returns to the system.

glibc keeps freed memory that lies below memory in use, and gives each thread a heap of its own. In a server threads share two heaps, and
while the process is large the free pages are released from time to time.
"""
# size: a few calls of the C library.

from __future__ import annotations

import asyncio
import ctypes
import os

LARGE = 256 * 1024 * 1024
"""Bytes of the process below which nothing is released: reuse is cheaper."""
TRIM_S = 5.0
"""Time between two releases; it doubles while one finds little, up to `REST_S`."""
REST_S = 80.0
LITTLE = 16 * 1024 * 1024
_ARENA_MAX = -8
"""`M_ARENA_MAX` of glibc's `mallopt`."""
_libc = ctypes.CDLL(None)
_IS_GLIBC = hasattr(_libc, "malloc_trim") and hasattr(_libc, "mallopt")


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def return_free_memory() -> None:
    """Return free memory to the system, where the allocator can."""
    if _IS_GLIBC:
        _libc.malloc_trim(0)


class MemoryTrimmer:
    """Releases free pages while the process is large. Without glibc it does nothing."""

    def __init__(self) -> None:
        self._wait_s = TRIM_S
        if _IS_GLIBC:
            import pyarrow as pa  # the relay's process does without

            _libc.mallopt(_ARENA_MAX, 2)
            pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own pool keeps what it has

    async def run(self) -> None:
        """Release from time to time, until cancelled."""
        while _IS_GLIBC:
            await asyncio.sleep(self._wait_s)
            before = resident_bytes()
            if before > LARGE:
                await asyncio.to_thread(return_free_memory)
                is_little = before - resident_bytes() < LITTLE
                self._wait_s = min(self._wait_s * 2, REST_S) if is_little else TRIM_S
