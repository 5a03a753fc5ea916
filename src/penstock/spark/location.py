"""The location of a journal, a data directory or a server's URL, and the journal opened there.

A location is sent to executors. An opened journal stays in its process and is cached, because Spark reuses Python workers: a cached
reader knows the positions of rows and reads only new ones. A token never appears in a text.
"""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.client.admin import RemoteBounds, RemoteJournal
from penstock.journal import named_readers
from penstock.journal.disk import RealDisk
from penstock.journal.reader import Bounds, JournalReader, Mark
from penstock.journal.selection import Selection
from penstock.spark.errors import SourceError, source_errors

OPENED_MAX = 16
"""Journals that a process keeps open; when full: evict the least recently opened."""
RETRY_S = 60.0
"""How long a server may be unreachable before a query fails; the default of `retryTimeout`."""

_HADOOP_S3 = re.compile("^s3[an]://")

AnyBounds: TypeAlias = Bounds | RemoteBounds


@dataclass(frozen=True)
class JournalLocation:
    """An absolute data directory, or a URL and the token for it."""

    path: str | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    retry_s: float = RETRY_S

    def __str__(self) -> str:
        return f"`{self.path or self.url}`"

    @property
    def options(self) -> dict[str, str]:
        """The options of the source and the sink that name this location."""
        given = {"path": self.path, "url": self.url, "token": self.token}
        return {key: text for key, text in given.items() if text is not None}

    def open(self) -> SourceJournal:
        """Open the journal, from the cache of this process if it is there."""
        with _opening:
            journal = _opened.pop(self, None) or SourceJournal(self)
            while len(_opened) >= OPENED_MAX:
                _opened.pop(next(iter(_opened)))
            _opened[self] = journal
        return journal


_opened: dict[JournalLocation, SourceJournal] = {}
_opening = threading.Lock()


