"""Secrets at rest: private files, and tokens as their sha256, the only form in which the server keeps them."""

# size: small on purpose; everything that touches a secret on disk is here.

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path

SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
"""A token in the form of its digest."""
PLAIN = re.compile(r"[!-~]+")
"""The characters of a token: it must fit into a header."""


def digest_of(token: str) -> str:
    """The sha256 of a token in hex; `sha256:<hex>` is returned without its prefix."""
    if SHA256.fullmatch(token):
        return token.removeprefix("sha256:")
    return hashlib.sha256(token.encode()).hexdigest()


def token_error(token: str) -> str | None:
    """Why a configured token is invalid, without quoting it; None when it is valid."""
    if token.startswith("sha256:") and not SHA256.fullmatch(token):
        return "expected 64 lower case hexadecimal digits after `sha256:`"
    if not PLAIN.fullmatch(token) or not token.strip("*"):
        return "expected printable ASCII without spaces, and more than asterisks"
    return None


def write_private(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Replace a file atomically by one that only its owner can read; with `sync`, make it durable."""
    # A new file with an unpredictable name, then a rename: readers see the old token or the new one.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # O_EXCL also refuses an existing symbolic link.
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
