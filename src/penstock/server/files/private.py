"""Files that hold secrets."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_private(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Replace a file by one that nobody else could ever read; with `sync`, it survives a power cut from then on."""
    # A new file under a name nobody could have prepared, then a rename: readers see the old token or the new.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # O_EXCL also refuses a link that is already there.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(descriptor)
        draft.replace(path)
        if sync:
            _sync_folder(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
