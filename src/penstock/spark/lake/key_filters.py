"""Bloom filters: which files of a table may hold a key.

Keys such as `corr` are random, so the minimum and maximum of a file exclude none of them. Parquet's own Bloom filters do: a batch reads
only the files that hold one of its keys, however many others the table has. Arrow writes the filters (`data_files`) but has no lookup,
so this module looks keys up as the Parquet format defines it: a split block filter over the XXH64 of the value. Spark, DuckDB and
delta-rs use the same filters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.journal.lake_location import LakePath
from penstock.spark.lake.data_files import LiveFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.uint64]
    Filter = NDArray[np.uint32]
    """Blocks of eight words."""

HELD_BYTES_MAX = 256 * 1024 * 1024
"""Filters of a table in memory, about 35 million keys; when full: drop the one that was read first."""
STACK_BYTES_MAX = 16 * 1024 * 1024
"""Filters that are compared in one call; they are allocated by doubling."""
WORDS_MAX = 1 << 20
"""Words of filters that are compared at once."""
_ALL_EIGHT = 0x0101010101010101
_ENTRY_BYTES = 600  # of an entry, without the blocks of its filters
_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)


class KeyFilters:
    """The filters of a table's files. Files never change, so a filter is read once. Threads may share it."""

    def __init__(self, root: LakePath) -> None:
        self._root = root
        self._held: dict[str, dict[str, list[tuple[_Stack, int]]]] = {}
        """Where the filters of a file are: by column, one for each row group."""
        self._stacks: dict[tuple[str, int], list[_Stack]] = {}
        """By column and size."""
        self._bytes = 0
        self._lock = threading.Lock()

    def keep(self, live: Iterable[LiveFile]) -> None:
        """Drop the filters of all other files."""
        with self._lock:
            for path in self._held.keys() - {file.path for file in live}:
                self._drop(path)

    def holding(self, files: Sequence[LiveFile], wanted: Mapping[str, pa.Array]) -> list[LiveFile]:
        """The files that may have one of the values in one of the columns; a file without a filter may have any."""
        return [file for file, _ in self.holding_groups(files, wanted)]

    def holding_groups(
        self, files: Sequence[LiveFile], wanted: Mapping[str, pa.Array]
    ) -> list[tuple[LiveFile, list[int] | None]]:
        """The same, and the row groups that may have one; None for all of them."""
        keys = {column: HashedKeys(values.to_pylist()) for column, values in wanted.items()}
        with self._lock:
            hit = {
                owner
                for (column, _), stacks in self._stacks.items()
                if column in keys
                for stack in stacks
                for slot in keys[column].hits(stack.words)
                if (owner := stack.owners[slot]) is not None
            }
            every = [(file, self._held.get(file.path)) for file in files]
        hit_paths = {path for path, _ in hit}
        found: list[tuple[LiveFile, list[int] | None]] = []
        for file, held in every:
            if held is None:
                filters = self._read(file)
                of_keys = [(hashed, filters.get(name, ())) for name, hashed in keys.items()]
                groups = {
                    at for hashed, blocks in of_keys for at, one in enumerate(blocks) if hashed.hits(one[:, None])
                }
                is_known = all(blocks for _, blocks in of_keys)
            else:
                is_known = keys.keys() <= held.keys()
                if is_known and file.path not in hit_paths:
                    continue
                groups = {at for path, at in hit if path == file.path}
            if groups or not is_known:
                found.append((file, sorted(groups) if is_known else None))
        return found

    def lacking(self, files: Sequence[LiveFile], columns: Iterable[str]) -> list[LiveFile]:
        """The files without a filter for one of the columns: an earlier version wrote them."""
        return [file for file in files if not {*columns} <= (self._held.get(file.path) or self._read(file)).keys()]

    def _read(self, file: LiveFile) -> Mapping[str, Sequence[Filter]]:
        """Read the filters of a file, and hold them."""
        path = file.path
        filters = read_filters(self._root / path)
        with self._lock:
            if path not in self._held:
                self._held[path] = {
                    column: [self._put(column, blocks, (path, group)) for group, blocks in enumerate(parts)]
                    for column, parts in filters.items()
                }
                self._bytes += _size(self._held[path])
            while self._bytes > HELD_BYTES_MAX and len(self._held) > 1:
                self._drop(next(iter(self._held)))
        return filters

    def _put(self, column: str, blocks: Filter, owner: tuple[str, int]) -> tuple[_Stack, int]:
        stacks = self._stacks.setdefault((column, len(blocks)), [])
        stack = next((one for one in stacks if None in one.owners), None)
        if stack is None:
            if not stacks or 2 * stacks[-1].words.nbytes > STACK_BYTES_MAX:
                stacks.append(_Stack(len(blocks)))
            stack = stacks[-1]
            stack.grow()
        slot = stack.owners.index(None)
        stack.words[:, slot], stack.owners[slot] = blocks, owner
        return stack, slot

    def _drop(self, path: str) -> None:
        held = self._held.pop(path)
        self._bytes -= _size(held)
        for column, places in held.items():
            for stack, slot in places:
                stack.owners[slot] = None
                if not any(stack.owners):
                    self._stacks[column, len(stack.words)].remove(stack)


