"""Named readers: the position of each reader of a journal, which holds back retention.

One small file a reader, replaced atomically, so that a reader in another process needs no lock.
"""

from __future__ import annotations

import msgspec

from penstock.journal.disk import Disk
from penstock.journal.open_and_repair import replace_file

PREFIX = "reader-"
SUFFIX = ".json"
NAME_MAX = 64


class Reader(msgspec.Struct):
    """The position of one reader."""

    name: str
    offset: int
    """The next row it wants."""
    at_us: int
    """When it last reported it."""
    has_ended: bool = False
    """Its hold was ended because it held back too many bytes, or for too long."""


def name_problem(name: str) -> str | None:
    """Why a reader may not have this name: it becomes a file's."""
    if not 0 < len(name) <= NAME_MAX or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        return f"a reader's name has 1 to {NAME_MAX} letters, digits, `.`, `_` and `-`"
    return None


def reader_files(disk: Disk) -> list[str]:
    """The names of the readers' files."""
    return [name for name in disk.names() if name.startswith(PREFIX) and name.endswith(SUFFIX)]


def list_readers(disk: Disk) -> list[Reader]:
    """All readers. A damaged file, or one that is being replaced, holds nothing back."""
    found = []
    for file in reader_files(disk):
        try:
            found.append(msgspec.json.decode(disk.read(file), type=Reader))
        except (msgspec.DecodeError, FileNotFoundError):
            continue
    return found


def advance(disk: Disk, name: str, offset: int, at_us: int) -> Reader:
    """A reader has read everything before `offset`; its position never decreases."""
    known = {reader.name: reader for reader in list_readers(disk)}.get(name)
    if known is not None and not known.has_ended:
        offset = max(offset, known.offset)
    reader = Reader(name, offset, at_us)
    _save(disk, reader)
    return reader


def end(disk: Disk, reader: Reader) -> None:
    """End the hold of a reader, visibly for it."""
    _save(disk, msgspec.structs.replace(reader, has_ended=True))


def forget(disk: Disk, name: str) -> None:
    disk.remove(f"{PREFIX}{name}{SUFFIX}")
    disk.sync_names()


def _save(disk: Disk, reader: Reader) -> None:
    problem = name_problem(reader.name)
    if problem is not None:
        raise ValueError(problem)
    replace_file(disk, f"{PREFIX}{reader.name}{SUFFIX}", [msgspec.json.encode(reader)])
