"""A copy of a data directory as a thing of its own: a directory, or a tar file, with a manifest of what it holds.

Written under a name that ends in `.part` and renamed when it is whole, so that half a copy never passes for one. Nothing that is
there already is written over. What the manifest does not name is no part of the copy.
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
from typing import BinaryIO, Protocol

import msgspec

from penstock.core.errors import PenstockError, Refusal

MANIFEST = "backup.json"
MANIFEST_MAX = 256 * 1024 * 1024
"""A manifest has about 150 bytes for each file; more than this is none."""
FORMAT = 1
TARS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
PIECE = 1024 * 1024


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a copy."""

    bytes: int
    sha256: str


class BackupManifest(msgspec.Struct):
    """What a copy holds."""

    penstock: str
    """The version that made it."""
    journal: str
    epoch: int
    end: int
    """Rows before this are in it."""
    made_at: str
    files: dict[str, BackupFile]
    format: int = FORMAT


def refused(message: str, hint: str) -> PenstockError:
    return PenstockError(Refusal("InvalidRequest", message, hint=hint))


class DigestReader:
    """Reads a file to the size it had, and takes its digest on the way."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        if len(data) < wanted:
            raise OSError("the file became shorter while it was copied")
        self._left -= wanted
        self.digest.update(data)
        return data


class BackupTarget(Protocol):
    """Where a copy goes."""

    def add(self, name: str, file: DigestReader, size: int) -> None: ...

    def finish(self) -> None:
        """Make it durable under its own name."""

    def abandon(self) -> None:
        """Leave nothing behind."""


class _Directory:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._part.mkdir(mode=0o700, parents=True)

    def add(self, name: str, file: DigestReader, size: int) -> None:
        place = self._part / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(place, file, size)

    def finish(self) -> None:
        sync_folder(self._part)
        self._part.rename(self._path)  # an empty directory may be there, and nothing else
        sync_folder(self._path.parent)

    def abandon(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)


class _Tar:
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
            raise FileExistsError(17, "somebody took the name meanwhile")
        self._part.rename(self._path)
        sync_folder(self._path.parent)

    def abandon(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


def write_file(place: Path, file: DigestReader, size: int) -> None:
    """A new file with so many bytes of another, on the disk."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        while size > 0:
            piece = file.read(min(PIECE, size))
            if not piece:
                raise OSError(f"`{place.name}` ends too early")
            out.write(piece)
            size -= len(piece)
        out.flush()
        os.fsync(out.fileno())


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tar_mode(path: Path) -> str | None:
    """How to write a tar file of this name; None for a directory."""
    return next((mode for ending, mode in TARS.items() if path.name.endswith(ending)), None)


def is_taken(path: Path) -> bool:
    """Whether something is there that must not be written over; an empty directory is nothing."""
    if path.is_symlink() or not path.is_dir():
        return os.path.lexists(path)
    return next(path.iterdir(), None) is not None


def open_target(path: Path) -> BackupTarget:
    """A place for a copy, if nothing is there."""
    mode = tar_mode(path)
    draft = path.with_name(path.name + ".part")
    if is_taken(path) or (mode is not None and path.is_dir()):
        raise refused(f"`{path}` is there already", "choose another name: nothing is written over")
    if os.path.lexists(draft):
        hint = "another backup writes it, or one was cut off: then remove it"
        raise refused(f"`{draft}` is there already", hint)
    try:
        return _Directory(path) if mode is None else _Tar(path, mode)
    except OSError as error:
        raise refused(f"cannot write `{path}`: {error.strerror}", "choose another place") from None


class BackupWriter:
    """A copy that is being made: files go in, their sizes and digests into the manifest."""

    def __init__(self, target: BackupTarget) -> None:
        self._target = target
        self.files: dict[str, BackupFile] = {}
        self.bytes = 0

    def file(self, name: str, path: Path) -> bool:
        """Add a file as long as it is now; False when it is not there any more."""
        try:
            source = path.open("rb")
        except FileNotFoundError:
            return False
        with source:
            self._add(name, source, os.fstat(source.fileno()).st_size)
        return True

    def data(self, name: str, data: bytes | memoryview) -> None:
        self._add(name, io.BytesIO(data), len(data))

    def _add(self, name: str, source: BinaryIO, size: int) -> None:
        counted = DigestReader(source, size)
        self._target.add(name, counted, size)
        self.files[name] = BackupFile(size, counted.digest.hexdigest())
        self.bytes += size

    def drop(self, name: str) -> None:
        """Leave out what is gone since, if it was copied at all."""
        self.files.pop(name, None)

    def finish(self, manifest: BackupManifest) -> None:
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._target.add(MANIFEST, DigestReader(io.BytesIO(data), len(data)), len(data))
        self._target.finish()


class BackupReader:
    """A copy to restore from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar: tarfile.TarFile | None = None
        hint = f"name a directory or a tar file that `penstock backup` made; it holds `{MANIFEST}`"
        try:
            if not path.is_dir():
                self._tar = tarfile.open(path, "r:*")  # noqa: SIM115
            with self._open(MANIFEST) as file:
                data = file.read(MANIFEST_MAX)
            self.manifest = msgspec.json.decode(data, type=BackupManifest)
        except (OSError, KeyError, tarfile.TarError, EOFError, msgspec.DecodeError) as error:
            self.close()
            raise refused(f"`{path}` is no whole backup: {error}", hint) from None
        if self.manifest.format > FORMAT:
            self.close()
            raise refused(
                f"the backup is of format {self.manifest.format}", "restore it with the version that made it"
            )

    def _open(self, name: str) -> BinaryIO:
        if self._tar is None:
            return (self.path / name).open("rb")
        file = self._tar.extractfile(name)
        if file is None:
            raise KeyError(name)
        return file  # type: ignore[return-value]

    def files(self) -> Iterator[tuple[str, BackupFile, BinaryIO]]:
        """Every file of the manifest, in the order it was written."""
        for name, entry in self.manifest.files.items():
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts or place.as_posix() != name:
                raise refused(f"the backup names `{name}`", "this is not a backup that Penstock made")
            try:
                file = self._open(name)
            except (OSError, KeyError):
                raise refused(f"`{name}` is missing from the backup", "use another one") from None
            with file:
                yield name, entry, file

    def close(self) -> None:
        if self._tar is not None:
            self._tar.close()
