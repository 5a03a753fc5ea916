"""Options that commands share: the agent, the payload, and the client that they connect."""

from __future__ import annotations

import pytest

from penstock.cli.options import DEFAULTS, PLAIN, Common, agent_name, payload_of, run
from penstock.core.errors import PenstockError
from tests.server_process import ServerProcess


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ('{"a": 1}', {"a": 1}),
        ("[1, 2]", [1, 2]),
        ('"quoted"', "quoted"),
        ("3.5", 3.5),
        ("null", None),
        ("hello there", "hello there"),
        ("3 apples", "3 apples"),
        ("", ""),
    ],
)
def test_a_payload_is_json_or_else_its_text(text: str, payload: object) -> None:
    assert payload_of(text) == payload


@pytest.mark.parametrize("text", ['{"a": 1', "[1,", '"open', "{} {}"])
def test_text_that_begins_like_json_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(PenstockError, match="the payload is not JSON") as caught:
        payload_of(text)
    assert caught.value.code == "InvalidJSON"


@pytest.mark.parametrize(
    ("text", "is_eaten"), [("{text: hello}", True), ("[a, b]", True), ('{"text": hello}', False), ("{'a': 1}", False)]
)
def test_json_without_its_quotes_gets_a_hint_about_the_shell(text: str, is_eaten: bool) -> None:
    with pytest.raises(PenstockError) as caught:
        payload_of(text)
    assert ("the shell removed the quotes" in caught.value.hint) is is_eaten
    assert """'{"text": "hello"}'""" in caught.value.hint


def test_the_agent_is_the_given_one_or_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_AGENT", "jen")
    assert (agent_name("sam"), agent_name(None)) == ("sam", "jen")
    monkeypatch.setenv("PENSTOCK_AGENT", "")
    with pytest.raises(PenstockError, match="no agent name is given") as caught:
        agent_name(None)
    assert "--as NAME" in (caught.value.refusal.hint or "")


def test_the_defaults_name_no_server_and_print_for_people() -> None:
    assert Common(url=None, token=None, as_json=False) == DEFAULTS
    assert not PLAIN.as_json


def test_work_gets_a_connected_client_that_is_closed_after_it(server: ServerProcess) -> None:
    kept = []

    async def work(client):  # type: ignore[no-untyped-def]
        kept.append(client)
        await client.ping()
        return client.agent

    assert run(Common(url=server.control), work, agent="sam") == "sam"
    with pytest.raises(PenstockError, match="closed"):
        run(Common(url=server.control), lambda _: kept[0].ping())


def test_the_operators_token_is_found_beside_the_server(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.chdir(server.folder)
    assert "triggers" in run(Common(), lambda client: client.trigger("ls"))
    with pytest.raises(PenstockError) as caught:
        run(Common(token="wrong"), lambda client: client.ping())
    assert caught.value.code == "Unauthorized"


def test_an_empty_token_is_a_usage_error_and_an_empty_variable_counts_as_unset(cli, server) -> None:  # type: ignore[no-untyped-def]
    for words in (("stats",), ("space", "ls"), ("token", "ls"), ("tail", "--no-follow"), ("stdio",), ("pipe",)):
        done = cli(*words, "--token", "")
        assert done.returncode == 2, words
        assert "--token: the token is empty" in done.stderr and "hint: leave --token out" in done.stderr
    secret = (server.data / "run" / "operator.token").read_text().strip()
    assert cli("trigger", "ls", PENSTOCK_TOKEN="").returncode == 1, "without a token, triggers are hidden"
    assert cli("trigger", "ls", PENSTOCK_TOKEN=secret).returncode == 0
    assert cli("stats", PENSTOCK_TOKEN="").returncode == 0
