"""A data directory with tables, and commands on it in this process."""

from __future__ import annotations

import shutil

import pytest

from penstock.cli import main
from penstock.spark.lake.table import LakeTable, Progress
from tests.spark.lakes import APP, COUNTS, NOTES, counts, notes


@pytest.fixture(scope="package")
def built(tmp_path_factory):
    """A lake that tests copy: making one takes longer than most of them."""
    folder = tmp_path_factory.mktemp("lake") / "lake"
    for number in range(5):
        span = {APP: Progress(number, number + 1)}
        LakeTable(folder, NOTES).append(notes(number, number + 1), span)
        LakeTable(folder, COUNTS).merge(counts({("a", 0): number, (f"b{number}", 0): 1}), span)
    return folder


@pytest.fixture
def data(built, tmp_path):
    """A data directory with two tables of five commits each."""
    shutil.copytree(built, tmp_path / "lake")
    return tmp_path


@pytest.fixture
def cli(tmp_path, capsys):
    """A command on the directory of the test; what it printed."""

    def run(*words, code=0, at=tmp_path):
        capsys.readouterr()
        assert main([*words, "--data", str(at)]) == code, capsys.readouterr()
        return capsys.readouterr()

    return run
