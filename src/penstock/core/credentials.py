"""Tokens as text: 256 bits in letters that need no escape in an address, a header or a shell.

None begins with a dash: `--token -x…` would be taken for two options.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode

TOKEN_BYTES = 32


def token_text(entropy: bytes) -> str:
    """A token made of these random bytes."""
    text = urlsafe_b64encode(entropy).rstrip(b"=").decode()
    return "p" + text[1:] if text.startswith("-") else text
