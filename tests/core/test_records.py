"""Texts that many records share."""

from __future__ import annotations

from penstock.core import records
from penstock.core.records import SHARED_LENGTH_MAX, SHARED_MAX, shared


def test_texts_of_peers_are_kept_once_and_not_for_ever() -> None:
    first, second = "".join(["no", "te"]), "".join(["not", "e"])
    assert shared(first) is shared(second)
    for number in range(2 * SHARED_MAX):
        shared(f"type-{number}")
    assert len(records._shared) <= SHARED_MAX
    long = "x" * (SHARED_LENGTH_MAX + 1)
    assert shared(long) is long
    assert long not in records._shared
