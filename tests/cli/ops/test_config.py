"""`penstock config`: check, show and document a config, and make a server reload it."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.cli import main


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """No setting of the developer, and no server in the directory."""
    for name in ("COURIER_CONFIG", "COURIER_MAX_DEPTH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.promise("SDK and command line", "`config check`, `show` and `doc` work")
def test_config_check(tmp_path, capsys):
    good = tmp_path / "good.yaml"
    good.write_text("streams:\n  maxDepth: 10\n")
    assert main(["config", "check", str(good)]) == 0
    assert "valid" in capsys.readouterr().out
    bad = tmp_path / "bad.yaml"
    bad.write_text("streems: {}\n")
    assert main(["config", "check", str(bad), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False and "streems" in report["problems"][0]


@pytest.mark.promise("SDK and command line", "`config check`, `show` and `doc` work")
def test_config_show_masks_and_doc_prints(tmp_path, capsys):
    file = tmp_path / "c.yaml"
    file.write_text("auth:\n  tokens:\n    - {name: t, token: sesame, scopes: ['streams:*:*']}\n")
    assert main(["config", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "maxDepth" in shown and "sesame" not in shown
    assert main(["config", "show", str(file), "--json"]) == 0
    assert "streams" in json.loads(capsys.readouterr().out)
    assert main(["config", "doc"]) == 0
    assert "maxDepth" in capsys.readouterr().out


def test_every_problem_and_notice_is_a_line(tmp_path, capsys, monkeypatch):
    bad = tmp_path / "bad.yaml"
    bad.write_text("streams: {maxDepth: many}\nstreems: {}\n")
    assert main(["config", "check", str(bad)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.startswith("problem: ") for line in lines)
    monkeypatch.setenv("COURIER_NO_SUCH_SETTING", "1")
    assert main(["config", "check"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("notice: ") and "COURIER_NO_SUCH_SETTING" in first and last == "the config is valid"


def test_an_invalid_config_is_not_shown(tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    bad.write_text("streems: {}\n")
    assert main(["config", "show", str(bad), "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["code"] == "InvalidConfig"
    assert shown.err.startswith("error: InvalidConfig: ") and "hint: see `penstock config doc`" in shown.err
    assert main(["config", "show", str(bad)]) == 1
    assert capsys.readouterr().out == ""


def test_the_file_may_be_named_by_the_environment(tmp_path, capsys, monkeypatch):
    file = tmp_path / "c.yaml"
    file.write_text("streams: {maxDepth: 77}\n")
    monkeypatch.setenv("COURIER_CONFIG", str(file))
    assert main(["config", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["streams"]["maxDepth"] == 77


def test_the_reference_is_markdown_also_inside_json(capsys):
    assert main(["config", "doc", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["markdown"]
    assert text.startswith("#") and "maxDepth" in text


@pytest.mark.promise("Limits, reload and HTTP details", "a reload applies all or nothing and reports every problem")
def test_the_command_tells_what_changed(start_server, capsys):
    server = start_server(config="streams: {maxDepth: 3}")
    file, words = server.folder / "config.yaml", ["config", "reload", "--data", str(server.data)]
    file.write_text("streams: {maxDepth: 4}\njournal: {linger_us: 7}")
    assert main(words) == 0
    assert capsys.readouterr().out == "changed: streams.maxDepth\nafter a restart: journal.linger_us\n"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"changed": [], "restart": ["journal.linger_us"], "closed": 0}
    file.write_text("streams: 5")
    assert main([*words, "--json"]) == 1
    assert msgspec.json.decode(capsys.readouterr().out)["error"]["code"] == "InvalidConfig"


def test_without_a_server_there_is_nothing_to_reload(tmp_path, capsys):
    assert main(["config", "reload", "--data", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: Unreachable: no server runs on `{tmp_path}`")


@pytest.mark.promise(
    "Operations", "`config check` loads the files of tables and names the file, the line and the error"
)
def test_a_table_file_that_cannot_load_is_a_problem_with_its_line(tmp_path, capsys):
    (tmp_path / "torn.py").write_text("from penstock.spark import table\n\n@table(\n")
    (tmp_path / "asks.py").write_text("import penstock\n\nimport no_such_module_anywhere\n")
    (tmp_path / "fine.py").write_text("from penstock.spark import table\n@table()\ndef fine(events): return events\n")
    (tmp_path / "query.py").write_text("x = 1 / 0\n")
    file = tmp_path / "c.yaml"
    file.write_text("pipeline: {tables: [torn.py, asks.py, fine.py, fine.py, gone.py], queries: [query.py]}\n")
    assert main(["config", "check", str(file), "--json"]) == 3
    problems = json.loads(capsys.readouterr().out)["problems"]
    for problem, wanted in zip(
        problems,
        (
            "pipeline.tables[0]: `torn.py`, line 3, cannot be loaded: SyntaxError",
            "pipeline.tables[1]: `asks.py`, line 3, cannot be loaded: ModuleNotFoundError: No module named",
            "pipeline.tables[3]: `fine.py`: there is already a table `fine`",
            "pipeline.tables[4]: `pipeline.tables` names `gone.py`, which does not exist",
            "pipeline.queries: `query.py`, line 1, cannot be loaded: ZeroDivisionError",
        ),
        strict=True,
    ):
        assert problem.startswith(wanted), problem
