"""Tokens, anonymous access, and the operator's token."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS, OPERATOR
from penstock.server.auth import tokens
from penstock.server.auth.tokens import (
    UNIX_PEER,
    Guard,
    TokenStore,
    bearer,
    start_check,
    subprotocol,
    write_operator_token,
)
from penstock.server.config.load import Config, ConfigError
from penstock.server.config.sections import AuthSection, ListenSection, TokenSection
from penstock.server.files.secret_files import digest_of

READ = ("streams:*:read",)
SAM = TokenSection(token="sam-secret", scopes=READ, agent="sam")
TOKENS = Config(auth=AuthSection(tokens=(SAM,)))
OPEN = Config()
PUBLIC = Config(auth=AuthSection(allow_anonymous=True))


def code(refusal: Refusal | None) -> str | None:
    return None if refusal is None else refusal.code


# Tokens


def test_a_token_gives_its_holder() -> None:
    store = TokenStore(TOKENS.auth)
    sam = store.resolve("sam-secret")
    assert sam is not None
    assert (sam.name, sam.agent, sam.operator, sam.anonymous) == ("sam", "sam", False, False)
    assert sam.allows("read", "jobs") and not sam.allows("enqueue", "jobs")


def test_names_and_agents_of_other_tokens_are_taken_within_a_tenant() -> None:
    tokens = (
        TokenSection(token="a" * 20, scopes=READ, name="ann"),
        TokenSection(token="b" * 20, scopes=READ, name="bobs", agent="bob"),
        TokenSection(token="c" * 20, scopes=READ, name="cat", tenant="acme"),
        TokenSection(token="d" * 20, scopes=READ, agent="dan", tenant="acme"),
    )
    store = TokenStore(AuthSection(tokens=tokens))
    ann, cat = store.resolve("a" * 20), store.resolve("c" * 20)
    assert ann is not None and cat is not None
    names = ("ann", "bob", "bobs", "cat", "dan", "eve")
    assert [name for name in names if store.is_taken(ann, name)] == ["bob", "bobs"]
    assert [name for name in names if store.is_taken(cat, name)] == ["dan"]


def test_a_token_may_be_configured_as_its_digest() -> None:
    store = TokenStore(
        AuthSection(tokens=(TokenSection(token=f"sha256:{digest_of('secret')}", scopes=READ, name="ci"),))
    )
    assert (store.resolve("secret") or ANONYMOUS).name == "ci"
    assert store.resolve(f"sha256:{digest_of('secret')}") is None


def test_with_tokens_everybody_needs_one() -> None:
    store = TokenStore(TOKENS.auth, "operator-secret")
    assert store.required
    assert store.resolve(None) is None
    assert store.resolve("operator-secret") is OPERATOR


def test_without_tokens_only_the_operator_has_one() -> None:
    store = TokenStore(OPEN.auth, "operator-secret")
    assert not store.required
    assert store.resolve(None) is ANONYMOUS
    assert store.resolve("operator-secret") is OPERATOR
    assert TokenStore(OPEN.auth).resolve("operator-secret") is None


@given(st.text())
def test_a_wrong_token_is_never_anonymous(token: str) -> None:
    assert TokenStore(OPEN.auth, "operator-secret").resolve(token) is None
    assert TokenStore(TOKENS.auth).resolve(token) is None


def test_a_token_with_bytes_that_are_no_text_is_just_wrong() -> None:
    assert TokenStore(TOKENS.auth).resolve(b"\xff\xfe".decode("utf-8", "surrogateescape")) is None


def test_a_holder_without_a_name_gets_a_number() -> None:
    store = TokenStore(AuthSection(tokens=(SAM, TokenSection(token="other", scopes=READ))))
    assert (store.resolve("other") or ANONYMOUS).name == "token-2"


def test_the_store_shows_names_but_no_tokens() -> None:
    shown = repr(TokenStore(TOKENS.auth, "operator-secret"))
    assert "sam" in shown and "secret" not in shown


def test_an_unresolved_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="env:"):
        TokenStore(AuthSection(tokens=(TokenSection(token="env:X", scopes=READ),)))


# Where a request shows its token


@pytest.mark.parametrize(
    ("authorization", "protocols", "query", "token"),
    [
        (None, None, None, None),
        ("Bearer abc", None, None, "abc"),
        ("bearer  abc ", None, None, "abc"),
        ("Bearer abc", "bearer.def", "ghi", "abc"),
        (None, "bearer.def", "ghi", "def"),
        (None, "chat, bearer.def", None, "def"),
        (None, "chat", "ghi", "ghi"),
        ("Basic abc", None, None, ""),
        ("Bearer", None, None, ""),
        ("Bearer ", None, None, ""),
        ("Basic abc", "bearer.def", None, ""),
        (None, "bearer.", None, ""),
        (None, None, "", ""),
    ],
)
def test_bearer(authorization: str | None, protocols: str | None, query: str | None, token: str | None) -> None:
    assert bearer(authorization, protocols, query) == token


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (None, None),
        ("", None),
        ("bearer.x", "bearer.x"),
        ("bearer.x, courier.v1", "courier.v1"),
        ("a,b", "a"),
    ],
)
def test_a_subprotocol_is_always_chosen_from_the_offer(offered: str | None, chosen: str | None) -> None:
    assert subprotocol(offered) == chosen


# The guard


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", UNIX_PEER])
def test_a_peer_on_this_machine_needs_no_token(peer: str) -> None:
    assert Guard(OPEN).check_peer(peer, bind_is_loopback=True) is None


@pytest.mark.parametrize("peer", ["10.0.0.5", "::2", "::ffff:10.0.0.5", "", "nonsense", None])
def test_a_peer_from_elsewhere_needs_a_token(peer: str | None) -> None:
    assert code(Guard(OPEN).check_peer(peer, bind_is_loopback=True)) == "Unauthorized"
    assert Guard(PUBLIC).check_peer(peer, bind_is_loopback=False) is None


def test_a_loopback_peer_of_an_open_door_needs_a_token() -> None:
    # It may be a proxy on this machine that speaks for anyone.
    assert code(Guard(OPEN).check_peer("127.0.0.1", bind_is_loopback=False)) == "Unauthorized"


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8787", "127.0.0.1:1", "127.3.2.1", "[::1]:8787", "[::1]"])
def test_a_host_of_this_machine_is_served(host: str) -> None:
    assert Guard(OPEN).check_headers(host, None) is None


@pytest.mark.parametrize(
    "host",
    [
        None, "", "evil.example.com", "evil.example.com:8787", "localhost.evil.com", "127.0.0.1.evil.com", "localhost@evil.com", "evil.com@localhost",
        "evil.com#localhost", "evil.com/localhost", "localhost:port", "localhost:0", "::1", "0.0.0.0", "192.168.0.1:8787", "local\thost",
    ],
)  # fmt: skip
def test_a_rebound_host_is_refused_where_no_token_is_needed(host: str | None) -> None:
    assert code(Guard(OPEN).check_headers(host, None)) == "Forbidden"
    assert Guard(TOKENS).check_headers(host, None) is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8787", "http://localhost:8787"),
        ("localhost:8787", "HTTP://LOCALHOST:8787"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("localhost", "https://localhost"),
        ("[::1]:8787", "http://[::1]:8787"),
        ("localhost:8787", "https://app.example.com"),
        ("localhost:8787", "http://localhost:5173"),
    ],
)
def test_pages_of_the_same_place_or_of_listed_ones_may_connect(host: str, origin: str) -> None:
    listen = ListenSection(origins=("https://app.example.com", "http://localhost:5173"))
    for auth in (OPEN.auth, TOKENS.auth, PUBLIC.auth):
        assert Guard(Config(auth=auth, listen=listen)).check_headers(host, origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "", "null", "http://evil.example.com", "http://localhost", "http://localhost:8788", "http://127.0.0.1:8787",
        "http://localhost:8787.evil.com", "http://localhost:8787@evil.com", "http://evil.com@localhost:8787", "http://evil.com/localhost:8787", "file://", "localhost:8787",
        "https://app.example.com:444", "http://app.example.com", "http://localhost:x", "http://[::1",
    ],
)  # fmt: skip
def test_pages_from_elsewhere_are_refused_tokens_or_not(origin: str) -> None:
    listen = ListenSection(origins=("https://app.example.com",))
    for auth in (OPEN.auth, TOKENS.auth, PUBLIC.auth):
        refusal = Guard(Config(auth=auth, listen=listen)).check_headers("localhost:8787", origin)
        assert code(refusal) == "Forbidden"


@given(st.text(), st.text())
def test_any_headers_get_an_answer(host: str, origin: str) -> None:
    assert code(Guard(OPEN).check_headers(host, origin)) in (None, "Forbidden")


# The check at the start


@pytest.mark.parametrize(
    ("hosts", "control"),
    [
        (["127.0.0.1", "::1"], "127.0.0.1:9787"),
        (["localhost"], "off"),
        ([], "unix:control.sock"),
        (["localhost"], None),
    ],
)
def test_loopback_doors_start_without_tokens(hosts: list[str], control: str | None) -> None:
    start_check(OPEN, hosts, control)


@pytest.mark.parametrize(
    ("hosts", "control", "door"),
    [
        (["127.0.0.1", "0.0.0.0"], "off", "http on `0.0.0.0`"),
        (["::"], None, "http on `::`"),
        (["localhost"], "0.0.0.0:9787", "control on `0.0.0.0:9787`"),
        (["broker.example.com"], "off", "http on `broker.example.com`"),
    ],
)
def test_an_open_door_without_tokens_does_not_start(hosts: list[str], control: str | None, door: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start_check(OPEN, hosts, control)
    (problem,) = caught.value.errors
    assert problem.startswith(door)
    assert "auth.allowAnonymous" in problem
    start_check(PUBLIC, hosts, control)
    start_check(TOKENS, hosts, control)


# The operator's token


def test_the_operator_token_is_private_from_the_first_moment(tmp_path: Path) -> None:
    path = tmp_path / "run" / "operator.token"
    token = write_operator_token(path)
    assert path.read_text() == token + "\n"
    assert len(token) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_new_operator_token_replaces_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "operator.token"
    path.write_text("planted")
    path.chmod(0o644)
    first, second = write_operator_token(path), write_operator_token(path)
    assert first != second
    assert path.read_text() == second + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_operator_token_does_not_follow_a_planted_link(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "operator.token"
    target.write_text("untouched")
    path.symlink_to(target)
    write_operator_token(path)
    assert target.read_text() == "untouched"
    assert not path.is_symlink()


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "operator.token"
    path.mkdir()
    with pytest.raises(OSError, match="operator"):
        write_operator_token(path)
    assert list(tmp_path.iterdir()) == [path]


def test_log_lines_about_refused_tokens_are_bounded_by_peers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr(tokens, "PEERS_MAX", 2)
    monkeypatch.setattr(tokens.time, "monotonic", lambda: clock[0])
    store = TokenStore(TOKENS.auth)
    for peer in ("a", "a", "b", "c", "a"):
        store.refused(None, peer)
    assert [record.__dict__.get("peer") or record.fields["peer"] for record in caplog.records] == ["a", "b"]
    clock[0] += tokens.QUIET_S
    store.refused("x", "c")
    store.refused("x", "a")
    assert len(caplog.records) == 4 and store.refusals == {"missing": 5, "unknown": 2}
