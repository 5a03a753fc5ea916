"""The git.diff skill on real repositories: answered once, confined to its root, bounded in time and size."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.scopes import OPERATOR
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, enqueue
from penstock.dialects.courier.operations.outcomes import Result
from penstock.journal.port import MemoryJournal
from penstock.server.config.sections import GitSkill, SkillsSection
from penstock.server.courier.skill_worker import SkillWorker, start_skills
from penstock.server.engine.machines import make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import LoopScheduler

STREAM = "skills/git.diff"
Answer = dict[str, Any]


def git(folder: Path, *words: str) -> None:
    environment = {
        "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip
    subprocess.run(["git", *words], cwd=folder, env=environment, check=True, capture_output=True)


def repository(folder: Path, before: str = "old\n", after: str = "new\n") -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for text in (before, after):
        (folder / "a.txt").write_text(text)
        (folder / "b.txt").write_text(f"b {text}")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "x")
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a repository, a bare one, and several ways out of it."""
    top = tmp_path_factory.mktemp("git")
    outside = repository(top / "outside", after="private\n")
    root = top / "root"
    inside = repository(root / "teams" / "one")
    git(root, "clone", "-q", "--bare", str(inside), "bare")
    (root / "link").symlink_to(outside)
    (root / "gitfile").mkdir()
    (root / "gitfile" / ".git").write_text(f"gitdir: {outside / '.git'}\n")
    (root / "gitlink").mkdir()
    (root / "gitlink" / ".git").symlink_to(outside / ".git")
    git(root, "clone", "-q", "--shared", str(outside), "shared")
    git(inside, "clone", "-q", "--bare", str(outside), "../../objects")
    (root / "objects" / "objects").rename(root / "objects" / "moved")
    (root / "objects" / "objects").symlink_to(outside / ".git" / "objects")
    (root / "common").mkdir()
    for name in ("objects", "refs"):
        (root / "common" / name).mkdir()
    (root / "common" / "HEAD").write_text("ref: refs/heads/main\n")
    (root / "common" / "commondir").write_text(f"{outside / '.git'}\n")
    (root / "plain").mkdir()
    return root


class Server:
    """A runtime on a real loop, with the skill at work."""

    def __init__(self, settings: GitSkill, policy: Policy | None = None, limits: Limits | None = None) -> None:
        scheduler = LoopScheduler(asyncio.get_running_loop())
        chosen = {STREAM: Policy(), "agents/full/inbox": Policy(max_depth=1)}
        self.machine = make_machine(limits or Limits(), lambda name: chosen.get(name, policy or Policy()), os.urandom)
        journal = MemoryJournal(scheduler.soon)
        self.runtime = Runtime(self.machine, journal, scheduler, authenticate=lambda _: OPERATOR, version="0")
        self.workers: list[SkillWorker] = start_skills(SkillsSection(settings), self.runtime)
        self._count = 0

    def ask(self, payload: Any, **more: Any) -> str:
        """Put a request into the stream."""
        self._count += 1
        id_ = more.pop("id", f"r{self._count}")
        body = {"id": id_, "ts": "2026-01-01T00:00:00Z", "from": "sam", "type": "git.diff.request", **more}
        self.enqueue(STREAM, {**body, "payload": payload})
        return id_

    def enqueue(self, stream: str, env: dict[str, Any]) -> None:
        now = self.runtime.scheduler.now()
        request = EnqueueRequest(stream, msgspec.Raw(msgspec.json.encode(env)))
        outcome = enqueue(self.machine, now, OPERATOR, request, assign=False)
        assert isinstance(outcome, Result), outcome
        self.runtime.apply(now)

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(15):
            found = condition()
            while not found:
                await asyncio.sleep(0)
                found = condition()
            return found

    def held(self, stream: str) -> list[Answer]:
        channel = self.machine.channels.get(stream)
        if channel is None:
            return []
        return [msgspec.json.decode(record.body) for record in channel.ready]

    async def answers(self, count: int = 1, stream: str = "agents/sam/inbox") -> list[Answer]:
        """What was answered, once all of it is and the requests are settled."""
        await self.until(lambda: len(self.held(stream)) >= count and not self.machine.channels[STREAM].live)
        return self.held(stream)

    async def answer(self, payload: Any, **more: Any) -> Answer:
        self.ask(payload, **more)
        (found,) = await self.answers()
        assert found["type"] == "git.diff.result"
        return dict(found["payload"])

    async def stop(self) -> None:
        for worker in self.workers:
            await worker.stop()


