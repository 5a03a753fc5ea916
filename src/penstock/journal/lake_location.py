"""The location of the lake: a directory, or a prefix in an object store, and the files in it.

Every reader and writer of tables takes a `LakePath`. A directory is a plain `Path`; `ObjectPath` has the few methods of `Path` that they
use. A data directory records its lake in `DIR/lake.json`, so commands and Spark find it without the config.

The value holds no secret: each process reads the credentials from its environment, or from a file of `NAME=value` lines.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from penstock.core.errors import PenstockError, Refusal
from penstock.journal.disk import sync_path

LAKE = "lake"
"""The lake in a data directory; with an object store, the directory of locks and checkpoints."""
RECORD = "lake.json"
SCHEMES = {"s3": "s3", "s3a": "s3", "abfss": "abfss", "abfs": "abfss", "gs": "gs"}
"""The schemes of object stores, and the one that is used for each."""
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
BOUNDS = {"connect_timeout": "5s", "timeout": "30s", "max_retries": "3", "retry_timeout": "60s"}
"""How long one request to a store may take, and how often it is repeated. The file of credentials may set others."""
QUICK = {"connect_timeout": "2s", "timeout": "2s", "max_retries": "0"}
"""The same for the start of a server, which does not wait for a store."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_STORE_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"\b(40[134])\b (?:Unauthorized|Forbidden|Not Found)")
_REFUSED = {
    "401", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch",
    "AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch",
}  # fmt: skip
_QUERY = re.compile(r"\?[^\s\"'<>]*")
_USER = re.compile(r"//[^/@\s]+@")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|↳")
_CREDENTIALS_HINT = (
    "check the variables of the environment, or the file `lake_credentials`, and the permissions of that account"
)
_NETWORK_HINT = "check the network and the endpoint; history stays in the journal and is sealed when the store answers"


class StoreError(PenstockError, OSError):
    """An object store that cannot be used. The text names no secret."""

    def __str__(self) -> str:  # `OSError` has another one
        return f"{self.code}: {self.message}\nhint: {self.hint}"


def store_error(error: BaseException, url: str) -> StoreError:
    """What went wrong, by the code that the store answered: the libraries hand it on only inside a text."""
    # A query may contain a signature, and an address a password.
    text = _USER.sub("//", _QUERY.sub("", _COLOUR.sub("", str(error))))
    found = _STORE_CODE.search(text) or _STATUS.search(text)
    code = found[1] if found else ""
    if code in {"NoSuchBucket", "ContainerNotFound"}:
        what, hint = "the bucket does not exist", "create it, or correct `lake`"
    elif code in _REFUSED:
        what, hint = f"the store refuses the credentials ({code})", _CREDENTIALS_HINT
    elif found:
        what, hint = f"the store answered {code}", _NETWORK_HINT
    else:
        what, hint = " ".join(text.split())[-300:], _NETWORK_HINT
    return StoreError(Refusal("LakeUnavailable", f"the lake `{url}` cannot be used: {what}", hint=hint))


@contextmanager
def store_errors(path: LakePath) -> Iterator[None]:
    """Raise failures of an object store as `StoreError`; those of a directory pass."""
    try:
        yield
    except (StoreError, FileNotFoundError, TableNotFoundError):
        raise
    except (OSError, DeltaError) as error:
        if isinstance(path, ObjectPath):
            raise store_error(error, path.url) from None
        raise


@dataclass(frozen=True)
class ObjectPath:
    """A prefix or an object in a store."""

    url: str
    credentials: str | None = None
    """A file of `NAME=value` lines; None leaves it to the environment."""
    side: str = ""
    """The local directory of what cannot be in a store: locks and Spark's checkpoints."""

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str | Path) -> ObjectPath:
        return replace(self, url=f"{self.url}/{name}", side=f"{self.side}/{name}")

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return replace(self, url=self.url.rpartition("/")[0], side=self.side.rpartition("/")[0])

    @property
    def key(self) -> str:
        """The path that the filesystem knows it by: Arrow's own one for S3 includes the bucket."""
        return self.url.removeprefix("s3://").removeprefix(f"{self.root}/")

    @property
    def files(self) -> fs.FileSystem:
        return _filesystem(self.root, tuple(self.options().items()))

    @property
    def root(self) -> str:
        """The bucket."""
        return "/".join(self.url.split("/", 3)[:3])

    def options(self) -> dict[str, str]:
        """The storage options of delta-rs, secrets included."""
        given = read_credentials(self.credentials)
        endpoint = _setting(given, "AWS_ENDPOINT_URL")
        allowed = {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}
        return BOUNDS | allowed | given

    def mkdir(self, mode: int = 0, *, parents: bool = False, exist_ok: bool = False) -> None:
        """A store has no directories."""

    def iterdir(self) -> Iterator[ObjectPath]:
        with store_errors(self):
            found = self.files.get_file_info(fs.FileSelector(self.key, allow_not_found=True))
        return iter([self / name for one in found if (name := one.base_name)])

    def is_dir(self) -> bool:
        return next(self.iterdir(), None) is not None

    def exists(self) -> bool:
        return bool(self.files.get_file_info(self.key).type == fs.FileType.File)

    def open(self, mode: str = "rb") -> IO[bytes]:
        with store_errors(self):
            opened: IO[bytes] = self.files.open_input_file(self.key)
        return opened

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()

    def unlink(self, *, missing_ok: bool = False) -> None:
        # Not by Arrow: it would leave an empty object in place of the directory, which a log does not expect.
        with store_errors(self):
            try:
                _handler(self.root, self.options()).delete_file(self.url.removeprefix(f"{self.root}/"))
            except FileNotFoundError:
                if not missing_ok:
                    raise


