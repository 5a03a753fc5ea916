"""The C heap of the process: memory that a burst has taken goes back to the system.

glibc keeps freed memory that lies below memory in use, and gives each thread a heap of its own. Here threads share two heaps, and while
the process is large the free pages are released from time to time.
"""
# size: a few calls of the C library.

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

import pyarrow as pa

LARGE = 256 * 1024 * 1024
"""Bytes of the process below which nothing is released: reuse is cheaper."""
TRIM_S = 5.0
"""Time between two releases; it doubles while one finds little, up to `REST_S`."""
REST_S = 80.0
LITTLE = 16 * 1024 * 1024
_ARENA_MAX = -8
"""`M_ARENA_MAX` of glibc's `mallopt`."""


def resident_bytes() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Heap:
    """Releases free pages while the process is large. Without glibc it does nothing."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._wait_s = TRIM_S
        self._is_glibc = hasattr(self._libc, "malloc_trim") and hasattr(self._libc, "mallopt")
        if self._is_glibc:
            self._libc.mallopt(_ARENA_MAX, 2)
            pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own pool keeps what it has

    async def run(self) -> None:
        """Release from time to time, until cancelled."""
        while self._is_glibc:
            await asyncio.sleep(self._wait_s)
            before = resident_bytes()
            if before > LARGE:
                await asyncio.to_thread(self._libc.malloc_trim, 0)
                is_little = before - resident_bytes() < LITTLE
                self._wait_s = min(self._wait_s * 2, REST_S) if is_little else TRIM_S
