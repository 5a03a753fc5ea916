"""Restores a data directory from a backup: compares every byte with the manifest, audits the journal, then renames it into place.

Rows committed after the backup are lost, and readers may have seen them. So the journal continues in a new epoch, as after a recovery
that lost rows: readers notice it instead of taking new rows for those that they have seen.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.core.errors import PenstockError, Refusal
from penstock.journal.audit import Audit, audit
from penstock.journal.disk import RealDisk, sync_path
from penstock.journal.open_and_repair import (
    IDENTITY,
    WATERMARK,
    encode_watermark,
    read_identity,
    read_watermark,
    replace_file,
)
from penstock.server.ops.backup import Progress
from penstock.server.ops.backup_format import (
    BackupFile,
    BackupManifest,
    BackupReader,
    DigestReader,
    is_taken,
    refused,
    write_file,
)


def restore(source: Path, data: Path, progress: Progress | None = None) -> tuple[BackupManifest, Audit]:
    """Restore a backup to a data directory; returns its manifest and the audit of its journal."""
    if is_taken(data):
        raise refused(f"`{data}` is not empty", "choose another directory with --data, or move this one away")
    found = BackupReader(source)
    draft = data.with_name(f".{data.name}.{secrets.token_hex(4)}.part")
    try:
        draft.mkdir(mode=0o700, parents=True)
        _unpack(found, draft, progress)
        report = audit(draft)
        if not report.is_sound:
            first = report.findings[0]
            message = f"the journal of the backup is damaged: {first.place}: {first.what}"
            raise PenstockError(Refusal("JournalDamaged", message, hint="use another backup"))
        if report.journal != found.manifest.journal:
            raise refused("the manifest belongs to another journal", "use another backup")
        _begin_epoch(draft)
        sync_path(draft)
        draft.rename(data)  # replaces an empty directory, and fails on anything else
        sync_path(data.absolute().parent)
        return found.manifest, report
    except OSError as error:
        message = f"cannot write `{data}`: {error.strerror or error}"
        raise refused(message, "free some space or choose another directory; the partial restore was removed") from None
    finally:
        found.close()
        shutil.rmtree(draft, ignore_errors=True)


def _unpack(source: BackupReader, draft: Path, progress: Progress | None) -> None:
    total = sum(entry.bytes for entry in source.manifest.files.values())
    done = 0
    for name, entry, file in source.files():
        if name.split("/")[0] == "run":
            raise refused(f"the backup names `{name}`", "`penstock backup` did not write this backup")
        place = draft / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _one(name, entry, file, place)
        done += entry.bytes
        if progress is not None:
            progress(done, total)


def _one(name: str, entry: BackupFile, file: BinaryIO, place: Path) -> None:
    counted = DigestReader(file, entry.bytes)
    try:
        write_file(place, counted, entry.bytes)
        is_same = not file.read(1) and counted.digest.hexdigest() == entry.sha256
    except (OSError, EOFError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # an error of the target disk, not of the backup
        is_same = False
    if not is_same:
        raise refused(f"`{name}` does not match the digest in the manifest", "the backup is damaged; use another one")


def _begin_epoch(draft: Path) -> None:
    """Start a new epoch: from here on this is not the journal that continued elsewhere."""
    disk = RealDisk(draft / "journal")
    identity = read_identity(disk)
    assert identity is not None
    mark = read_watermark(disk)
    identity.epoch += 1
    replace_file(disk, IDENTITY, [msgspec.json.encode(identity)])
    if mark is not None:
        replace_file(disk, WATERMARK, [encode_watermark(mark[0], identity.epoch)])
    os.chmod(draft / "journal", 0o700)
