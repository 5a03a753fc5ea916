"""The pure half of skills: allowed requests, and the address of the answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Refusal
from penstock.dialects.courier.operations.skills import (
    DiffRequest,
    SkillRequest,
    answer_id,
    diff_command,
    diff_environment,
    read_diff,
    reply_stream,
    wanted_reply,
)


def read(**payload: Any) -> DiffRequest | Refusal:
    return read_diff(msgspec.json.encode(payload))


@pytest.mark.parametrize(
    "revision",
    [
        "main",
        "HEAD",
        "HEAD~3",
        "HEAD^",
        "v1.2.3",
        "feature/x-1",
        "a1b2c3d",
        "refs/heads/main",
        "x^2~1",
        "a+b",
    ],
)
def test_names_of_commits_are_taken(revision: str) -> None:
    request = read(base=revision, head=revision)
    assert isinstance(request, DiffRequest)


@pytest.mark.parametrize(
    "revision",
    [
        "", "-p", "--output=/tmp/x", "-O/etc/passwd", "a..b", "a...b", "HEAD@{1}", "@{u}", "@", "main:secret", ":/fix", "^main",
        "a b", "a\nb", "a\0", "$(id)", "`id`", "a;id", "a|id", "/etc", "../x", "a//b", "x.lock", "x/", "x.", "~1", "é", "a" * 300,
        "HEAD^{commit}", "HEAD^@", "HEAD^!", "HEAD^-", ".hidden", "a/.b", "x~99999", "stash@{0}", "*", "a?b", "[ab]", "a\\b",
    ],
)  # fmt: skip
def test_what_is_more_than_a_name_is_refused(revision: str) -> None:
    for field in ("base", "head"):
        refusal = read(**{"base": "main", field: revision})
        assert isinstance(refusal, Refusal)
        assert (refusal.code, refusal.ref) == ("InvalidRequest", f"payload.{field}")


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc", "..", "../x", "a/../../x", "a/..", ".", "./x", "-x", "--exec", ":(glob)*", "~root", "a\0b", "a\nb", "a//b", "a\\..\\b"],
)  # fmt: skip
def test_paths_that_lead_out_are_refused(path: str) -> None:
    assert isinstance(read(base="main", paths=["src", path]), Refusal)
    assert path == "." or isinstance(read(base="main", repo=path), Refusal)


@pytest.mark.parametrize(
    "payload",
    [None, [], {}, {"base": 1}, {"base": "a", "x": 1}, {"base": "a", "paths": "x"}, {"base": "a", "paths": ["x"] * 101}],
)  # fmt: skip
def test_other_shapes_are_refused(payload: object) -> None:
    assert isinstance(read_diff(msgspec.json.encode(payload)), Refusal)


NAMES = st.text("ab1-./~^:@{} ", min_size=1, max_size=6)


@pytest.mark.promise(
    "Schemas, skills and observability",
    "`git.diff` is confined: no path outside the root, no option, no program of a repository",
)
@given(base=NAMES, head=NAMES, path=NAMES)
def test_no_text_of_a_request_becomes_an_option(base: str, head: str, path: str) -> None:
    request = read(base=base, head=head, paths=[path])
    if isinstance(request, Refusal):
        return
    command = diff_command("/root/.git", request)
    place = command.index("--end-of-options")
    assert command[place + 1 :] == [base, head, "--", path]
    assert not any(word.startswith("-") for word in (base, head, path))


def test_git_starts_no_program_and_never_prompts() -> None:
    command = diff_command("/r/.git", DiffRequest("main"))
    assert command[0] == "git" and "--git-dir=/r/.git" in command
    assert {"--no-ext-diff", "--no-textconv", "core.fsmonitor=false", "core.hooksPath=/dev/null"} <= set(command)
    environment = diff_environment("/bin")
    assert environment["GIT_CONFIG_NOSYSTEM"] == "1" and environment["GIT_CONFIG_GLOBAL"] == "/dev/null"
    assert environment["GIT_OPTIONAL_LOCKS"] == "0" and environment["GIT_ALLOW_PROTOCOL"] == ""


@pytest.mark.parametrize(
    ("sender", "reply_to", "stream"),
    [
        ("architect", None, "agents/architect/inbox"),
        ("agents/Jen/outbox", None, "agents/Jen/inbox"),
        ("agents/Jen", None, "agents/Jen/inbox"),
        ("agents/", None, None),
        ("pipeline/x", None, "pipeline/x"),
        (None, None, None),
        ("architect", "sam", "agents/sam/inbox"),
        (None, "reviews/open", "reviews/open"),
    ],
)
def test_where_an_answer_goes(sender: str | None, reply_to: str | None, stream: str | None) -> None:
    asked = SkillRequest("e-1", "git.diff.request", msgspec.Raw(b"{}"), sender)
    assert reply_stream(asked, reply_to) == stream


@pytest.mark.parametrize("payload", [b"5", b"[]", b'{"replyTo":5}', b'{"replyTo":""}', b"{}"])
def test_a_payload_without_a_reply_address(payload: bytes) -> None:
    assert wanted_reply(payload) is None


def test_an_answer_has_one_id_for_each_request() -> None:
    ids = {answer_id("git.diff", stream, id_) for stream in ("a", "b") for id_ in ("x", "y")}
    assert len(ids) == 4
    assert answer_id("git.diff", "a", "x") in ids
    assert all(len(answer) <= 256 for answer in ids)
