"""A data directory with a few minutes of work, for the tests of the queries."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.spark.journal_builder import COPIES, STRICT, JournalBuilder, rule, speak, talk, work


@pytest.fixture(scope="session")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a few minutes of work in it, half of it sealed; tests that change it copy it."""
    data = tmp_path_factory.mktemp("worked")
    story = JournalBuilder(data)
    rule(story, COPIES, STRICT)
    work(story, 1)
    rule(story)
    talk(story, 0)
    speak(story, 0)
    work(story, 1)
    story.seal()
    talk(story, 2)
    speak(story, 1)
    work(story, 2)
    story.wait(120)
    story.close()
    return data


@pytest.fixture
def data(worked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(worked, tmp_path / "data"))
