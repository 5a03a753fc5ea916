"""Skill workers: each consumes requests from its stream and answers with an envelope.

A worker is a session of the runtime without a transport. It holds a lease while it works, enqueues its answer, and acks
when the answer is durable. A crash in between repeats the work but not the answer, whose id derives from the request's.
A failed request is answered too (`ok: false`, with a code); a request that cannot be answered goes to the dead letters.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.links import Consumer, PeerlessSession
from penstock.core.queue.settle import Denied
from penstock.core.records import Record
from penstock.core.scopes import Principal, Scope
from penstock.dialects.courier.operations import skills
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, enqueue
from penstock.dialects.courier.operations.settle import SettleRequest, settle_held
from penstock.server.config.sections import GitSkill, SkillsSection
from penstock.server.courier.git import Diff, diff, git_dir_of
from penstock.server.engine.connections import Connection, NoWire
from penstock.server.engine.runtime import Runtime
from penstock.server.logging import logs

LEASE_MARGIN_MS = 25_000
"""Added to a skill's timeout for the lease, so that the answer can become durable."""
RETRY_MS = 1_000
"""Delay before a request whose answer found no room is tried again."""
TRIES_MAX = 5
"""Deliveries of a request whose answer finds no room, before it goes to the dead letters."""
TEXT_MAX = 768 * 1024
"""Bytes of a diff as JSON, where a control character takes six: an envelope is bounded."""


class GitDiff:
    """The diff between two commits of a repository below the root."""

    name = "git.diff"
    request_kind = skills.GIT_REQUEST
    result_kind = skills.GIT_RESULT

    def __init__(self, settings: GitSkill) -> None:
        assert settings.root is not None
        self.stream = settings.stream
        self.replies = settings.replies
        """Patterns of the streams that answers may go to."""
        self.parallel_max = settings.parallel_max
        self.lease_ms = settings.timeout_ms + LEASE_MARGIN_MS
        self._root = Path(settings.root)
        self._output_max = settings.output_max
        self._timeout_s = settings.timeout_ms / 1000

    async def run(self, payload: bytes) -> dict[str, Any] | Refusal:
        request = skills.read_diff(payload)
        if isinstance(request, Refusal):
            return request
        git_dir = git_dir_of(self._root, request.repo)
        if isinstance(git_dir, Refusal):
            return git_dir
        done = await diff(git_dir, request, output_max=self._output_max, timeout_s=self._timeout_s)
        if isinstance(done, Refusal):
            return done
        text, truncated = _fitting(done)
        found = {"repo": request.repo, "base": request.base, "head": request.head}
        return {**found, "diff": text, "truncated": truncated}