def served(settings: GitSkill, work: Callable[[Server], Coroutine[Any, Any, None]], **more: Any) -> None:
    async def go() -> None:
        server = Server(settings, **more)
        try:
            await work(server)
        finally:
            await server.stop()

    asyncio.run(go())


@pytest.mark.promise("Schemas, skills and observability", "`git.diff` is off by default, and answers once")
def test_a_diff_is_answered_to_the_sender(root: Path) -> None:
    async def work(server: Server) -> None:
        id_ = server.ask({"repo": "teams/one", "base": "HEAD~1", "head": "main"}, corr="c-1")
        (envelope,) = await server.answers()
        assert (envelope["from"], envelope["to"]) == ("skills/git.diff", "agents/sam/inbox")
        assert (envelope["corr"], envelope["refs"]) == ("c-1", [id_])
        payload = envelope["payload"]
        assert payload["ok"] is True and payload["truncated"] is False
        assert "-old\n+new\n" in payload["diff"] and "b.txt" in payload["diff"]
        assert server.workers[0].done == 1

    served(GitSkill(root=str(root)), work)


@pytest.mark.parametrize(("paths", "names"), [(["a.txt"], ["a.txt"]), (["*.txt"], []), (["no/such"], [])])
def test_paths_are_names_and_no_patterns(root: Path, paths: list[str], names: list[str]) -> None:
    async def work(server: Server) -> None:
        payload = await server.answer({"repo": "teams/one", "base": "HEAD~1", "paths": paths})
        assert payload["ok"] is True
        assert [name for name in ("a.txt", "b.txt") if f"+++ b/{name}" in payload["diff"]] == names

    served(GitSkill(root=str(root)), work)


def test_a_bare_repository_and_another_address(root: Path) -> None:
    async def work(server: Server) -> None:
        server.ask({"repo": "bare", "base": "main~1", "replyTo": "reviewer"})
        (envelope,) = await server.answers(stream="agents/reviewer/inbox")
        assert "+new" in envelope["payload"]["diff"]

    served(GitSkill(root=str(root)), work)


@pytest.mark.promise(
    "Schemas, skills and observability",
    "`git.diff` is confined: no path outside the root, no option, no program of a repository",
)
@pytest.mark.parametrize(
    "repo",
    ["link", "gitfile", "gitlink", "shared", "objects", "common", "plain", "no/such", ".", "../outside"],
)
def test_nothing_leads_out_of_the_root(root: Path, repo: str) -> None:
    async def work(server: Server) -> None:
        payload = await server.answer({"repo": repo, "base": "HEAD~1"})
        assert payload["ok"] is False
        assert payload["error"]["code"] == "InvalidRequest" and payload["error"]["ref"] == "payload.repo"
        assert "private" not in str(payload) and str(root) not in str(payload)

    served(GitSkill(root=str(root)), work)


def test_the_root_may_be_the_repository(root: Path) -> None:
    async def work(server: Server) -> None:
        assert (await server.answer({"base": "HEAD~1"}))["ok"] is True

    served(GitSkill(root=str(root / "teams" / "one")), work)


@pytest.mark.parametrize("base", ["nowhere", "deadbeef", "--output=/tmp/x", "HEAD@{0}"])
def test_what_git_does_not_know_is_answered_with_a_code(root: Path, base: str) -> None:
    async def work(server: Server) -> None:
        payload = await server.answer({"repo": "teams/one", "base": base})
        assert payload["ok"] is False
        assert payload["error"]["code"] == "InvalidRequest" and payload["error"]["ref"] == "payload.base"
        assert str(root) not in str(payload)

    served(GitSkill(root=str(root)), work)


