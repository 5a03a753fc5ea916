"""`penstock token new|ls|revoke` and `penstock console`, with a server and without."""

from __future__ import annotations

import io
import json

import pytest

from penstock.cli import main
from tests.integration.serving import Http
from tests.server_process import ServerProcess


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server for this test alone, because tokens affect all of its clients."""
    process = ServerProcess(tmp_path_factory.mktemp("tokens"))
    yield process
    process.kill()


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs a command in a folder: its exit code, and what it printed."""
    for name in ("PENSTOCK_URL", "PENSTOCK_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(*words, folder=tmp_path):
        monkeypatch.chdir(folder)
        code = main(list(words))
        return code, *capsys.readouterr()

    return run


@pytest.mark.promise(
    "Administration",
    "`penstock token new`, `ls`, `revoke` and `penstock console` work with and without a server",
)
def test_tokens_of_a_running_server(cli, running):
    folder = running.folder
    code, token, said = cli("token", "new", "ci", "--scope", "streams:*:*", folder=folder)
    token = token.strip()
    code2, _, said2 = cli("token", "new", "other", "--scope", "streams:*:*", folder=folder)
    assert (code2, said2) == (0, ""), "nothing ends with the second token"
    assert cli("token", "revoke", "other", folder=folder)[0] == 0
    assert code == 0 and "every client needs a token now" in said and "revoking" in said
    assert Http(running.http).get("/v1/stats", stream="a").code == "Unauthorized"
    assert Http(running.http, token).enqueue("a", "1")
    code, out, _ = cli("token", "ls", "--json", folder=folder)
    (row,) = json.loads(out)["tokens"]
    assert (row["name"], row["scopes"], row["origin"]) == ("ci", ["streams:*:*"], "minted")
    code, out, _ = cli("token", "ls", folder=folder)
    assert code == 0 and "ci" in out and token not in out
    code, _, error = cli("token", "new", "ci", "--scope", "streams:*:*", folder=folder)
    assert code == 1 and error.startswith("error: IdConflict:")
    code, _, error = cli("token", "new", "x", "--scope", "streams:*:fly", folder=folder)
    assert code == 1 and "fly" in error and "hint:" in error
    code, out, said = cli("token", "revoke", "ci", "--url", running.control, folder=folder)
    assert code == 0 and "ci is revoked" in out and "no token is left" in said
    code, _, error = cli("token", "revoke", "ci", folder=folder)
    assert code == 1 and error.startswith("error: UnknownToken:")
    assert Http(running.http).enqueue("a", "2")


@pytest.mark.promise(
    "Administration",
    "`penstock token new`, `ls`, `revoke` and `penstock console` work with and without a server",
)
def test_without_a_server_the_file_is_changed(cli, tmp_path):
    code, out, said = cli("token", "ls")
    assert code == 0 and "no tokens" in out and not (tmp_path / "penstock-data").exists()
    code, token, said = cli("token", "new", "ci", "--scope", "admin:*")
    assert code == 0 and "from the next start on" in said
    file = tmp_path / "penstock-data" / "tokens.json"
    assert token.strip() not in file.read_text()
    code, out, said = cli("token", "ls")
    assert "ci" in out and "no server is running" in said
    code, out, _ = cli("token", "revoke", "ci", "--json")
    assert json.loads(out) == {"name": "ci", "required": False, "closed": 0}
    code, _, error = cli("token", "revoke", "ci")
    assert code == 1 and error.startswith("error: UnknownToken:")
    code, _, error = cli("token", "new", "ci", "--scope", "nonsense")
    assert code == 1 and "\nerror: InvalidRequest:" in error


class Terminal(io.StringIO):
    """Standard input of a person, who has typed this."""

    def isatty(self):
        return True


@pytest.mark.promise(
    "Administration", "the first token is announced before it ends anonymous access; a terminal is asked"
)
@pytest.mark.parametrize(
    ("typed", "words", "is_made"),
    [
        ("\n", [], False),
        ("", [], False),
        ("n\n", [], False),
        ("y\n", [], True),
        ("YES\n", [], True),
        ("", ["--yes"], True),
    ],
)
def test_the_first_token_is_announced_and_on_a_terminal_confirmed(cli, tmp_path, monkeypatch, typed, words, is_made):
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, token, said = cli("token", "new", "ci", "--scope", "admin:*", *words)
    assert said.startswith("the first token ends anonymous access: every client needs a token from the next start on")
    assert ("continue? [y/N]" in said) == (not words)
    assert (code, bool(token)) == ((0, True) if is_made else (1, False))
    assert (tmp_path / "penstock-data" / "tokens.json").exists() == is_made
    assert ("no token was created" in said) != is_made


def test_off_a_terminal_it_goes_on_and_the_notice_is_no_part_of_the_result(cli):
    code, out, said = cli("token", "new", "ci", "--scope", "admin:*", "--json")
    assert code == 0 and json.loads(out)["token"] and "ends anonymous access" in said


@pytest.mark.promise(
    "Administration",
    "`penstock token new`, `ls`, `revoke` and `penstock console` work with and without a server",
)
def test_the_link_to_the_console(cli, running, tmp_path, monkeypatch):
    token = (running.data / "run" / "operator.token").read_text().strip()
    code, out, _ = cli("console", folder=running.folder)
    assert (code, out.strip()) == (0, f"{running.http}/#token={token}")
    code, out, _ = cli("console", "--json", "--data", str(running.data))
    told = json.loads(out)
    assert told["console"] == running.endpoints["console"] == f"{running.http}/"
    assert told["link"] == f"{told['console']}#token={token}"
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda link: opened.append(link) or True)
    assert cli("console", "--open", folder=running.folder)[0] == 0 and opened == [told["link"]]
    code, _, error = cli("console")
    assert code == 1 and error.startswith("error: Unreachable: no server runs here")
    assert "penstock up" in error
    file = tmp_path / "penstock-data" / "run" / "endpoints.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**running.endpoints, "console": None}))
    code, _, error = cli("console")
    assert code == 1 and "console.enabled" in error