LakePath: TypeAlias = Path | ObjectPath


class _Record(msgspec.Struct):
    lake: str
    credentials: str | None = None


def parse_lake(text: str, credentials: str | None = None, side: Path | None = None) -> LakePath:
    """The location that a URL or a path names; raises `PenstockError` if it is neither."""
    scheme, rest = text.split("://", 1) if "://" in text else ("file", text)
    known = ", ".join(f"`{one}://`" for one in dict.fromkeys(SCHEMES.values()))
    hint = f"use a path, or a URL with {known}"
    if scheme == "file":
        # `s3:/x` would be a relative path, and the first part of `file://x/y` is a host.
        if not rest.strip() or _SCHEME.match(rest) or (rest != text and rest[0] not in "/~"):
            raise PenstockError(Refusal("InvalidRequest", f"`{text.rpartition('@')[2]}` cannot be a lake", hint=hint))
        return Path(os.path.abspath(os.path.expanduser(rest)))
    parts = urlsplit(text)
    if scheme not in SCHEMES or not parts.netloc or parts.query or parts.fragment:
        shown = parts.netloc.rpartition("@")[2]
        raise PenstockError(Refusal("InvalidRequest", f"`{scheme}://{shown}` cannot be a lake", hint=hint))
    user = parts.netloc.rpartition("@")[0]
    if ":" in user or (user and SCHEMES[scheme] != "abfss"):
        problem = f"the URL of the lake `{parts.netloc.rpartition('@')[2]}` contains credentials"
        raise PenstockError(Refusal("InvalidRequest", problem, hint="put them into the file `lake_credentials`"))
    if side is None:  # a table that was named by its URL alone
        side = Path(tempfile.gettempdir(), f"penstock-{os.getuid()}", rest)
    path = os.path.abspath(os.path.expanduser(credentials)) if credentials else None
    return ObjectPath(f"{SCHEMES[scheme]}://{rest.rstrip('/')}", path, str(side))


def lake_of(data: Path) -> LakePath:
    """The lake of a data directory: the recorded one, or `DIR/lake`."""
    try:
        record = msgspec.json.decode((data / RECORD).read_bytes(), type=_Record)
    except FileNotFoundError:
        return data / LAKE
    return parse_lake(record.lake, record.credentials, data / LAKE)


def record_lake(data: Path, lake: LakePath) -> None:
    """Record the lake of a data directory, durably."""
    if lake == Path(os.path.abspath(data / LAKE)):  # nothing absolute, so that the directory can be moved
        (data / RECORD).unlink(missing_ok=True)
    else:
        credentials = lake.credentials if isinstance(lake, ObjectPath) else None
        draft = data / f".{RECORD}.tmp"
        draft.write_bytes(msgspec.json.encode(_Record(str(lake), credentials)))
        sync_path(draft)
        draft.replace(data / RECORD)
    sync_path(data)


def side_of(lake: LakePath) -> Path:
    """The local directory of a lake's locks and checkpoints."""
    return Path(lake.side) if isinstance(lake, ObjectPath) else lake


def read_credentials(file: str | None) -> dict[str, str]:
    """The `NAME=value` lines of a file. Errors quote no line."""
    if file is None:
        return {}
    try:
        is_open = os.name == "posix" and Path(file).stat().st_mode & 0o077
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        hint = "`lake_credentials` names it; every process that reads the lake needs it"
        message = f"the file of credentials `{file}` cannot be read: {reason}"
        raise StoreError(Refusal("LakeUnavailable", message, hint=hint)) from None
    if is_open:
        message = f"other users can read the file of credentials `{file}`"
        raise StoreError(Refusal("LakeUnavailable", message, hint=f"run `chmod 600 {file}`"))
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals or not name.strip():
            message = f"line {number} of the file of credentials `{file}` is not `NAME=value`"
            raise StoreError(Refusal("LakeUnavailable", message, hint="for example `AWS_ACCESS_KEY_ID=…`"))
        name = name.strip().upper()  # of the others, such as `timeout`, small letters are known
        found[name if name.startswith(_VARIABLES) else name.lower()] = value.strip().strip("\"'")
    return found


