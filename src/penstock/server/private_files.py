"""Files that hold secrets."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Replace a file by one that nobody else could ever read."""
    # A new file under a name nobody could have prepared, then a rename: readers see the old token or the new.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # O_EXCL also refuses a link that is already there.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
