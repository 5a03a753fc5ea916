"""Staged batches: parts that an application uploads, kept in memory until one commit enqueues them.

A part is checked on arrival, so a commit can only fail for lack of room. Parts do not survive a restart: the application
runs the batch again. The number of the last committed batch survives (`core/queue/stage.py`). Parts are bounded in bytes;
commit and abort drop them, and so does `limits.stage_ms` without activity.

Frames for streams of spaces go out after the commit that records their batch is durable: never twice, and not at all if
the server crashes in between, because frames are live and not stored.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.queue import stage
from penstock.core.queue.stage import SMALLER, Draft, Taken
from penstock.core.steps import STEP_BYTES, STEP_COST, Steps
from penstock.dialects.courier.operations.enqueue import at
from penstock.dialects.courier.operations.outcomes import Body, Outcome, Result, check_access
from penstock.dialects.courier.wire import staged_envelopes
from penstock.dialects.courier.wire.staged_envelopes import BatchSource, StageCommit, StagedFrame, space_problem
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import in_steps
from penstock.server.logging import logs

if TYPE_CHECKING:
    from penstock.server.spaces.host import Spaces

ENVELOPE_COST = 400
"""Bytes that a staged envelope takes in addition to its body."""
PART_COST = 1_000
"""Bytes that a part takes in addition to its envelopes."""
RETRY_FULL_MS = 1_000
"""`retryAfterMs` when other batches fill the stage."""
NAMED_MAX = 10
"""Missing parts that an error names."""

Key = tuple[str, int]
Lines = list[Draft | StagedFrame]


class _Part(msgspec.Struct):
    lines: Lines
    cost: int


class _Batch(msgspec.Struct):
    run: str
    """The run of the application that staged the parts."""
    parts: dict[str, _Part]
    touched_us: int
    cost: int = 0


class Staging:
    """The staged batches of one server."""

    def __init__(self, runtime: Runtime, spaces: Spaces | None = None) -> None:
        self._runtime = runtime
        self._machine = runtime.machine
        self._spaces = spaces
        self._batches: dict[Key, _Batch] = {}
        self._cost = 0
        self._is_watching = False

    def part(
        self, now: Now, source: BatchSource, name: str, run: str, body: bytes
    ) -> Outcome | Coroutine[Any, Any, Outcome]:
        """Check and keep one part, a large one in steps. Replaces a part of the same name and drops parts of another run."""
        work = self._part(now, source, name, run, body)
        if len(body) > STEP_BYTES:
            return in_steps(self._runtime.survey, work)
        return Steps(work).all(now)

    def _part(self, now: Now, source: BatchSource, name: str, run: str, body: bytes) -> Generator[None, None, Outcome]:
        machine = self._machine
        limits = machine.limits
        refusal = staged_envelopes.part_problem(name) or stage.unknown_app(machine, source.memory)
        if refusal is not None:
            return refusal
        # Counted first: a body may have millions, and may have as many blank lines as envelopes.
        ends = body.count(b"\n")
        lines = [line for line in body.split(b"\n") if line.strip()] if ends <= 2 * limits.batch_max else []
        if not 0 < len(lines) <= limits.batch_max:
            message = f"a part has 1 to {limits.batch_max} envelopes, one a line, not {len(lines) or ends}"
            return Refusal("InvalidRequest", message, ref="part", hint="stage several parts of fewer envelopes")
        answer: Body = {"app": source.app, "batch": source.batch, "part": name, "staged": len(lines)}
        last = machine.last_batch(source.memory)
        if last is not None and source.batch <= last:
            return Result(answer)  # its commit will be a duplicate, so the part is not kept
        read = yield from self._read(now, source, lines)
        if isinstance(read, Refusal):
            return read
        last = machine.last_batch(source.memory)
        if last is not None and source.batch <= last:  # committed meanwhile
            return Result(answer)
        sizes = (len(line.body if isinstance(line, Draft) else line.data) for line in read)
        cost = PART_COST + ENVELOPE_COST * len(read) + sum(sizes)
        key = (source.memory, source.batch)
        batch = self._batches.get(key)
        if batch is not None and batch.run != run:
            self._forget(key)
            batch = None
        before = 0 if batch is None or name not in batch.parts else batch.parts[name].cost
        refusal = self._fullness(cost - before, 0 if batch is None else batch.cost)
        if refusal is not None:
            return refusal
        if batch is None:
            batch = self._batches[key] = _Batch(run, {}, now.us)
        batch.parts[name] = _Part(read, cost)
        batch.touched_us = now.us
        batch.cost += cost - before
        self._cost += cost - before
        self._watch(now)
        return Result(answer)

    def _read(self, now: Now, source: BatchSource, lines: list[bytes]) -> Generator[None, None, Lines | Refusal]:
        machine = self._machine
        permits: dict[str, Refusal | None] = {}
        drafts: Lines = []
        size = 0
        for index, line in enumerate(lines):
            draft = staged_envelopes.read(line, source, now, machine.limits)
            if isinstance(draft, Draft):
                if draft.stream not in permits:
                    permits[draft.stream] = check_access(
                        machine, source.principal, "enqueue", source.principal.from_channel(draft.stream)
                    )
                draft = permits[draft.stream] or draft
            if machine.schemas is not None and isinstance(draft, Draft):
                draft = machine.schemas.refusal(draft.stream, draft.body) or draft
            if isinstance(draft, Refusal):
                return at(draft, f"lines[{index}]")
            drafts.append(draft)
            size += len(line)
            if size > STEP_BYTES:
                size = 0
                yield
        return drafts

    def _fullness(self, more: int, own: int) -> Refusal | None:
        bound = self._machine.limits.stage_bytes_max
        if self._cost + more <= bound:
            return None
        if own + more > bound:
            message = f"the batch takes more than the {bound} bytes of `limits.stage_bytes_max`"
            return Refusal("TooLarge", message, hint=SMALLER)
        message = f"{self._cost} bytes are staged and `limits.stage_bytes_max` allows {bound}"
        return Refusal("QuotaExceeded", message, retry_after_ms=RETRY_FULL_MS)

    def commit(self, now: Now, source: BatchSource, request: StageCommit) -> Outcome | Coroutine[Any, Any, Outcome]:
        """Enqueue a batch; its other parts are dropped when that is durable. The records of a large one are made in steps."""
        taken = stage.repeated(self._machine, source.memory, source.batch)
        if taken is not None:
            return taken if isinstance(taken, Refusal) else self._result(source, taken, 0)
        names = list(dict.fromkeys(request.parts))
        parts = self._gather(source, names)
        if isinstance(parts, Refusal):
            return parts
        work = self._commit(now, source, parts)
        if sum(len(part.lines) for part in parts) > STEP_COST:
            return in_steps(self._runtime.survey, work)
        return Steps(work).all(now)

    def _commit(self, now: Now, source: BatchSource, parts: list[_Part]) -> Generator[None, Now, Outcome]:
        machine = self._machine
        drafts: list[Draft] = []
        frames: dict[tuple[str, str], list[bytes]] = {}
        for part in parts:
            drafts += [line for line in part.lines if isinstance(line, Draft)]
            for line in part.lines:
                if isinstance(line, StagedFrame):
                    frames.setdefault((line.space, line.stream), []).append(line.data)
            if len(drafts) > STEP_COST:
                now = yield
        prepared = Steps(stage.prepare(drafts))
        while not prepared.step(now):
            now = yield
        # From here on all happens in one turn, because others may have changed what the steps before have found.
        taken = stage.repeated(machine, source.memory, source.batch)
        count = sum(map(len, frames.values()))
        if taken is None:
            refusal = self._changed(source, parts) or self._forbidden(source, prepared.result.fresh, bool(frames))
            refusal = refusal or self._unwritable(frames)
            meter = machine.meter
            if meter is not None and refusal is None:
                lines = len(drafts) + count
                refusal = meter.check(now.us, source.principal, source.address, None, lines, whole=True)
            if refusal is not None:
                return refusal
            taken = machine.take(now, source.memory, source.batch, prepared.result, is_remembered=bool(frames))
            if meter is not None and not isinstance(taken, Refusal):
                meter.charge(now.us, source.principal, source.address, None, len(drafts) + count)
            if isinstance(taken, Taken) and not taken.duplicate:
                self._runtime.when(taken.gate, True, partial(self._durable, source, frames))
        return taken if isinstance(taken, Refusal) else self._result(source, taken, count)

    def _result(self, source: BatchSource, taken: Taken, frames: int) -> Result:
        return Result(partial(self._committed, source, taken, frames), taken.gate, fresh=True)

    def _changed(self, source: BatchSource, parts: list[_Part]) -> Refusal | None:
        """Why a batch is not committed whose parts were replaced or dropped meanwhile."""
        batch = self._batches.get((source.memory, source.batch))
        known = [] if batch is None else list(map(id, batch.parts.values()))
        if all(id(part) in known for part in parts):
            return None
        message = f"parts of batch {source.batch} of `{source.app}` were changed while it was committed"
        return Refusal("UnknownPart", message, hint="stage the parts again, then commit once")

    def _unwritable(self, frames: dict[tuple[str, str], list[bytes]]) -> Refusal | None:
        """Why frames cannot be written."""
        for space, stream in frames:
            if self._spaces is None:
                message = f"there is no space `{space}`: this server has none"
                hint = "name its file under `spaces` in the config"
                return Refusal("InvalidRequest", message, ref="to", hint=hint)
            if (refusal := self._spaces.writable(space, stream)) is not None:
                return refusal
        return None

    def _durable(
        self, source: BatchSource, frames: dict[tuple[str, str], list[bytes]], refusal: Refusal | None
    ) -> None:
        """The commit of a batch has its outcome: drop its parts and send its frames, also if the application is gone."""
        if refusal is not None:
            return
        self._forget_up_to(source)
        if self._spaces is None:
            return
        for (space, stream), data in frames.items():
            lost = self._spaces.write(space, stream, data)
            if lost is not None:  # the stream closed during the commit
                logs.warning(
                    "stage.frames_lost",
                    app=source.app,
                    batch=source.batch,
                    space=space,
                    stream=stream,
                    frames=len(data),
                    reason=lost.message,
                )

    def _gather(self, source: BatchSource, names: list[str]) -> list[_Part] | Refusal:
        batch = self._batches.get((source.memory, source.batch))
        parts = {} if batch is None else batch.parts
        missing = [name for name in names if name not in parts]
        if missing:
            shown = ", ".join(f"`{name}`" for name in missing[:NAMED_MAX])
            more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
            message = f"batch {source.batch} of `{source.app}` has no part {shown}{more}"
            return Refusal("UnknownPart", message, ref=missing[0])
        found = [parts[name] for name in names]
        bound, count = self._machine.limits.stage_envelopes_max, sum(len(part.lines) for part in found)
        if count > bound:
            message = f"the batch has {count} envelopes and `limits.stage_envelopes_max` allows {bound}"
            return Refusal("TooLarge", message, hint=SMALLER)
        return found

    def _forbidden(self, source: BatchSource, streams: Iterable[str], has_frames: bool) -> Refusal | None:
        """Check the rights of this token: another one may have staged the parts."""
        if has_frames:
            refusal = space_problem(source.principal)
            if refusal is not None:
                return refusal
        for stream in streams:
            refusal = check_access(self._machine, source.principal, "enqueue", source.principal.from_channel(stream))
            if refusal is not None:
                return refusal
        return None

    def _committed(self, source: BatchSource, taken: Taken, frames: int) -> Body:
        self._forget_up_to(source)
        body: Body = {
            "app": source.app,
            "batch": source.batch,
            "enqueued": taken.enqueued,
            "duplicate": taken.duplicate,
        }
        if frames:
            body["frames"] = frames
        if taken.duplicate:
            body["last"] = self._machine.last_batch(source.memory)
        return body

    def abort(self, source: BatchSource) -> Outcome:
        """Drop the staged parts of a batch."""
        key = (source.memory, source.batch)
        batch = self._batches.get(key)
        lines = [] if batch is None else [line for part in batch.parts.values() for line in part.lines]
        streams = dict.fromkeys(line.stream for line in lines if isinstance(line, Draft))
        if (
            refusal := self._forbidden(source, streams, any(isinstance(line, StagedFrame) for line in lines))
        ) is not None:
            return refusal
        if batch is not None:
            self._forget(key)
        return Result({"app": source.app, "batch": source.batch, "dropped": len(lines)})

    def last(self, source: BatchSource) -> Outcome:
        """The newest committed batch of an application."""
        return Result({"app": source.app, "last": self._machine.last_batch(source.memory)})

    def _forget_up_to(self, source: BatchSource) -> None:
        for key in [key for key in self._batches if key[0] == source.memory and key[1] <= source.batch]:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        self._cost -= self._batches.pop(key).cost

    def _watch(self, now: Now) -> None:
        """Schedule a sweep for when the oldest batch may expire."""
        if self._is_watching or not self._batches:
            return
        self._is_watching = True
        oldest_us = min(batch.touched_us for batch in self._batches.values())
        due_us = max(oldest_us + self._machine.limits.stage_ms * 1000, now.us)
        self._runtime.scheduler.at(due_us, self._sweep)

    def _sweep(self) -> None:
        self._is_watching = False
        now = self._runtime.scheduler.now()
        before_us = now.us - self._machine.limits.stage_ms * 1000
        for key, batch in list(self._batches.items()):
            if batch.touched_us <= before_us:
                logs.warning("stage.expired", app=key[0], batch=key[1], parts=len(batch.parts))
                self._forget(key)
        self._watch(now)
