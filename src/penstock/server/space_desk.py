"""What the person who runs the server may ask and do about its spaces."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import Refusal
from penstock.server.desk import Ask
from penstock.server.spaces import Spaces


def spaces_shown(spaces: Spaces, ask: Ask) -> dict[str, Any] | Refusal:
    """Every space, or the one that is asked for."""
    wanted = ask.query.space
    found = [each for each in spaces.describe() if wanted in (None, each["id"])]
    if wanted is not None and not found:
        return Refusal("UnknownStream", f"there is no space `{wanted}`", ref="space")
    return {"spaces": found}
