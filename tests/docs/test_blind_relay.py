"""The security page addresses every flaw of the first description, each with tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.paths import ROOT
from tests.tidy.checks import coverage_gaps, coverage_rows

PAGE = ROOT / "docs/explain/blind-relay.md"
FLAWS = 25


def read(path: str) -> str | None:
    file = ROOT / path
    return file.read_text() if file.is_file() else None


@pytest.mark.promise("Token streams: publisher and reader", "every flaw of the first description is addressed")
def test_every_flaw_is_answered_and_its_tests_exist() -> None:
    text = PAGE.read_text()
    rows = [row for _, row in coverage_rows(text)]
    assert [int(re.match(r"\| (\d+) \|", row)[1]) for row in rows] == list(range(1, FLAWS + 1))  # type: ignore[index]
    assert all(re.search(r"\| [^|]*(fixed|kept)[^|]* \|", row) for row in rows)
    problems = [problem for problem in coverage_gaps(text, read) if problem.line]
    assert problems == []
