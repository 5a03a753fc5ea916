"""Rules for `bench queue --triggers`: none, many that fit nothing, many that are looked at closely, and one that fires."""

from __future__ import annotations

from collections.abc import Iterator

_HEAD = """
streams:
  perStreamCaps: {told: {maxDepth: 1000, overflow: drop-oldest}}
triggers:
"""


def _rule(number: int, when: str, limits: str = "") -> str:
    do = 'do: [{action: notify, to: told, payload: {ref: "${env.id}"}}]'
    return f"  - {{id: r{number}, when: {{{when}}}, {do}{limits}}}\n"


def rulebooks() -> Iterator[tuple[str, str]]:
    """What each is called, and its config."""
    yield "no triggers", "streams: {}\n"
    yield "100 of other types", _HEAD + "".join(_rule(n, f"type: other.{n}") for n in range(100))
    yield "100 of other streams", _HEAD + "".join(_rule(n, f'to: "other/{n}/*"') for n in range(100))
    yield (
        "10 that read each envelope",
        _HEAD + "".join(_rule(n, f"type: bench.load, headers: {{n: {n}}}") for n in range(10)),
    )
    yield (
        "1 in its cooldown",
        _HEAD + _rule(0, "type: bench.load", ", limits: {cooldownMs: 60000}"),
    )
    yield "1 that fires on each", _HEAD + _rule(0, "type: bench.load")
