"""Secrets at rest: private files, and tokens as their sha256, the only form in which the server keeps them."""

# size: small on purpose; everything that touches a secret on disk is here.

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from pathlib import Path

from penstock.journal.disk import sync_path
from penstock.server.files.yaml_tree import ConfigError

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


def make_private_folder(folder: Path) -> None:
    """Make a directory for secrets. Raises ConfigError if another user could have planted or could replace its files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise ConfigError([f"`{folder}` belongs to another user; hint: remove it, or start the server as its owner"])
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError([f"other users may write to `{folder}`; hint: remove it, or run `chmod 700` on it"])


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
            sync_path(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