@pytest.mark.promise(
    "Schemas, skills and observability",
    "`git.diff` is confined: no path outside the root, no option, no program of a repository",
)
def test_settings_of_a_repository_start_no_program(tmp_path: Path) -> None:
    """Write access to a repository must not let a user run a program in the server."""
    one = repository(tmp_path / "one")
    witness = tmp_path / "ran"
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\ntouch {witness}\ncat\n")
    script.chmod(0o755)
    for name in (
        "diff.external",
        "core.fsmonitor",
        "diff.evil.textconv",
        "diff.evil.command",
        "core.pager",
        "filter.evil.clean",
    ):
        git(one, "config", name, str(script))
    git(one, "config", "core.hooksPath", str(tmp_path))
    (one / ".git" / "info" / "attributes").write_text("*.txt diff=evil filter=evil\n")

    async def work(server: Server) -> None:
        assert "+new" in (await server.answer({"repo": "one", "base": "HEAD~1"}))["diff"]

    served(GitSkill(root=str(tmp_path)), work)
    assert not witness.exists()


@pytest.mark.promise(
    "Schemas, skills and observability",
    "`git.diff` is bounded in time, size and number, and is not retried forever",
)
def test_a_long_diff_is_cut_and_says_so(tmp_path: Path) -> None:
    repository(tmp_path / "one", after="x" * 79 + "\n" + ("y" * 79 + "\n") * 50_000)

    async def work(server: Server) -> None:
        payload = await server.answer({"repo": "one", "base": "HEAD~1"})
        assert payload["ok"] is True and payload["truncated"] is True
        assert len(payload["diff"]) == 10_000

    served(GitSkill(root=str(tmp_path), output_max=10_000), work)


def test_a_diff_that_grows_as_json_still_fits(tmp_path: Path) -> None:
    repository(tmp_path / "one", after="\x01" * 300_000 + "\n")

    async def work(server: Server) -> None:
        payload = await server.answer({"repo": "one", "base": "HEAD~1"})
        assert payload["ok"] is True and payload["truncated"] is True

    served(GitSkill(root=str(tmp_path), output_max=512 * 1024), work)


def test_an_answer_over_the_bound_of_envelopes_is_a_refusal(tmp_path: Path) -> None:
    repository(tmp_path / "one", after="long " * 500)

    async def work(server: Server) -> None:
        payload = await server.answer({"repo": "one", "base": "HEAD~1"})
        assert payload["error"]["code"] == "TooLarge"

    served(GitSkill(root=str(tmp_path)), work, limits=Limits(envelope_max=1_500))