def open_delta(path: LakePath, version: int | None = None, bounds: dict[str, str] | None = None) -> DeltaTable:
    """Open a Delta table; raises `TableNotFoundError` if there is none."""
    options = path.options() | (bounds or {}) if isinstance(path, ObjectPath) else None
    with store_errors(path):
        return DeltaTable(str(path), version=version, storage_options=options)


def find_delta(path: LakePath, bounds: dict[str, str] | None = None) -> DeltaTable | None:
    """The Delta table at a location; None if there is none."""
    if isinstance(path, ObjectPath):  # the library's own question would stop every thread until the store answers
        try:
            return open_delta(path, bounds=bounds)
        except TableNotFoundError:
            return None
    return DeltaTable(str(path)) if DeltaTable.is_deltatable(str(path)) else None


def open_parquet(path: LakePath) -> pq.ParquetFile:
    """Open a Parquet file."""
    if isinstance(path, ObjectPath):
        with store_errors(path):
            return pq.ParquetFile(path.key, filesystem=path.files, pre_buffer=True)
    return pq.ParquetFile(path, memory_map=True)


class NewFile:
    """A file that gets its name when it is complete and durable."""

    def __init__(self, path: LakePath) -> None:
        self._path = path
        self._draft: Path | None = None
        self.sink: Any
        """Where to write."""
        if isinstance(path, ObjectPath):
            with store_errors(path):
                self.sink = path.files.open_output_stream(path.key)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.sink = self._draft = path.with_name(f".{path.name}.tmp")

    def finish(self) -> tuple[int, int]:
        """Complete the file; returns its bytes, and milliseconds since 1970 of now."""
        if isinstance(self._path, ObjectPath):
            with store_errors(self._path):
                self.sink.close()
        elif self._draft is not None:
            sync_path(self._draft)
            os.replace(self._draft, self._path)
            sync_path(self._path.parent)
        return size_and_time(self._path)

    def abandon(self) -> None:
        """Remove what was written."""
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)
        else:
            self.sink.close()  # a store completes an upload that is closed
            self._path.unlink(missing_ok=True)


def size_and_time(path: LakePath) -> tuple[int, int]:
    """Bytes of a file, and milliseconds since 1970 of its last change; raises FileNotFoundError."""
    if isinstance(path, Path):
        status = path.stat()
        return status.st_size, status.st_mtime_ns // 1_000_000
    with store_errors(path):
        found = path.files.get_file_info(path.key)
    if found.type != fs.FileType.File:
        raise FileNotFoundError(f"there is no `{path}`")
    return found.size or 0, (found.mtime_ns or time.time_ns()) // 1_000_000


def touch(path: LakePath, now: float) -> None:
    """Reset the age of a file that readers may have open. In a store, the time of its removal counts."""
    if isinstance(path, Path):
        os.utime(path, (now, now))


def copy_file(source: LakePath, target: LakePath) -> None:
    """Give a data file, which never changes, a second name."""
    if isinstance(source, ObjectPath):
        assert isinstance(target, ObjectPath)
        with store_errors(source):
            if source.root.startswith("s3://"):
                source.files.copy_file(source.key, target.key)
            else:  # `copy_file` of delta-rs 1.6 raises `TypeError`, and so does a write without a buffer
                copy = target.files.open_output_stream(target.key, buffer_size=1 << 20)
                with source.open() as file, copy:
                    shutil.copyfileobj(file, copy)
        return
    assert isinstance(target, Path)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, target)
    sync_path(target.parent)


def remove_tree(path: LakePath) -> None:
    """Remove everything below a location."""
    if isinstance(path, Path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with store_errors(path):
        found = path.files.get_file_info(fs.FileSelector(path.key, recursive=True, allow_not_found=True))
    for one in found:
        if one.type == fs.FileType.File:
            (path / one.path.removeprefix(f"{path.key}/")).unlink(missing_ok=True)


def _setting(given: dict[str, str], name: str) -> str:
    return given.get(name) or os.environ.get(name, "")


def _handler(root: str, options: dict[str, str]) -> fs.PyFileSystem:
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(root, options))


@lru_cache(maxsize=8)
def _filesystem(root: str, options: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    """The files of a bucket. Arrow's own client does not stop the other threads of a server while it waits, as that of delta-rs does."""
    given = dict(options)
    if not root.startswith("s3://"):
        return _handler(root, given)
    key = _setting(given, "AWS_ACCESS_KEY_ID")
    if key:  # else its client asks the network for a region that nothing needs
        os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    endpoint = urlsplit(_setting(given, "AWS_ENDPOINT_URL"))
    return fs.S3FileSystem(
        access_key=key or None,
        secret_key=_setting(given, "AWS_SECRET_ACCESS_KEY") or None,
        session_token=_setting(given, "AWS_SESSION_TOKEN") or None,
        region=_setting(given, "AWS_REGION") or _setting(given, "AWS_DEFAULT_REGION") or "us-east-1",
        scheme=endpoint.scheme or "https",
        endpoint_override=endpoint.netloc or None,
        connect_timeout=5,
        request_timeout=30,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
    )
