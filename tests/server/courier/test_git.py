"""Git below a root: only repositories inside it, with bounded time and output."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from penstock.core.errors import Refusal
from penstock.dialects.courier.operations.skills import DiffRequest
from penstock.server.courier import git
from penstock.server.courier.git import Diff, diff, git_dir_of


def run(folder: Path, *words: str) -> None:
    options = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *options, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("git")
    repo = folder / "root" / "team" / "one"
    repo.mkdir(parents=True)
    run(repo, "init", "-q")
    for text in ("before\n", "after\n"):
        (repo / "file").write_text(text)
        run(repo, "add", "file")
        run(repo, "commit", "-qm", text.strip())
        run(repo, "branch", text.strip())
    run(folder, "clone", "-q", "--bare", str(repo), "root/bare")
    run(folder, "clone", "-q", str(repo), "outside")
    (folder / "root" / "link").symlink_to(folder / "outside")
    (folder / "root" / "plain").mkdir()
    return folder / "root"


def test_a_repository_and_a_bare_one_are_found(root: Path) -> None:
    assert git_dir_of(root, "team/one") == root / "team" / "one" / ".git"
    assert git_dir_of(root, "bare") == root / "bare"


@pytest.mark.parametrize("repo", ["link", "plain", "team", "../outside", "/etc", "nothing", "team/one/file"])
def test_what_is_outside_or_no_repository_is_refused(root: Path, repo: str) -> None:
    refusal = git_dir_of(root, repo)
    assert isinstance(refusal, Refusal) and refusal.ref == "payload.repo"


def asked(root: Path, base: str = "before", *, output_max: int = 10_000, timeout_s: float = 30.0) -> Diff | Refusal:
    git_dir = git_dir_of(root, "team/one")
    assert isinstance(git_dir, Path)
    request = DiffRequest(base, "main", "team/one")
    return asyncio.run(diff(git_dir, request, output_max=output_max, timeout_s=timeout_s))


def test_a_diff_is_whole_or_cut_at_its_bound(root: Path) -> None:
    whole = asked(root)
    assert isinstance(whole, Diff) and not whole.truncated and b"-before\n+after\n" in whole.data
    assert asked(root, output_max=10) == Diff(whole.data[:10], truncated=True)


def test_an_unknown_revision_and_a_missing_git_are_refusals(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = asked(root, "nothing")
    assert isinstance(refusal, Refusal) and (refusal.code, refusal.ref) == ("InvalidRequest", "payload.base")
    monkeypatch.setattr(git, "diff_command", lambda *asked: ["/no/such/git"])
    refusal = asked(root)
    assert isinstance(refusal, Refusal) and refusal.code == "Internal" and "start git" in refusal.message


def test_a_git_that_takes_too_long_is_killed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "diff_command", lambda *asked: ["/bin/sh", "-c", "read line < /dev/zero"])
    refusal = asked(root, timeout_s=0.2)
    assert isinstance(refusal, Refusal) and refusal.code == "Timeout"
