"""`penstock trigger`: rules of a running server, from files, with what they would do."""

from __future__ import annotations

import json
import re

import pytest

from penstock.cli import main
from tests.integration.serving import Http


@pytest.fixture
def command(server, capsys):
    """Run `penstock trigger` on the server as its operator; what it printed."""
    token = (server.data / "run" / "operator.token").read_text().strip()

    def run(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["trigger", *map(str, words), "--url", server.control, "--token", token]) == code
        shown = capsys.readouterr()
        return shown.out if code == 0 else shown.err

    return run


@pytest.fixture
def rules(tmp_path, stream):
    """A file with two rules on streams of this test."""
    text = f"""
- {{id: cli-notify, hook: on_ack, when: {{to: {stream}}}, do: [{{action: emit, to: {stream}-done, type: done, payload: 1}}]}}
- {{id: cli-route, when: {{to: {stream}-in, type: urgent}}, do: [{{action: route, to: {stream}-out}}]}}
"""
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    return file


def test_rules_are_put_listed_tried_explained_and_removed(server, command, rules, stream, tmp_path):
    assert command("put", rules) == "cli-notify is new\ncli-route is new\n"
    assert command("put", rules).count("is replaced") == 2
    header, *lines = command("ls").splitlines()
    assert header.split()[:5] == ["trigger", "hook", "origin", "state", "run"]
    listed = {line.split()[0]: line.split()[1:5] for line in lines}
    assert listed["cli-notify"] == ["on_ack", "runtime", "ready", "0"]

    envelope = tmp_path / "envelope.json"
    envelope.write_text('{"id":"e1","ts":"2026-01-01T00:00:00Z","type":"urgent","payload":null}')
    tried = command("try", f"{stream}-in", envelope)
    [line] = [line for line in tried.splitlines() if line.startswith("cli-route")]
    assert line.split()[2:5] == ["yes", "to", f"{stream}-out"]
    [line] = [line for line in tried.splitlines() if line.startswith("cli-notify")]
    assert line.split()[2] == "no" and len(line.split()) > 3, "the reason is named"

    http = Http(server.http)
    http.post("/v1/enqueue", {"to": f"{stream}-in", "envelope": json.loads(envelope.read_text())})
    explained = command("explain", "cli-route")
    assert explained.startswith("cli-route is ready; ") and "from the runtime" in explained
    [action] = [json.loads(line.strip()[2:]) for line in explained.splitlines() if line.startswith("  do ")]
    assert (action["action"], action["to"]) == ("route", f"{stream}-out")
    assert f'[{{"to":"{stream}-out","id":"e1"}}]' in explained

    for rule in ("cli-notify", "cli-route"):
        assert command("rm", rule) == f"{rule} is removed\n"
    assert "cli-" not in command("ls")


def test_every_answer_is_json_on_request(command, stream, tmp_path):
    single = tmp_path / "one.json"
    single.write_text(json.dumps({"id": "cli-one", "when": {"to": stream}, "do": [{"action": "route", "to": "x"}]}))
    assert json.loads(command("put", single, "--json")) == {"triggers": [{"id": "cli-one", "created": True}]}
    assert "cli-one" in [one["id"] for one in json.loads(command("ls", "--json"))["triggers"]]
    assert json.loads(command("explain", "cli-one", "--json"))["rule"]["id"] == "cli-one"
    assert json.loads(command("rm", "cli-one", "--json")) == {"id": "cli-one", "removed": True, "config": False}


def test_a_rule_that_is_unknown_or_invalid_is_refused(command, tmp_path):
    assert "error: UnknownTrigger: " in command("rm", "cli-absent", code=1)
    assert "error: UnknownTrigger: " in command("explain", "cli-absent", code=1)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("{id: cli-wrong, when: {to: a}, do: [{action: eat}]}")
    assert "eat" in command("put", wrong, code=1)
    assert "cli-wrong" not in command("ls")


def test_without_the_scope_nothing_changes(server, rules, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # away from the operator's token
    assert main(["trigger", "put", str(rules), "--url", server.control]) == 1
    assert capsys.readouterr().err.startswith("error: Forbidden: ")


def test_a_missing_or_invalid_rule_file_is_reported_with_a_hint(tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text("{: :")
    for name in ("absent.yaml", "bad.yaml"):
        assert main(["trigger", "put", str(tmp_path / name)]) == 1
        assert "docs/how-to/triggers.md" in capsys.readouterr().err


def test_a_bomb_in_a_rule_file_is_refused_before_it_is_sent(tmp_path, capsys):
    """Nine levels of nine aliases are 387 million values; a file is bounded as the config is."""
    levels = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
    deep = "[" * 5_000
    for number, text in enumerate(("\n".join(levels), deep, "x: " + "y" * 2_000_000)):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        assert main(["trigger", "put", str(file)]) == 1
        assert re.search("more than 100000 values|at most 1048576 are read", capsys.readouterr().err)
