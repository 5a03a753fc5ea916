"""The format of a backup: a directory or a tar file with a manifest of its files.

A backup is written under a name that ends in `.part` and renamed when it is complete, so a partial backup is never taken for a whole
one. Existing files are never overwritten. A file that the manifest does not name is not part of the backup.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from penstock.core.errors import PenstockError, Refusal
from penstock.journal.disk import sync_path

MANIFEST = "backup.json"
MANIFEST_MAX = 256 * 1024 * 1024
"""A manifest has about 150 bytes for each file; a larger one is not read."""
FORMAT = 1
TARS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
PIECE = 1024 * 1024


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a backup."""

    bytes: int
    sha256: str


class BackupManifest(msgspec.Struct):
    """The contents of a backup."""

    penstock: str
    """The version that wrote it."""
    journal: str
    epoch: int
    end: int
    """The offset behind its last row."""
    made_at: str
    files: dict[str, BackupFile]
    format: int = FORMAT


def refused(message: str, hint: str) -> PenstockError:
    return PenstockError(Refusal("InvalidRequest", message, hint=hint))


class DigestReader:
    """Reads the first `size` bytes of a file and computes their digest."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        if len(data) < wanted:
            raise OSError("the file became shorter during the copy")
        self._left -= wanted
        self.digest.update(data)
        return data


class _Directory:
    """A backup as a directory. `finish` makes it durable under its final name, `abandon` removes what was written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._part.mkdir(mode=0o700, parents=True)

    def add(self, name: str, file: DigestReader, size: int) -> None:
        place = self._part / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(place, file, size)

    def finish(self) -> None:
        sync_path(self._part)
        self._part.rename(self._path)  # replaces an empty directory, and fails on anything else
        sync_path(self._path.parent)

    def abandon(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)


class _Tar:
    """The same as a tar file."""

    def __init__(self, path: Path, mode: str) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._tar = tarfile.TarFile.open(fileobj=self._file, mode=mode, format=tarfile.PAX_FORMAT)  # type: ignore[call-overload]
        self._now = int(time.time())

    def add(self, name: str, file: DigestReader, size: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, 0o600, self._now
        self._tar.addfile(info, file)

    def finish(self) -> None:
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if os.path.lexists(self._path):
            raise FileExistsError(17, "another process took the name")
        self._part.rename(self._path)
        sync_path(self._path.parent)

    def abandon(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


def write_file(place: Path, file: DigestReader, size: int) -> None:
    """Write `size` bytes to a new file and sync it."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        while size > 0:
            piece = file.read(min(PIECE, size))
            if not piece:
                raise OSError(f"`{place.name}` is too short")
            out.write(piece)
            size -= len(piece)
        out.flush()
        os.fsync(out.fileno())


def tar_mode(path: Path) -> str | None:
    """The mode of `tarfile` for this name; None for a directory."""
    return next((mode for ending, mode in TARS.items() if path.name.endswith(ending)), None)


def is_taken(path: Path) -> bool:
    """Whether the path exists; an empty directory does not count."""
    if path.is_symlink() or not path.is_dir():
        return os.path.lexists(path)
    return next(path.iterdir(), None) is not None


def open_target(path: Path) -> _Directory | _Tar:
    """Open a new backup; refuses an existing path."""
    mode = tar_mode(path)
    draft = path.with_name(path.name + ".part")
    if is_taken(path) or (mode is not None and path.is_dir()):
        raise refused(f"`{path}` already exists", "choose another name; a backup never overwrites files")
    if os.path.lexists(draft):
        hint = "another backup is writing it; if none is running, remove it"
        raise refused(f"`{draft}` already exists", hint)
    try:
        return _Directory(path) if mode is None else _Tar(path, mode)
    except OSError as error:
        raise refused(f"cannot write `{path}`: {error.strerror}", "choose another target") from None


class BackupWriter:
    """A backup in progress; collects sizes and digests for its manifest."""

    def __init__(self, target: _Directory | _Tar) -> None:
        self._target = target
        self.files: dict[str, BackupFile] = {}
        self.bytes = 0

    def file(self, name: str, path: Path) -> None:
        """Add a file at its present size, unless it no longer exists."""
        try:
            # A link could lead to a file that only the user of this command can read.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "rb") as source:
            self._add(name, source, os.fstat(descriptor).st_size)

    def data(self, name: str, data: bytes | memoryview) -> None:
        self._add(name, io.BytesIO(data), len(data))

    def _add(self, name: str, source: BinaryIO, size: int) -> None:
        counted = DigestReader(source, size)
        self._target.add(name, counted, size)
        self.files[name] = BackupFile(size, counted.digest.hexdigest())
        self.bytes += size

    def drop(self, name: str) -> None:
        """Leave a file out of the manifest."""
        self.files.pop(name, None)

    def finish(self, manifest: BackupManifest) -> None:
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._target.add(MANIFEST, DigestReader(io.BytesIO(data), len(data)), len(data))
        self._target.finish()


class BackupReader:
    """A backup to restore from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar: tarfile.TarFile | None = None
        hint = f"name a directory or tar file written by `penstock backup`; it contains `{MANIFEST}`"
        try:
            if not path.is_dir():
                self._tar = tarfile.open(path, "r:*")  # noqa: SIM115
            with self._open(MANIFEST) as file:
                data = file.read(MANIFEST_MAX)
            self.manifest = msgspec.json.decode(data, type=BackupManifest)
        except (OSError, KeyError, tarfile.TarError, EOFError, msgspec.DecodeError) as error:
            self.close()
            raise refused(f"`{path}` is not a complete backup: {error}", hint) from None
        if self.manifest.format > FORMAT:
            self.close()
            raise refused(
                f"the backup is of format {self.manifest.format}", "restore it with the version that wrote it"
            )

    def _open(self, name: str) -> BinaryIO:
        if self._tar is None:
            return (self.path / name).open("rb")
        file = self._tar.extractfile(name)
        if file is None:
            raise KeyError(name)
        return file  # type: ignore[return-value]

    def files(self) -> Iterator[tuple[str, BackupFile, BinaryIO]]:
        """The files of the manifest, in the order in which they were written."""
        for name, entry in self.manifest.files.items():
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts or place.as_posix() != name or "\0" in name:
                raise refused(f"the backup names `{name}`", "`penstock backup` did not write this backup")
            try:
                file = self._open(name)
            except (OSError, KeyError):
                raise refused(f"`{name}` is missing from the backup", "use another backup") from None
            with file:
                yield name, entry, file

    def close(self) -> None:
        if self._tar is not None:
            self._tar.close()
