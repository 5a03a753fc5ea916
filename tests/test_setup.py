"""`make setup`: one line a step, and the output of pip and npm only after a failure. Stand-ins do the work."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.paths import ROOT

PYTHON = """\
#!/bin/sh
case "$1" in
  --version) echo "Python 3.12.0" ;;
  -c) exit 0 ;;
  native/*) test -z "$NO_COMPILER" || { echo "there is no C compiler"; exit 1; } ;;
  -m) if [ "$2" = venv ]; then mkdir -p .venv/bin; cp "$0" .venv/bin/python; exit; fi
      seq -f "pip line %g" 100
      case "$*" in *require-hashes*) test -z "$PIP_FAILS" ;; *./native*) test -z "$COMPILER_FAILS" ;; esac ;;
esac
"""
NPM = '#!/bin/sh\necho "npm did $1"; test -z "$NPM_FAILS"\n'
NODE = '#!/bin/sh\nif [ "$1" = -p ]; then echo true; else echo v22.0.0; fi\n'
STEPS = ["building", "1/3", "2/3", "3/3", "ready:", "compiling"]


@pytest.fixture
def make(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {"python3": PYTHON, "npm": NPM, "node": NODE}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "console").mkdir()
    (tmp_path / "src/penstock/console").mkdir(parents=True)

    def run(**env):
        path = f"{tools}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return subprocess.run(
            ["make", "setup"],
            cwd=tmp_path,
            env=kept | {"PATH": path} | env,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.promise("Operations", "`make setup` prints a line for each step, and the end of its log after a failure")
def test_a_setup_prints_one_line_a_step(make, tmp_path):
    done = make()
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == sorted(STEPS)
    assert "pip line 100" in (tmp_path / "build/setup.log").read_text()
    assert "npm did run" in (tmp_path / "build/console.log").read_text()
    again = make()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_a_failure_shows_the_end_of_the_log_and_where_the_rest_is(make):
    done = make(PIP_FAILS="1")
    assert done.returncode != 0
    assert "pip line 100\nthe whole output: build/setup.log\nerror: could not install" in done.stderr
    assert "pip line 1\n" not in done.stderr


def test_a_console_that_cannot_be_built_is_a_warning(make):
    done = make(NPM_FAILS="1")
    assert done.returncode == 0
    assert "npm did ci\nthe whole output: build/console.log\nwarning: could not build" in done.stderr


@pytest.mark.promise("Operations", "`make setup` says when the checks in C cannot be built, and works without them")
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"NO_COMPILER": "1"}, "==> the JSON checks run in Python: there is no C compiler\n"),
        (
            {"COMPILER_FAILS": "1"},
            "warning: could not compile native/penstock_native.c; the JSON checks run in Python\n",
        ),
    ],
)
def test_a_machine_without_a_c_compiler_is_set_up_all_the_same(make, env, said):
    done = make(**env)
    assert done.returncode == 0
    assert said in done.stdout + done.stderr