class SourceJournal:
    """A journal that any thread can read; failures are raised as `SourceError`."""

    def __init__(self, location: JournalLocation) -> None:
        self.location = location
        self._kept = threading.local()
        """One reader a thread: two queries of one driver must not move each other's position."""
        self._remote: RemoteJournal | None = None
        with source_errors(str(location)):
            if location.url is not None:
                self._remote = RemoteJournal(location.url, location.token, retry_s=location.retry_s)
            else:
                self._kept.reader = _directory(Path(location.path or "."))

    @property
    def _local(self) -> JournalReader | None:
        if self._remote is None and not hasattr(self._kept, "reader"):
            self._kept.reader = _directory(Path(self.location.path or "."))
        return getattr(self._kept, "reader", None)

    @property
    def id(self) -> str:
        """The current id of the journal: its directory may have been recreated."""
        return self.mark().journal

    def mark(self) -> Mark:
        """The end of the committed rows. Cheap: queries poll it."""
        with source_errors(str(self.location)):
            if self._local is not None:
                return self._local.mark()
            bounds = self.bounds()
            return Mark(bounds.journal, bounds.epoch, bounds.end)

    def bounds(self) -> AnyBounds:
        """The range of rows that can be read."""
        with source_errors(str(self.location)):
            return (self._local or self._far).bounds()

    def batches(
        self, first: int, end: int, columns: Sequence[str] | None = None, selection: Selection | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows `first` to `end - 1` in order, filtered by a selection."""
        with source_errors(str(self.location)):
            if self._local is not None:
                yield from self._local.batches(first, end, columns, selection)
                return
            deciding = selection.columns if selection is not None else []
            read = None if columns is None else list(dict.fromkeys([*columns, *deciding]))
            for batch in self._far.batches(first, end, read):
                passed = batch if selection is None else selection.passed(batch)
                if passed.num_rows:
                    yield passed if columns is None else passed.select(list(columns))

    def time_of(self, offset: int) -> int:
        """The time of a row, in microseconds since 1970."""
        return self._whole(offset, "recorded_at")

    def epoch_of(self, offset: int) -> int:
        """The epoch of a row."""
        return self._whole(offset, "epoch")

    def offset_at(self, time_us: int) -> int:
        """The first row at or after a time, or the end, by binary search: times never decrease."""
        with source_errors(str(self.location)):
            bounds = self.bounds()
            low, high = (bounds.first, bounds.end) if self._local is None else self._local.around(time_us)
        return low + bisect_left(range(low, high), time_us, key=self.time_of)

    def seams(self) -> list[int]:
        """Offsets of segment and file boundaries, where a range is best cut."""
        with source_errors(str(self.location)):
            return self._local.seams() if self._local is not None else []

    def hold(self, name: str, offset: int) -> None:
        """Record the progress of a named reader; retention keeps rows from `offset` on for it."""
        with source_errors(str(self.location)):
            if self._local is not None:
                disk = RealDisk(Path(self.location.path or ".") / "journal")
                named_readers.advance(disk, name, offset, time.time_ns() // 1000)
            else:
                self._far.hold(name, offset)

    @property
    def _far(self) -> RemoteJournal:
        assert self._remote is not None
        return self._remote

    def _whole(self, offset: int, column: str) -> int:
        for batch in self.batches(offset, offset + 1, [column]):
            return int(batch.column(0).cast(pa.int64())[0].as_py())
        raise SourceError(f"row {offset} is not in the journal at {self.location}, which ends at {self.mark().end}")


def open_one(data: Path, url: str | None = None, token: str | None = None) -> SourceJournal:
    """Open the journal of a server by its URL, else of a data directory."""
    if url is not None:
        return JournalLocation(url=url, token=token).open()
    return JournalLocation(path=str(data.absolute())).open()


def open_journals(locations: Iterable[JournalLocation]) -> dict[str, SourceJournal]:
    """Open the journals of the locations, by id."""
    found: dict[str, SourceJournal] = {}
    for location in locations:
        journal = location.open()
        twin = found.setdefault(journal.id, journal)
        if twin is not journal:
            raise SourceError(
                f"{twin.location} and {location} are the same journal, {journal.id}: its rows would be read twice. Name it once;"
                " of a copied directory, read either the copy or the original."
            )
    return found


def parse_locations(
    path: str | None, url: str | None, token: str | None, token_file: str | None, retry_s: float
) -> tuple[JournalLocation, ...]:
    """The locations that the options name. Runs on the driver: makes paths absolute and reads token files."""
    if bool(path) == bool(url):
        raise SourceError('a source needs either a data directory, `.load(DIR)`, or a server, `.option("url", URL)`')
    if url:
        secret = _token(token, token_file)
        return tuple(JournalLocation(url=_checked(one), token=secret, retry_s=retry_s) for one in _several(url))
    if token or token_file:
        raise SourceError("a token is for a server", "leave it out, or name the server with the option `url`")
    return tuple(JournalLocation(path=_absolute(one)) for one in _several(path or ""))


def absolute_paths(text: str) -> str:
    """Absolute paths: executors have another working directory."""
    return ",".join(_absolute(one) for one in _several(text))


def _several(text: str) -> list[str]:
    return [part for part in (part.strip() for part in text.split(",")) if part]


def _absolute(path: str) -> str:
    if path.startswith(("http://", "https://")):
        raise SourceError(f"`{path}` is a URL", "give it with the option `url` instead of as a path")
    if is_object_store(path):
        raise SourceError(
            f"`{storage_url(path)}` is an object store, and a journal is on the disk of its server",
            "read it with the option `url`, or its sealed rows as the table `events` with `penstock_delta`",
        )
    if path.startswith("file:"):
        path = urlsplit(path).path
    full = Path(absolute(os.path.expanduser(path)))
    is_inside = full.name in {"journal", "lake"} and not (full / "journal").is_dir()
    return str(full.parent if is_inside and (full.parent / "journal").is_dir() else full)


def absolute(path: str) -> str:
    """An absolute path; a relative one is of the directory where Spark was started.

    The planner of a Connect session runs in a directory of that session, and only the variable PWD has the other.
    """
    is_session = os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default") != "default"
    return os.path.abspath(os.path.join(os.environ.get("PWD", "") if is_session else "", path))


def storage_url(path: str) -> str:
    """A path with the scheme that storage clients know: Hadoop's `s3a:` and `s3n:` are `s3:`."""
    return _HADOOP_S3.sub("s3://", path)


def is_object_store(path: str) -> bool:
    """Whether a path is the URL of an object store."""
    return "://" in path and not path.startswith("file:")


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        shown = url.rpartition("@")[2]
        raise SourceError(f"`{shown}` is not the URL of an HTTP door", "write `http://host:port`")
    return f"{parts.scheme}://{parts.netloc}"


def _token(token: str | None, token_file: str | None) -> str | None:
    if token is not None and token_file is not None:
        raise SourceError("`token` and `tokenFile` exclude each other", "give one of them")
    if token_file is not None:
        try:
            return Path(token_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise SourceError(
                f"the token file `{token_file}` cannot be read: {reason}", "name the file on the driver's machine"
            ) from None
    if token is not None and token.startswith("env:"):
        name = token.removeprefix("env:")
        found = os.environ.get(name)
        if not found:
            raise SourceError(f"the variable `{name}` is not set where the driver runs", "set it, or use `tokenFile`")
        return found
    return token


def _directory(data: Path) -> JournalReader:
    if not data.is_dir():
        raise SourceError(
            f"there is no directory `{data}` here",
            "name the data directory of a server by its path on the machines of the tasks,"
            " or read through the server with the options `url` and `token`",
        )
    if not (data / "journal").is_dir():
        raise SourceError(f"there is no journal in `{data}`", "name the directory that contains `journal` and `lake`")
    return JournalReader(data)
