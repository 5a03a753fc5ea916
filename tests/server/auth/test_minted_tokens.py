"""Tokens created at run time: their file, their names, and their effect on other tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.errors import PenstockError, Refusal
from penstock.journal.disk import RealDisk
from penstock.server.admin.tokens import OfflineTokens, learn
from penstock.server.auth.minted_tokens import MintedTokens, TokenRequest
from penstock.server.auth.tokens import Guard, TokenStore, start_check
from penstock.server.config.load import Config
from penstock.server.config.sections import AuthSection, TokenSection
from penstock.server.files.yaml_tree import ConfigError

READ = ("streams:*:read",)
WALL_US = 1_800_000_000_000_000
SAM = TokenSection(token="sam-token", agent="sam", scopes=READ)


def minted(tokens: MintedTokens, name: str = "ci", *scopes: str, **more: Any) -> str:
    made = tokens.mint(TokenRequest(name, scopes or READ, **more), WALL_US, bound=10)
    assert isinstance(made, str), made
    return made


def refused(tokens: MintedTokens, spec: TokenRequest, *configured: TokenSection, bound: int = 10) -> str:
    made = tokens.mint(spec, WALL_US, configured=configured, bound=bound)
    assert isinstance(made, Refusal) and made.message
    return made.code


@pytest.mark.promise("Administration", "tokens are created and revoked at run time; only digests are on disk")
def test_a_token_is_kept_as_a_digest_that_only_the_owner_can_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = minted(MintedTokens(file), "ci", *READ, agent="sam")
    assert file.stat().st_mode & 0o777 == 0o600
    assert token not in file.read_text() and len(token) >= 43
    (kept,) = MintedTokens(file)
    assert (kept.name, kept.agent, kept.scopes, kept.created_at) == (
        "ci",
        "sam",
        READ,
        "2027-01-15T08:00:00.000Z",
    )
    store = TokenStore(AuthSection())
    store.adopt_minted(MintedTokens(file).tokens)
    holder = store.resolve(token)
    assert holder is not None and (holder.name, holder.agent) == ("ci", "sam")


def test_what_is_revoked_is_gone_for_good(tmp_path: Path) -> None:
    tokens = MintedTokens(tmp_path / "tokens.json")
    minted(tokens, "a")
    minted(tokens, "b")
    assert tokens.revoke("a") is None
    assert [each.name for each in MintedTokens(tmp_path / "tokens.json")] == ["b"]
    again = tokens.revoke("a")
    assert again is not None and again.code == "UnknownToken"
    assert minted(tokens, "a")  # the name is free again


def test_what_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    tokens = MintedTokens(tmp_path / "gone" / "tokens.json")
    assert refused(tokens, TokenRequest("ci", READ)) == "JournalUnavailable"
    assert len(tokens) == 0


def test_a_name_is_never_shared(tmp_path: Path) -> None:
    tokens = MintedTokens(None)
    minted(tokens, "ci")
    assert refused(tokens, TokenRequest("ci", READ, tenant="acme")) == "IdConflict"
    assert refused(tokens, TokenRequest("sam", READ), SAM) == "IdConflict"
    nameless = TokenSection(token="x", scopes=READ)
    assert refused(tokens, TokenRequest("token-2", READ), SAM, nameless) == "IdConflict"


@pytest.mark.parametrize(
    "spec",
    [
        TokenRequest("x", ("streams:*:fly",)),
        TokenRequest("x", ("everything",)),
        TokenRequest("operator", READ),
        TokenRequest("anonymous", READ),
        TokenRequest("x", READ, agent="a/b"),
        TokenRequest("x", READ, tenant="a b"),
        TokenRequest("x", ("admin:*",), tenant="acme"),
    ],
)
def test_a_request_is_held_against_the_rules_of_the_config(spec: TokenRequest) -> None:
    tokens = MintedTokens(None)
    assert refused(tokens, spec) == "InvalidRequest" and len(tokens) == 0


def test_there_is_a_bound() -> None:
    tokens = MintedTokens(None)
    minted(tokens, "a")
    assert refused(tokens, TokenRequest("b", READ), bound=1) == "QuotaExceeded"


@pytest.mark.promise("Administration", "tokens are created and revoked at run time; only digests are on disk")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"tokens": [{"name": "a", "digest": "12", "scopes": ["admin:*"], "created_at": ""}]}',
        '{"tokens": [], "more": 1}',
        '{"tokens": [{"name": "a", "digest": "%s", "scopes": ["x"], "created_at": ""}]}' % ("0" * 64),
        '{"tokens": [{"name": "operator", "digest": "%s", "scopes": ["admin:*"], "created_at": ""}]}' % ("0" * 64),
    ],
)
def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"tokens\.json"):
        MintedTokens(file)


def test_the_first_token_makes_tokens_required_and_the_last_removal_ends_that() -> None:
    config = Config()
    tokens, store, guard = MintedTokens(None), TokenStore(config.auth, "operator-token"), Guard(config)
    assert store.resolve(None) is not None
    token = minted(tokens)
    learn(tokens, store, guard)
    assert store.required and store.resolve(None) is None and store.resolve(token) is not None
    assert store.resolve("operator-token") is not None
    assert guard.check_headers("a.example", None) is None  # who shows a token is no page that was re-bound here
    store.adopt(AuthSection(tokens=(SAM,)))  # a reload keeps them
    assert store.resolve(token) is not None and store.resolve("sam-token") is not None
    store.adopt(AuthSection())
    assert store.required and store.resolve(token) is not None
    tokens.revoke("ci")
    learn(tokens, store, guard)
    assert not store.required and store.resolve(token) is None and store.resolve(None) is not None
    assert guard.check_headers("a.example", None) is not None


def test_a_minted_token_lets_a_server_listen_elsewhere_and_contradicts_letting_everybody_in() -> None:
    with pytest.raises(ConfigError, match="token new"):
        start_check(Config(), ["0.0.0.0"], None)
    tokens = MintedTokens(None)
    minted(tokens)
    start_check(Config(), ["0.0.0.0"], None, minted=tokens.tokens)
    with pytest.raises(ConfigError, match="allowAnonymous"):
        start_check(Config(auth=AuthSection(allow_anonymous=True)), ["127.0.0.1"], None, minted=tokens.tokens)


@pytest.mark.promise("Administration", "a configured token cannot have the name of a created one")
def test_a_config_does_not_take_the_name_of_a_minted_token() -> None:
    tokens = MintedTokens(None)
    minted(tokens, "sam")
    for taken in (SAM, TokenSection("t", READ, "sam")):
        with pytest.raises(ConfigError, match=r"`sam` was minted.*token revoke"):
            start_check(Config(auth=AuthSection(tokens=(taken,))), ["127.0.0.1"], None, minted=tokens.tokens)
    apart = TokenSection("t", READ, "sam", tenant="acme")
    start_check(Config(auth=AuthSection(tokens=(apart,))), ["127.0.0.1"], None, minted=tokens.tokens)


# Without a server


@contextmanager
def a_server_has(data: Path) -> Iterator[None]:
    disk = RealDisk(data / "journal")
    assert disk.lock()
    try:
        yield
    finally:
        disk.unlock()


def test_the_file_is_changed_where_no_server_runs_and_only_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert OfflineTokens(data).listed() == {"tokens": [], "required": False, "kept": True}
    assert not data.exists()  # looking makes nothing
    made = OfflineTokens(data).mint(name="ci", scopes=READ)
    assert data.stat().st_mode & 0o777 == 0o700 and made["token"]
    assert [row["name"] for row in OfflineTokens(data).listed()["tokens"]] == ["ci"]
    before = (data / "tokens.json").read_bytes()
    with a_server_has(data):
        for change in (
            lambda: OfflineTokens(data).mint(name="b", scopes=READ),
            lambda: OfflineTokens(data).revoke("ci"),
        ):
            with pytest.raises(PenstockError) as caught:
                change()
            assert caught.value.refusal.code == "JournalUnavailable"
    assert (data / "tokens.json").read_bytes() == before
    with pytest.raises(PenstockError, match="no minted token is called"):
        OfflineTokens(data).revoke("other")
    assert OfflineTokens(data).revoke("ci")["required"] is False
    assert msgspec.json.decode((data / "tokens.json").read_bytes()) == {"tokens": []}


# Expiry


def at(offset_s: int) -> datetime:
    return datetime.fromtimestamp(WALL_US / 1_000_000 + offset_s, UTC)


@pytest.mark.promise(
    "Administration", "a minted token can expire; from then on it is refused, and tokens stay required"
)
def test_an_expired_token_is_refused_and_opens_no_door(tmp_path: Path) -> None:
    clock = [WALL_US / 1_000_000]
    tokens, guard = MintedTokens(tmp_path / "tokens.json"), Guard(Config())
    token = minted(tokens, expires_at=at(60))
    tokens = MintedTokens(tmp_path / "tokens.json")
    store = TokenStore(AuthSection(), wall_s=lambda: clock[0])
    learn(tokens, store, guard)
    holder = store.resolve(token)
    assert holder is not None and store.renewed(holder) == holder and store.expire() == 0
    clock[0] += 60
    assert (store.expire(), store.expire()) == (1, 0)
    assert store.resolve(token) is None and store.renewed(holder) is None
    assert store.resolve(None) is None, "an expired token still makes a token required"
    store.adopt(AuthSection())
    assert store.resolve(token) is None, "a reload brings no expired token back"


def test_a_token_that_expires_in_the_past_is_not_made() -> None:
    assert refused(MintedTokens(None), TokenRequest("ci", READ, expires_at=at(0))) == "InvalidRequest"


def test_an_expiry_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    minted(MintedTokens(file), expires_at=at(60))
    file.write_text(file.read_text().replace('"2027-', '"never-'))
    with pytest.raises(ConfigError, match="expires_at"):
        MintedTokens(file)
