"""Compiles `penstock_native.c` for the wheel, and says why that is not possible here.

python native/hatch_build.py    # exit code 0: it can be built; 1: the reason is printed
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

FLAGS = ("-std=c99", "-O3", "-Wall", "-Wextra", "-fPIC", "-shared")
ON_MACOS = ("-undefined", "dynamic_lookup")
SOURCE = Path(__file__).with_name("penstock_native.c")


def compiler() -> list[str]:
    """The C compiler: `CC`, or the one of the system; empty if there is none."""
    chosen = shlex.split(os.environ.get("CC", ""))
    names = (chosen,) if chosen else (["cc"], ["gcc"], ["clang"])
    return next((words for words in names if shutil.which(words[0])), [])


def missing() -> str | None:
    """Why the extension cannot be built on this machine."""
    if not compiler():
        return "there is no C compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the headers of Python are missing"
    return None


def compile_to(target: Path, *flags: str) -> None:
    """Compile the extension; raises a `CalledProcessError` if the compiler fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    system = ON_MACOS if sys.platform == "darwin" else ()
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([*compiler(), *FLAGS, *system, *flags, include, str(SOURCE), "-o", str(target)], check=True)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program, before anything is installed
    pass
else:

    class NativeBuildHook(BuildHookInterface):
        """Adds the compiled module to the wheel."""

        def initialize(self, version, build_data):
            if (reason := missing()) is not None:
                raise RuntimeError(f"penstock-native cannot be built: {reason}")
            target = Path(self.root, "build", f"penstock_native{sysconfig.get_config_var('EXT_SUFFIX')}")
            compile_to(target)
            build_data["force_include"][str(target)] = target.name
            build_data["pure_python"], build_data["infer_tag"] = False, True


if __name__ == "__main__" and (reason := missing()) is not None:
    print(reason)
    raise SystemExit(1)