def fake_git(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another `git` on the path."""
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.promise(
    "Schemas, skills and observability",
    "`git.diff` is bounded in time, size and number, and is not retried forever",
)
def test_a_git_that_hangs_is_ended_with_all_it_started(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    fake_git(tmp_path / "bin", f"sleep 600 & echo $$ $! > {pids}; wait", monkeypatch)

    async def work(server: Server) -> None:
        started = time.monotonic()
        payload = await server.answer({"repo": "teams/one", "base": "main"})
        assert payload["error"]["code"] == "Timeout"
        assert time.monotonic() - started < 10
        for pid in pids.read_text().split():
            await server.until(lambda pid=int(pid): not is_alive(pid))

    served(GitSkill(root=str(root), timeout_ms=300), work)


def test_a_missing_git_is_answered(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    async def work(server: Server) -> None:
        payload = await server.answer({"repo": "teams/one", "base": "main"})
        assert payload["error"]["code"] == "Internal" and "start git" in payload["error"]["message"]

    served(GitSkill(root=str(root)), work)


@pytest.mark.promise(
    "Schemas, skills and observability",
    "`git.diff` is bounded in time, size and number, and is not retried forever",
)
def test_no_more_run_at_once_than_allowed(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    fake_git(tmp_path / "bin", f"echo x >> {tmp_path}/started; cat {gate} > /dev/null", monkeypatch)

    async def work(server: Server) -> None:
        for _ in range(5):
            server.ask({"repo": "teams/one", "base": "main"})
        started = tmp_path / "started"
        await server.until(lambda: started.exists() and len(started.read_text().split()) == 2)
        channel = server.machine.channels[STREAM]
        assert (channel.leased, len(channel.ready)) == (2, 3)
        while len(server.held("agents/sam/inbox")) < 5:
            descriptor = os.open(gate, os.O_RDWR | os.O_NONBLOCK)  # releases a process that waits for a writer
            os.close(descriptor)
            await asyncio.sleep(0)
            assert len(server.workers[0]._tasks) <= 2
        await server.answers(5)

    served(GitSkill(root=str(root), parallel_max=2, timeout_ms=20_000), work)


@pytest.mark.promise("Schemas, skills and observability", "`git.diff` is off by default, and answers once")
def test_a_request_that_is_delivered_again_is_not_answered_twice(root: Path) -> None:
    async def work(server: Server) -> None:
        request = {"repo": "teams/one", "base": "HEAD~1"}
        server.ask(request, id="same")
        await server.answers()
        # As after a crash between the answer and the ack: the same request, with the answer there.
        server.machine.channels[STREAM].settled.clear()
        server.machine.channels[STREAM].order.clear()
        server.ask(request, id="same")
        await server.until(lambda: server.workers[0].done == 2)
        assert len(await server.answers()) == 1

    served(GitSkill(root=str(root)), work)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"type": "git.diff.result"}, "takes `git.diff.request`"),
        ({"from": "reports/x"}, "`replies` allows"),
        ({"payload": {"base": "main", "replyTo": "elsewhere/x"}}, "`replies` allows"),
        ({"from": None}, "`replies` allows"),
    ],
)
def test_what_cannot_be_answered_goes_to_the_dead_letters(root: Path, more: dict[str, Any], reason: str) -> None:
    async def work(server: Server) -> None:
        env = {"id": "x", "ts": "2026-01-01T00:00:00Z", "from": "sam", "type": "git.diff.request"}
        server.enqueue(STREAM, {**env, "payload": {"base": "main"}, **more})
        (letter,) = await server.until(lambda: server.held(f"dlq/{STREAM}"))
        assert reason in letter["headers"]["x-courier"]["lastError"]
        assert server.workers[0].buried == 1

    served(GitSkill(root=str(root)), work)


@pytest.mark.promise(
    "Schemas, skills and observability",
    "`git.diff` is bounded in time, size and number, and is not retried forever",
)
def test_a_full_inbox_is_tried_again_and_not_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.courier.skill_worker.RETRY_MS", 1)

    async def work(server: Server) -> None:
        env = {"id": "x", "ts": "2026-01-01T00:00:00Z", "type": "note", "payload": None}
        server.enqueue("agents/full/inbox", env)
        server.ask({"repo": "plain", "base": "main", "replyTo": "full"})
        (letter,) = await server.until(lambda: server.held(f"dlq/{STREAM}"))
        assert letter["headers"]["x-courier"]["attempts"] == 5

    served(GitSkill(root=str(root)), work)


def test_a_stop_gives_back_what_is_at_work(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    fake_git(tmp_path / "bin", f"echo $$ > {pids}; exec sleep 600", monkeypatch)

    async def work(server: Server) -> None:
        server.ask({"repo": "teams/one", "base": "main"})
        await server.until(lambda: pids.exists() and pids.read_text().strip())
        await server.stop()
        channel = server.machine.channels[STREAM]
        assert (channel.leased, len(channel.ready)) == (0, 1)
        assert not is_alive(int(pids.read_text()))

    served(GitSkill(root=str(root)), work)


@pytest.mark.promise("Schemas, skills and observability", "`git.diff` is off by default, and answers once")
def test_without_a_root_there_is_no_skill() -> None:
    async def work(server: Server) -> None:
        assert server.workers == []
        assert STREAM not in server.machine.channels

    served(GitSkill(), work)
