"""A journal to read, for the tests of the source and its locations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.journals import Written


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Thirty rows: ten sealed twice, ten hot."""
    journal = Written(tmp_path / "data")
    for _ in range(2):
        journal.add(10)
        journal.seal()
    journal.add(10)
    return journal