class _Stack:
    """Filters of one size, block by block: what a key is compared with lies together, whatever the number of files."""

    def __init__(self, blocks: int) -> None:
        import numpy as np

        self.words: Filter = np.empty((blocks, 0, 8), np.uint32)
        self.owners: list[tuple[str, int] | None] = []
        """The file and the row group of each filter; None where there is room for another."""

    def grow(self) -> None:
        """Double the room."""
        import numpy as np

        more = max(1, len(self.owners))
        self.words = np.concatenate([self.words, np.zeros((len(self.words), more, 8), np.uint32)], axis=1)
        self.owners += [None] * more


def _size(held: Mapping[str, list[tuple[_Stack, int]]]) -> int:
    return _ENTRY_BYTES + sum(32 * len(stack.words) for places in held.values() for stack, _ in places)


def read_filters(path: LakePath) -> dict[str, list[Filter]]:
    """The filters of a file by column, one for each row group; a column without one in every row group is left out."""
    import numpy as np

    found: dict[str, list[Filter]] = {}
    with path.open("rb") as file:
        about = pq.ParquetFile(file).metadata
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        for number in range(about.num_columns):
            chunks = [group.column(number) for group in groups]
            if any(chunk.bloom_filter_length is None for chunk in chunks):
                continue
            for chunk in chunks:
                # A header of a few bytes, then the blocks, whose size is a power of two and at least 32 bytes.
                size = 1 << (chunk.bloom_filter_length.bit_length() - 1)
                file.seek(chunk.bloom_filter_offset + chunk.bloom_filter_length - size)
                blocks = np.frombuffer(file.read(size), "<u4").reshape(-1, 8)
                found.setdefault(chunk.path_in_schema, []).append(blocks)
    return found


class HashedKeys:
    """Keys as a filter sees them."""

    def __init__(self, values: Iterable[str | None]) -> None:
        import numpy as np

        hashes = xxh64(values)
        self._high = hashes >> np.uint64(32)
        bits = hashes.astype(np.uint32)[:, None] * np.array(_SALTS, np.uint32) >> np.uint32(27)
        self._masks = np.uint32(1) << bits

    def hits(self, words: Filter) -> list[int]:
        """Which of some filters of one size, block by block, have one of the keys."""
        import numpy as np

        blocks, room, _ = words.shape
        found = np.zeros(room, bool)
        at_once = max(1, WORDS_MAX // (8 * room))
        for first in range(0, len(self._high), at_once):
            part = slice(first, first + at_once)
            masks = self._masks[part, None]
            has = words[(self._high[part] * np.uint64(blocks) >> np.uint64(32)).astype(np.intp)] & masks == masks
            found |= (has.view(np.uint64)[:, :, 0] == _ALL_EIGHT).any(axis=0)  # faster than `all` over eight
        return found.nonzero()[0].tolist()


def xxh64(values: Iterable[str | None]) -> Numbers:
    """The XXH64 of texts, in no order; texts of one length are hashed together."""
    import numpy as np

    by_length: dict[int, list[bytes]] = {}
    for value in values:
        if value is not None:
            data = value.encode()
            by_length.setdefault(len(data), []).append(data)
    made = [
        _hash(np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), length))
        for length, texts in by_length.items()
    ]
    return np.concatenate(made) if made else np.empty(0, np.uint64)


def _hash(texts: NDArray[np.uint8]) -> Numbers:
    """The hashes of the rows of an array."""
    import numpy as np

    p1, p2, p3, p4, p5 = (np.uint64(prime) for prime in _PRIMES)

    def turn(value: Numbers, by: int) -> Numbers:
        return value << np.uint64(by) | value >> np.uint64(64 - by)

    def words(first: int, count: int, kind: str) -> Numbers:
        """Little-endian numbers of each row, a column each."""
        end = first + count * np.dtype(kind).itemsize
        return np.ascontiguousarray(texts[:, first:end]).view(kind).astype(np.uint64)

    rows, length = texts.shape
    at = 0
    with np.errstate(over="ignore"):
        if length >= 32:
            lanes = np.tile(np.array([p1 + p2, p2, 0, -p1], np.uint64), (rows, 1))
            for at in range(0, length - 31, 32):
                lanes = turn(lanes + words(at, 4, "<u8") * p2, 31) * p1
            at += 32
            state = np.zeros(rows, np.uint64)
            for number, by in enumerate((1, 7, 12, 18)):
                state += turn(lanes[:, number], by)
            for number in range(4):
                state = (state ^ turn(lanes[:, number] * p2, 31) * p1) * p1 + p4
        else:
            state = np.full(rows, p5)
        state += np.uint64(length)
        while length - at >= 8:
            state = turn(state ^ turn(words(at, 1, "<u8")[:, 0] * p2, 31) * p1, 27) * p1 + p4
            at += 8
        if length - at >= 4:
            state = turn(state ^ words(at, 1, "<u4")[:, 0] * p1, 23) * p2 + p3
            at += 4
        for place in range(at, length):
            state = turn(state ^ texts[:, place].astype(np.uint64) * p5, 11) * p1
        for by, prime in ((33, p2), (29, p3)):
            state = (state ^ state >> np.uint64(by)) * prime
        return state ^ state >> np.uint64(32)
