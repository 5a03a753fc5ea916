"""The examples of the reference page run, and its numbers equal those of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.dialects.streamservice import capnp_segments, encode, relay_memory, signatures
from tests.docs.documents import ROOT, blocks

PAGE = "docs/reference/token-streams.md"


def test_the_examples_run() -> None:
    names: dict[str, Any] = {}
    examples = blocks(PAGE)
    assert len(examples) == 3
    for _, code in examples:
        exec(compile(code, PAGE, "exec"), names)


def test_the_bounds_are_those_of_the_code() -> None:
    text = " ".join(Path(ROOT / PAGE).read_text().split())
    for said, bound in (
        (f"{capnp_segments.SEGMENTS_MAX} segments", True),
        (f"{encode.DEPTH_MAX} pointers in a row", True),
        ("no more visits than four times", capnp_segments.VISITS == 4),
        (f"at most {signatures.ENVELOPE_MAX // 1024} KiB", True),
        (f"{relay_memory.SIGNER_NONCES_MAX:,} nonces of one signer and {relay_memory.NONCES_MAX:,} in all", True),
        ("at most 5 minutes old", relay_memory.AGE_MAX_MS == 300_000),
        ("at most 30 seconds ahead", relay_memory.SKEW_MAX_MS == 30_000),
        ("a day from now", signatures.LIFETIME_MAX_S == 86_400),
        ("greater than 10^11", signatures.MILLISECONDS_FROM == 10**11),
    ):
        assert said in text, said
        assert bound, said