def _fitting(done: Diff) -> tuple[str, bool]:
    """The text of a diff, cut to fit an envelope."""
    text, truncated = done.data.decode(errors="replace"), done.truncated
    while len(msgspec.json.encode(text)) > TEXT_MAX:
        text, truncated = text[: len(text) // 2], True
    return text, truncated


class SkillWorker(PeerlessSession):
    """One skill on one runtime."""

    def __init__(self, skill: GitDiff, runtime: Runtime) -> None:
        super().__init__()
        self.done = 0
        """Requests answered, failures included."""
        self.buried = 0
        """Requests that could not be answered."""
        self._skill = skill
        self._runtime = runtime
        self._machine = runtime.machine
        self._tasks: dict[asyncio.Task[None], None] = {}
        replies = [Scope("streams", pattern, "enqueue") for pattern in skill.replies]
        scopes = (Scope("streams", skill.stream, "subscribe"), *replies)
        self._principal = Principal(f"skill/{skill.name}", scopes=scopes)
        connection = runtime.peers.open(self, NoWire(), self._principal, "here", is_brief=True)
        if isinstance(connection, Refusal):
            raise ValueError(f"skill `{skill.name}`: {connection.message}")
        self._connection: Connection = connection
        now = runtime.scheduler.now()
        consumer = self._machine.subscribe(now, self.link, skill.stream, skill.lease_ms * 1000)
        if isinstance(consumer, Refusal):
            connection.lost()
            raise ValueError(f"skill `{skill.name}`: {consumer.message}")
        consumer.auto = skill.parallel_max
        self._consumer = consumer
        self._machine.grant(now, consumer, skill.parallel_max)
        runtime.apply(now)

    async def stop(self) -> None:
        """Cancel running work; its requests go back to the stream."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connection.lost()

    # What the runtime calls

    def deliver(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        for record in records:
            work = self._work(record.id, record.body, record.attempt)
            task = asyncio.get_running_loop().create_task(work)
            self._tasks[task] = None
            task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

    # The work

    async def _work(self, id_: str, body: bytes, attempt: int) -> None:
        skill = self._skill
        asked = skills.parse_skill_request(body)
        to = skills.reply_stream(asked, skills.wanted_reply(bytes(asked.payload)))
        if asked.type != skill.request_kind:
            self._bury(id_, f"`{skill.stream}` takes `{skill.request_kind}`, not `{asked.type}`")
            return
        if to is None or not self._principal.allows("enqueue", to):
            self._bury(id_, "no stream that `replies` allows is named by `from` or `replyTo`")
            return
        try:
            result = await skill.run(bytes(asked.payload))
        except Exception as error:
            # A bug in the skill: answer the requester and log the trace.
            logs.error("skill.failed", error, skill=skill.name, id=id_)
            result = Refusal("Internal", "the skill failed")
        self._reply(asked, to, result, attempt)

    def _reply(self, asked: skills.SkillRequest, to: str, result: dict[str, Any] | Refusal, attempt: int) -> None:
        skill, runtime = self._skill, self._runtime
        payload = {"ok": True, **result} if isinstance(result, dict) else {"ok": False, "error": result.wire()}
        now = runtime.scheduler.now()
        raw = skills.answer(skill.name, skill.result_kind, to, asked, skill.stream, rfc3339(now.wall_us), payload)
        request = EnqueueRequest(to, msgspec.Raw(raw))
        outcome = enqueue(self._machine, now, self._principal, request, assign=False)
        runtime.apply(now)
        if isinstance(outcome, Refusal | Denied):
            refusal = outcome if isinstance(outcome, Refusal) else outcome.refusal
            if refusal.code == "TooLarge" and isinstance(result, dict):
                self._reply(asked, to, refusal, attempt)
                return
            self._settle_after(asked.id, attempt, refusal)
        else:
            runtime.when(outcome.gate, True, lambda refused: self._settle_after(asked.id, attempt, refused))

    def _settle_after(self, id_: str, attempt: int, refusal: Refusal | None) -> None:
        """Settle the request; an answer that exists from an earlier try counts as sent."""
        if refusal is None or refusal.code == "IdConflict":
            self.done += 1
            self._settle(SettleRequest(id_, "ack"))
        elif refusal.code == "Draining":
            self._settle(SettleRequest(id_, "release"))
        elif refusal.kind.retryable and attempt < TRIES_MAX:
            self._settle(SettleRequest(id_, "nack", delay_ms=RETRY_MS, reason=refusal.message))
        else:
            self._bury(id_, refusal.message)

    def _bury(self, id_: str, reason: str) -> None:
        self.buried += 1
        logs.warning("skill.unanswered", skill=self._skill.name, id=id_, reason=reason)
        self._settle(SettleRequest(id_, "term", reason=reason))

    def _settle(self, request: SettleRequest) -> None:
        now = self._runtime.scheduler.now()
        done = settle_held(self._machine, now, self._consumer, request)
        self._runtime.apply(now)
        if isinstance(done, Denied):  # the lease ended; the next holder finds the answer in place
            logs.warning("skill.late", skill=self._skill.name, id=request.id, reason=done.refusal.message)


def start_skills(settings: SkillsSection, runtime: Runtime) -> list[SkillWorker]:
    """Start every configured skill."""
    return [] if settings.git.root is None else [SkillWorker(GitDiff(settings.git), runtime)]
