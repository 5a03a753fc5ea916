"""The command line does not load heavy modules, and some commands work without a server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import penstock
from penstock.cli import build, main
from tests.server_process import environment

LOG = [["log", name] for name in ("ls", "cat", "check", "seal", "readers")]
PIPELINE = [["pipeline", name] for name in ("run", "status", "wait", "reset", "rebuild", "backfill")]
PRINT = [["print", name] for name in ("systemd", "container", "alerts", "dashboard", "metrics", "http", "cli")]
LAKE = [["lake", name] for name in ("ls", "history", "compact", "vacuum")]
HEAVY = ("aiohttp", "penstock.server", "penstock.transports", "penstock.journal", "uvloop", "yaml")


@pytest.mark.parametrize(
    "words", [["stats"], ["send", "a", "b"], ["inbox", "--as", "a"], ["--help"], ["where", "x"], ["console"]]
)
def test_client_commands_never_load_the_server(words):
    script = (
        "import sys; from penstock.cli import main; main(sys.argv[1:]);"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        env=environment(PENSTOCK_URL="tcp://127.0.0.1:1"),
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.promise("SDK and command line", "every command supports `--json`")
def test_every_command_has_json_help_and_an_example(capsys):
    families = {
        "bench",
        "cluster",
        "config",
        "gateway",
        "lake",
        "log",
        "pipeline",
        "print",
        "schema",
        "space",
        "token",
        "trigger",
    }  # these hold commands and are none themselves
    names = [name for name in build().resolved_commands() if not name.startswith("-") and name not in families]
    for words in (
        [[name] for name in names]
        + [["config", name] for name in ("check", "show", "doc")]
        + [["gateway", "start"]]
        + [["cluster", name] for name in ("import", "export")]
        + LOG
        + LAKE
        + PIPELINE
        + PRINT
        + [["schema", name] for name in ("ls", "check", "validate")]
        + [["space", name] for name in ("ls", "tail", "send", "open-stream", "invite", "kick")]
        + [["token", name] for name in ("new", "ls", "revoke", "curve-keygen", "signer-keygen")]
        + [["trigger", name] for name in ("ls", "explain", "put", "rm", "try")]
    ):
        assert main([*words, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--json" in shown and "For example:" in shown and "penstock " in shown.split("For example:")[1]


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == penstock.__version__


def test_doctor_fails_on_a_bad_config(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad = tmp_path / "bad.yaml"
    bad.write_text("streems: {}\n")
    assert main(["doctor", "--config", str(bad), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert {"python", "config", "data directory", "disk sync", "clock", "java", "server"} <= {
        check["check"] for check in report["checks"]
    }


def test_control_characters_do_not_reach_the_terminal(capsys):
    from penstock.cli.output import print_line

    print_line("a\x1b[31mb")
    assert "\x1b" not in capsys.readouterr().out


def test_names_of_the_package_load_on_demand():
    script = "import sys, penstock; print('penstock.client' in sys.modules, penstock.PenstockError.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["False", "PenstockError"]
    with pytest.raises(AttributeError):
        _ = penstock.nothing
    assert "connect" in dir(penstock)


def test_the_list_of_commands_says_what_each_is_for(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("up", "send", "doctor"):
        [line] = [line for line in shown.splitlines() if line.startswith(f"│ {name} ")]
        assert len(line.strip("│ ").split()) > 2


@pytest.mark.promise("SDK and command line", "a server loads no data-frame library")
@pytest.mark.parametrize(("command", "loaded"), [("config", "False"), ("pipeline", "True")])
def test_only_what_may_run_spark_loads_pandas(command, loaded):
    """pyarrow would load it for the first row that a server writes."""
    script = (
        "import sys; from penstock.cli import main; main();"
        "import pyarrow; pyarrow.array([1]); print('pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, command, "--help"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == loaded, done.stderr
