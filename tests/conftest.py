"""Settings shared by every test: property tests give the same verdict on every run, and Spark's tests share one session."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")

SPARK = (Path("tests/spark"), Path("tests/docs/test_pipeline_documents.py"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """With two workers (`-n 2`), one has every test that needs Spark, and so one session, and the other the rest."""
    place = item.path.relative_to(item.config.rootpath)
    if any(place.is_relative_to(part) for part in SPARK):
        item.add_marker(pytest.mark.xdist_group("spark"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's come first: they take as long as all the others together."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
