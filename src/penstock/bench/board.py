"""Numbers that the processes of one run share, in a small mapped file.

The consumer writes how much it has acked, so that a producer in another process can keep a bounded window over the whole
way, and not only up to the server. Each number has one writer.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_NUMBER = struct.Struct("=q")
ACKED, TOTAL = 0, 8
UNKNOWN = -1


class Board:
    """Two numbers: acked so far, and how many there will be (unknown until the producer has stopped)."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 2 * _NUMBER.size)

    @staticmethod
    def create(path: Path) -> None:
        path.write_bytes(_NUMBER.pack(0) + _NUMBER.pack(UNKNOWN))

    @property
    def acked(self) -> int:
        return int(_NUMBER.unpack_from(self._map, ACKED)[0])

    @acked.setter
    def acked(self, count: int) -> None:
        _NUMBER.pack_into(self._map, ACKED, count)

    @property
    def total(self) -> int:
        return int(_NUMBER.unpack_from(self._map, TOTAL)[0])

    @total.setter
    def total(self, count: int) -> None:
        _NUMBER.pack_into(self._map, TOTAL, count)
