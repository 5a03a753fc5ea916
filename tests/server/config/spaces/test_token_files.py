"""Tokens of participants: their sources, generated ones, and files that are rejected."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from penstock.server.config.spaces.space_yaml import environment_name, write_invited_token
from tests.server.config.spaces.test_space_yaml import Problems, Read, digest


@pytest.mark.promise(
    "Configuration of a space",
    "every source of a token works, a missing token is created permanently, and no token is shared or shown",
)
def test_every_source_of_a_token_counts_beside_the_others(read: Read, tmp_path: Path) -> None:
    write_invited_token(tmp_path, "code-bot", "from-file")
    space = read("participants: {code-bot: {tokens: [listed]}}", MEW_TOKEN_CODE_BOT="from-env")
    assert space.settings.participants["code-bot"].token_digests == tuple(
        digest(token) for token in ("listed", "from-env", "from-file")
    )
    assert space.made == ()
    assert environment_name("code-bot") == "MEW_TOKEN_CODE_BOT"


@pytest.mark.promise(
    "Configuration of a space",
    "every source of a token works, a missing token is created permanently, and no token is shared or shown",
)
def test_a_participant_without_a_token_gets_a_permanent_one(read: Read, tmp_path: Path) -> None:
    text = "participants: {sam: {}, jen: {tokens: [x]}, lake: {type: pipeline}}"
    first = read(text)
    assert first.made == ("sam",)
    file = tmp_path / "tokens" / "sam.token"
    token = file.read_text()
    assert len(token) >= 43 and first.settings.participants["sam"].token_digests == (digest(token),)
    assert sorted(path.name for path in file.parent.iterdir()) == [".gitignore", "sam.token"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert (file.parent / ".gitignore").read_text() == "*\n!.gitignore\n"
    again = read(text)
    assert again.settings == first.settings and again.made == ()
    # One that was emptied, as `touch` would leave it, is made anew.
    file.write_text("\n")
    assert read(text).settings != first.settings


def test_a_digest_may_stand_for_a_token(read: Read) -> None:
    (person,) = read(f"participants: {{sam: {{tokens: ['sha256:{digest('x')}']}}}}").settings.participants.values()
    assert person.token_digests == (digest("x"),)


@pytest.mark.promise(
    "Configuration of a space",
    "every source of a token works, a missing token is created permanently, and no token is shared or shown",
)
def test_two_cannot_have_the_same_token(problems: Problems, tmp_path: Path) -> None:
    (found,) = problems("participants: {a: {tokens: [x]}, b: {tokens: [y, x]}, c: {}}")
    assert found.startswith("participants.b: has the same token as `a`; each needs its own")
    # `a-b` and `a_b` look at the same variable.
    (found,) = problems("participants: {a-b: {}, a_b: {}}", MEW_TOKEN_A_B="z")
    assert found.startswith("participants.a_b: has the same token as `a-b`; each needs its own")
    write_invited_token(tmp_path, "d", "w")
    (found,) = problems("participants: {c: {tokens: [w]}, d: {}}")
    assert found.startswith("participants.d:")
    assert not (tmp_path / "tokens" / "c.token").exists(), "tokens are made only when all is well"


@pytest.mark.parametrize("content", [b"two words", b"\xff\xfe", b"a" * 5000])
def test_a_file_that_holds_no_token_is_named_and_kept(problems: Problems, tmp_path: Path, content: bytes) -> None:
    file = write_invited_token(tmp_path, "sam", "x")
    file.write_bytes(content)
    (found,) = problems("participants: {sam: {tokens: [y]}}")
    assert "sam.token` holds no token" in found
    assert file.read_bytes() == content
    (found,) = problems("participants: {jen: {}}", MEW_TOKEN_JEN="a b")
    assert found == "MEW_TOKEN_JEN: expected printable ASCII without spaces"


@pytest.mark.promise("Configuration of a space", "an id cannot leave its directory")
def test_a_token_is_not_written_outside_its_directory(tmp_path: Path) -> None:
    for name in ("../sam", "a/b", "", "a\\b"):
        with pytest.raises(ValueError, match="is not a valid id"):
            write_invited_token(tmp_path, name, "x")
    assert list(tmp_path.iterdir()) == []
