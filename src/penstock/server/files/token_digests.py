"""Tokens as their sha256, the only form in which they are kept."""

from __future__ import annotations

import hashlib
import re

SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
"""A token that was written down as its digest."""
PLAIN = re.compile(r"[!-~]+")
"""What a token may be made of: it has to fit into a header."""


def digest_of(token: str) -> str:
    """The sha256 of a token in hex; a text that already is `sha256:<hex>` gives that."""
    if SHA256.fullmatch(token):
        return token.removeprefix("sha256:")
    return hashlib.sha256(token.encode()).hexdigest()


def token_problem(token: str) -> str | None:
    """What is wrong with a token that somebody configured, without saying it."""
    if token.startswith("sha256:") and not SHA256.fullmatch(token):
        return "expected 64 lower case hexadecimal digits after `sha256:`"
    if not PLAIN.fullmatch(token) or not token.strip("*"):
        return "expected printable ASCII without spaces, and more than asterisks"
    return None
