"""The log of a Delta table: which versions can be read, and removing entries and data files that no kept version needs.

A version can be read if a checkpoint at or before it exists, and every entry since. Without pruning, frequent commits would leave
thousands of entries a day. Data files that no kept version refers to are removed too: they were replaced, or their commit failed.
"""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.journal.disk import sync_path
from penstock.journal.lake_location import (
    LakePath,
    ObjectPath,
    find_delta,
    open_delta,
    remove_tree,
    size_and_time,
    store_errors,
)
from penstock.journal.segments import crc32c

KEPT_VERSIONS = 200
"""Versions behind the newest that can still be read."""
CHECKPOINT_EVERY = 50
"""Versions between two checkpoints: about what one has to read to open a table."""

SWEEP_AGE_S = 3_600
"""A file that no kept version refers to is removed when it is this old: longer than a task or a query takes."""

CHANGES = "_change_data"
"""The directory of files with the rows that a commit changed."""
CHANGES_NOTE = "penstock.changes"
"""These files as JSON, in an object store: delta-rs, which commits there, has no call for them."""

TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""A directory of the lake with another name, such as `_locks`, is not a table."""
SUMS = "_sums.json"
"""CRC-32C of each file of the log, by name, in the directory of the table: Delta itself keeps none."""
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*parquet")


class DeltaLog:
    """The log of the table in a directory."""

    def __init__(self, table: LakePath) -> None:
        self.table = table
        self.path = table / "_delta_log"

    def entries(self) -> dict[int, LakePath]:
        """The commits that have an entry, by version."""
        return {version: files[0] for version, files in self._named(_ENTRY).items()}

    def checkpoints(self) -> dict[int, list[LakePath]]:
        """The files of each checkpoint, by version."""
        return self._named(_CHECKPOINT)

    def kept(self) -> range:
        """The versions that can be read."""
        entries = self.entries()
        if not entries:
            return range(0)
        newest = oldest = max(entries)
        while oldest - 1 in entries:
            oldest -= 1
        starts = [version for version in self.checkpoints() if version >= oldest]
        if oldest == 0:
            starts.append(0)
        return range(min(starts, default=newest), newest + 1)

    def needs_checkpoint(self) -> bool:
        """Whether the table has become slow to open."""
        newest = max(self.entries(), default=0)
        return newest - max(self.checkpoints(), default=0) >= CHECKPOINT_EVERY

    def shorten(self, kept_versions: int = KEPT_VERSIONS, before: float = 0.0) -> int:
        """Remove what no kept version needs; returns how many files went. Readers of kept versions notice nothing.

        Versions that were written before a time are not kept, except the newest.
        """
        entries, checkpoints = self.entries(), self.checkpoints()
        limit = max(entries, default=0) - kept_versions
        if before:
            old = (version for version, path in entries.items() if size_and_time(path)[1] < before * 1000)
            limit = max([limit, *old])
        start = max((version for version in checkpoints if version <= limit), default=None)
        if start is None:
            return 0
        doomed = [path for version, path in sorted(entries.items()) if version < start]
        doomed += [path for version, files in sorted(checkpoints.items()) if version < start for path in files]
        for path in doomed:
            path.unlink(missing_ok=True)
        return len(doomed)

    def added_since(self, version: int) -> set[str]:
        """Paths of the data files that commits after a version added, and of files of changes, as the log writes them."""
        found = set()
        for number, path in self.entries().items():
            if number >= version:
                entry = self._read(path)
                found |= {action["add"]["path"] for action in entry if "add" in action and number > version}
                found |= {change["path"] for change in changes_in(entry)}
        return found

    def actions(self, version: int) -> list[dict[str, Any]]:
        """The entry of a version; raises FileNotFoundError."""
        return self._read(self.path / f"{version:020d}.json")

    def commit_ms(self, version: int) -> int | None:
        """When a version was committed, as its entry says."""
        try:
            return int(commit_info(self.actions(version))["timestamp"])
        except (FileNotFoundError, KeyError):
            return None

    def commit(self, version: int, actions: Iterable[dict[str, Any]]) -> None:
        """Write the entry of a version into a directory, durably; raises FileExistsError if another writer was first."""
        assert isinstance(self.path, Path)
        draft = self.path.parent / f".{uuid.uuid4().hex}.tmp"
        try:
            draft.write_bytes(msgspec.json.Encoder().encode_lines(actions))
            sync_path(draft)
            os.link(draft, self.path / f"{version:020d}.json")
        finally:
            draft.unlink(missing_ok=True)

    def sync(self) -> None:
        """Make the newest commit durable, and its checkpoint if it has one. An object store does so itself."""
        if isinstance(self.path, Path):
            newest = newest_entry(self.table).removesuffix("json")
            about = [name for name in os.listdir(self.path) if name.startswith((newest, "_last"))]
            for path in (*(self.path / name for name in about), self.path):
                sync_path(path)

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, durably."""
        open_delta(self.table).create_checkpoint()
        self.sync()

    def record(self) -> None:
        """Note the checksums of new files of the log. For the only writer. An object store keeps its own."""
        if isinstance(self.table, ObjectPath):
            return
        known = self._sums()
        sums = {name: known.get(name) or crc32c(path.read_bytes()) for name, path in self._files().items()}
        if sums != known:
            draft = self.table / f"{SUMS}.tmp"
            draft.write_bytes(msgspec.json.encode(sums))
            draft.replace(self.table / SUMS)

    def damage(self) -> Iterator[tuple[str, str]]:
        """The files of the log that changed since they were recorded or cannot be read, and what is wrong."""
        known = self._sums()
        for name, path in sorted(self._files().items()):
            try:
                data = path.read_bytes()
                if known.get(name, crc32c(data)) != crc32c(data):
                    yield name, "its checksum is wrong: a byte changed after it was written"
                elif name.endswith(".json"):
                    self._read(path)
            except FileNotFoundError:
                continue  # no kept version needs it any more
            except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
                yield name, f"cannot be read: {error}"

    def _files(self) -> dict[str, LakePath]:
        paths = [*self.entries().values(), *(path for files in self.checkpoints().values() for path in files)]
        return {path.name: path for path in paths}

    def _sums(self) -> dict[str, int]:
        try:
            return msgspec.json.decode((self.table / SUMS).read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            return {}  # a table of an earlier version

    def sweep(self, now: float, age_s: float = SWEEP_AGE_S) -> tuple[int, int]:
        """Remove old files that no kept version refers to; returns their number and bytes. For the only writer."""
        kept = self.kept()
        if not kept:
            return 0, 0
        oldest = open_delta(self.table, kept.start)
        referenced = set(oldest.get_add_actions(flatten=True).column("path").to_pylist())
        referenced |= self.added_since(kept.start)
        referenced = {unquote(path) for path in referenced}
        if isinstance(self.table, ObjectPath):
            # A store cannot reset the age of a file, so the time counts at which the log removed it.
            hours = max(1, int(age_s) // 3600) if age_s else 0
            old = open_delta(self.table).vacuum(hours, enforce_retention_duration=False, full=True)
        else:
            old = list(self._old_files(self.table, now - age_s))
        count = size = 0
        for name in sorted({unquote(path) for path in old} - referenced):
            with suppress(FileNotFoundError):
                count, size = count + 1, size + size_and_time(self.table / name)[0]
                (self.table / name).unlink()
        return count, size

    def purge(self) -> None:
        """Remove every version but the newest, statistics included, and every other data file at once. For the only writer."""
        if max(self.entries()) not in self.checkpoints():
            self.checkpoint()
        self.shorten(0)
        remove_tree(self.table / CHANGES)
        self.sweep(math.inf, 0)
        if self._sums():
            self.record()

    @staticmethod
    def _old_files(table: Path, before: float) -> Iterator[str]:
        """Data files, drafts and staged files that did not change since a time, as the log writes them; no other files."""
        for folder, folders, names in os.walk(table):
            folders[:] = [name for name in folders if not name.startswith("_") or name == CHANGES]
            for path in (Path(folder, name) for name in names if name.endswith((".parquet", ".tmp"))):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime <= before:
                        yield quote(path.relative_to(table).as_posix())

    @staticmethod
    def _read(path: LakePath) -> list[dict[str, Any]]:
        return msgspec.json.Decoder(dict[str, Any]).decode_lines(path.read_bytes())

    def _named(self, pattern: re.Pattern[str]) -> dict[int, list[LakePath]]:
        found: dict[int, list[LakePath]] = {}
        if self.path.is_dir():
            for path in self.path.iterdir():
                match = pattern.fullmatch(path.name)
                if match is not None:
                    found.setdefault(int(match[1]), []).append(path)
        return found


def create_delta(path: LakePath, schema: pa.Schema, **settings: Any) -> DeltaTable:
    """Create a Delta table."""
    # The libraries write files that others can read, so the directory around them is private.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(exist_ok=True)
    options = path.options() if isinstance(path, ObjectPath) else None
    with store_errors(path):
        made = DeltaTable.create(str(path), schema, storage_options=options, **settings)
    if isinstance(path, Path):
        for one in (path / "_delta_log" / f"{0:020d}.json", path / "_delta_log", path, path.parent):
            sync_path(one)
    return made


def commit_info(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What an entry says about its commit; empty if nothing."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def changes_in(actions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The files of changes that an entry names."""
    noted = msgspec.json.decode(commit_info(actions).get(CHANGES_NOTE, "[]"), type=list[dict[str, Any]])
    return [action["cdc"] for action in actions if "cdc" in action] or noted


def table_names(lake: LakePath) -> list[str]:
    """The tables of a lake."""
    if isinstance(lake, ObjectPath):
        found = sorted(path.name for path in lake.iterdir() if TABLE_NAME.fullmatch(path.name) and newest_entry(path))
        if not found:
            find_delta(lake / "events")  # raises if there is no bucket, which the list does not
        return found
    if not lake.is_dir():
        return []
    names = [path.name for path in lake.iterdir() if TABLE_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(name for name in names if DeltaTable.is_deltatable(str(lake / name)))


def damaged_tables(lake: LakePath) -> Iterator[str]:
    """The tables that cannot be opened, and why."""
    for name in table_names(lake):
        try:
            open_delta(lake / name)
        except (DeltaError, OSError) as error:
            yield f"table `{name}` cannot be opened: {' '.join(str(error).split())}"


def newest_entry(table: LakePath) -> str:
    """The name of a log's newest entry, without reading it: while it stays the same, so does the table. Empty without a log; raises `StoreError`."""
    try:
        log = table / "_delta_log"
        entries = os.listdir(log) if isinstance(log, Path) else [path.name for path in log.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return max((name for name in entries if name.endswith(".json") and name[0].isdecimal()), default="")
