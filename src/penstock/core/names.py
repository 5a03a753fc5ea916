"""The one rule for names of streams and agents. Server, SDK, command line, triggers and config refuse the same names with the same words."""
# size: two rules and their words

from __future__ import annotations

import re

from penstock.core.errors import Refusal

AGENT_FORM = "a name without `/`, `:`, `*` or spaces"
"""Of agents and tenants: each is one segment of stream names."""
_AGENT = re.compile(r"[^/:*\s]+")


def stream_form(limit: int | None = None) -> str:
    """What a stream name looks like. Only a server knows the limit of its length, `limits.name_max`."""
    return f"a stream name has {f'1 to {limit} ' if limit else ''}printable characters, without `:` and `*`"


def is_stream(name: str, limit: int | None = None, *, is_pattern: bool = False) -> bool:
    """Whether a text can name a stream; a pattern may also have stars."""
    is_long = limit is not None and len(name) > limit
    return bool(name) and not is_long and name.isprintable() and ":" not in name and (is_pattern or "*" not in name)


def is_agent(name: str) -> bool:
    """Whether a text can name an agent or a tenant."""
    return _AGENT.fullmatch(name) is not None and name.isprintable()


def stream_problem(name: str, limit: int | None = None) -> Refusal | None:
    """Why a text does not name a stream."""
    if is_stream(name, limit):
        return None
    message = f"{_shown(name)} is not a stream name: {stream_form(limit)}"
    return Refusal("InvalidRequest", message, ref="stream", hint="use a name such as `jobs/images`")


def agent_problem(name: str, ref: str = "agent") -> Refusal | None:
    """Why a text does not name an agent."""
    if is_agent(name):
        return None
    message = f"{_shown(name)} is not an agent's name, which is {AGENT_FORM}"
    return Refusal("InvalidRequest", message, ref=ref, hint="use a name such as `sam` or `sensor-1`")


def address_problem(to: str) -> Refusal | None:
    """Why a text addresses neither a stream nor, without a `/`, an agent."""
    return stream_problem(to) if "/" in to else agent_problem(to, "stream")


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 80 else name[:79] + "…")
