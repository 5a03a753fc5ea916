"""Staged batches: records that an application collected elsewhere are enqueued in one commit, exactly once.

Owns the newest batch number of each application. That number is a fact of the same commit as the records, so a crash keeps both or
neither. Keeps: a refused batch changes nothing in any stream; no batch is taken twice; records are visible only when durable, so a
client that repeats a pending batch waits for the same commit. It knows neither parts nor uploads. O(1) a record.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from zlib import crc32

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.queue.channel import Channel
from penstock.core.queue.enqueue import RETRY_WRITE_MS, admit, drop, is_same, leave, overflowing, overload
from penstock.core.queue.state import QueueState
from penstock.core.records import PENDING, Applied, Record
from penstock.core.rules import firing
from penstock.core.scopes import PIPELINE
from penstock.core.steps import STEP_COST, Steps
from penstock.core.tenants import split

SMALLER = "make batches smaller: on a Spark query set a smaller `maxOffsetsPerTrigger`"
"""The hint for a batch that is too large."""


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A record of a batch that is not admitted yet; each retry of the batch makes new records from its drafts."""

    stream: str
    id: str
    kind: str
    body: bytes
    sender: str | None = None
    corr: str | None = None
    stamp: tuple[int, int] = (0, 0)
    """The range of the body with a time that the server filled in; it may differ between retries."""
    is_named: bool = True
    """Whether the producer gave the id; otherwise it is a hash of the content, and equal rows share it."""


class Taken(msgspec.Struct, frozen=True):
    """The answer to a batch, valid once `gate` is committed."""

    gate: int
    enqueued: int = 0
    duplicate: bool = False
    """The batch was taken before."""


class Prepared(msgspec.Struct):
    """The drafts of a batch as records by stream and id, made before the turn that admits them."""

    drafts: list[Draft]
    fresh: dict[str, dict[str, Record]] = {}
    first: dict[str, dict[str, Draft]] = {}
    """The drafts of these records."""
    sizes: dict[str, int] = {}
    repeats: list[Draft] = []
    """Drafts with an id that an earlier one of the batch has."""


def prepare(drafts: list[Draft]) -> Generator[None, Any, Prepared]:
    """Make the records of a batch, some in each step. It looks at no state, so nothing that happens meanwhile matters."""
    prepared = Prepared(drafts)
    counts: dict[tuple[str, str], int] = {}
    for done, draft in enumerate(drafts, 1):
        stream = draft.stream
        fresh = prepared.fresh.get(stream)
        if fresh is None:
            fresh = prepared.fresh[stream] = {}
            prepared.first[stream], prepared.sizes[stream] = {}, 0
        if not draft.is_named:
            key = (stream, draft.id)
            number = counts.get(key, 0)
            counts[key] = number + 1
            if number:
                draft = numbered(draft, number)
        if draft.id in fresh:
            prepared.repeats.append(draft)
        else:
            fresh[draft.id] = Record(draft.id, draft.kind, draft.body, draft.sender, draft.corr)
            prepared.first[stream][draft.id] = draft
            prepared.sizes[stream] += len(draft.body)
        if done % STEP_COST == 0:
            yield
    return prepared


class _Load(msgspec.Struct):
    """What a batch brings to one stream."""

    channel: Channel
    is_new: bool
    fresh: dict[str, Record]
    size: int = 0
    duplicates: int = 0
    victims: list[Record] = []


def last_batch(state: QueueState, app: str) -> int | None:
    """The newest batch of an application that is durable."""
    applied = state.applied.get(app)
    if applied is None:
        return None
    return applied.batch if applied.gate <= state.commit_log.decided else applied.before


def repeated(state: QueueState, app: str, batch: int) -> Taken | Refusal | None:
    """The answer to a batch that was taken before or must wait for another; None if it may be taken."""
    applied = state.applied.get(app)
    if applied is None:
        return None
    last = last_batch(state, app)
    if last is not None and batch <= last:
        return Taken(0, duplicate=True)
    if applied.gate <= state.commit_log.decided:
        return None
    if batch <= applied.batch:
        return Taken(applied.gate, duplicate=True)
    # If the pending batch were refused and this one kept, a retry of the pending one would look like a duplicate.
    busy = f"batch {applied.batch} of `{app}` is being written"
    return Refusal("JournalUnavailable", busy, ref=app, retry_after_ms=RETRY_WRITE_MS)


def unknown_app(state: QueueState, app: str) -> Refusal | None:
    """Why no further application can be remembered."""
    limit = state.limits.stage_apps_max
    if app in state.applied or len(state.applied) < limit:
        return None
    tenant, _ = split(app)  # they are remembered for good, so no tenant may use up what others need
    known = sum(split(other)[0] == tenant for other in state.applied)
    if known < limit:
        return None
    return Refusal(
        "QuotaExceeded",
        f"{known} applications are remembered and `limits.stage_apps_max` allows no more",
        ref=app,
        hint="use the name of a known application, or raise `limits.stage_apps_max`",
    )


def take(
    state: QueueState, now: Now, app: str, batch: int, given: list[Draft] | Prepared, *, is_remembered: bool = False
) -> Taken | Refusal:
    """Admit a whole batch and remember it, or change nothing. A batch without drafts is remembered only if `is_remembered`."""
    prepared = given if isinstance(given, Prepared) else Steps(prepare(given)).all()
    drafts = prepared.drafts
    if (answer := repeated(state, app, batch)) is not None:
        return answer
    if state.commit_log.draining:
        return Refusal("Draining", "the server is shutting down and takes nothing new")
    if not drafts and not is_remembered:
        return Taken(0)
    loads: dict[str, _Load] = {}
    refusal = unknown_app(state, app) or _fill(state, now, loads, prepared)
    if refusal is None:
        if state.triggers.on_insert:
            for load in loads.values():
                load.size += firing.enrich(state, now, load.channel, list(load.fresh.values()))
        refusal = _fit(state, now, loads)
    if refusal is not None:
        for load in loads.values():
            leave(state, now, load.channel, load.is_new)
        return refusal
    enqueued = 0
    for load in loads.values():
        drop(state, now, load.channel, load.victims)
        if load.fresh:
            fresh = list(load.fresh.values())
            admit(state, now, load.channel, fresh, load.size)
            if state.triggers.on_insert:
                firing.inserted(state, now, load.channel, fresh)
        load.channel.counters.dup += load.duplicates
        if load.duplicates and drafts[0].sender == PIPELINE:
            load.channel.count_own().dup += load.duplicates
        enqueued += len(load.fresh)
        state.rest(load.channel, now)
    applied = Applied(app, batch, enqueued, state.commit_log.gate, last_batch(state, app))
    state.applied[app] = applied
    state.commit_log.facts.append(applied)
    return Taken(state.commit_log.gate, enqueued)


def _fill(state: QueueState, now: Now, loads: dict[str, _Load], prepared: Prepared) -> Refusal | None:
    """Open the streams, and tell the new records of each from known ones."""
    for stream, fresh in prepared.fresh.items():
        is_new = not state.known(stream)
        channel = state.open_channel(stream)
        if isinstance(channel, Refusal):
            return channel
        state.ids -= channel.trim(now.us, state.commit_log.decided)
        load = loads[stream] = _Load(channel, is_new, fresh, prepared.sizes[stream])
        for id_ in [id_ for known in (channel.live, channel.settled) for id_ in fresh.keys() & known.keys()]:
            fresh.pop(id_, None)
            draft = prepared.first[stream][id_]
            load.size -= len(draft.body)
            if (refusal := _repeat(state, load, draft)) is not None:
                return refusal
    for draft in prepared.repeats:
        if (refusal := _repeat(state, loads[draft.stream], draft)) is not None:
            return refusal
    return None


def numbered(draft: Draft, number: int) -> Draft:
    """One of several equal rows, distinguished by its number."""
    id_ = f"{draft.id}-{number}"
    place = draft.body.index(draft.id.encode()) + len(draft.id)
    added = b"-%d" % number
    body = draft.body[:place] + added + draft.body[place:]
    start, end = draft.stamp
    stamp = (start + len(added), end + len(added)) if end else draft.stamp
    return msgspec.structs.replace(draft, id=id_, body=body, stamp=stamp)


def _repeat(state: QueueState, load: _Load, draft: Draft) -> Refusal | None:
    """Count a draft with a known id as a duplicate, or refuse it."""
    channel = load.channel
    id_ = draft.id
    own = load.fresh.get(id_)
    twin = own or channel.live.get(id_)
    if twin is not None:
        same = _is_same(draft, twin)
        if same and own is None and twin.state == PENDING and twin.batch != state.commit_log.gate:
            # One answer cannot wait for two commits that may end differently.
            busy = f"an earlier request with id `{id_}` is being written"
            return Refusal("JournalUnavailable", busy, ref=id_, retry_after_ms=RETRY_WRITE_MS)
    else:
        # Only a checksum of a settled record is left. If the server filled in a time, compare ids only.
        same = draft.stamp[1] > 0 or channel.settled[id_].check == crc32(draft.body)
    if not same:
        channel.counters.reject += 1
        return Refusal("IdConflict", f"id `{id_}` was used before with other content", ref=id_)
    load.duplicates += 1
    return None


def _is_same(draft: Draft, twin: Record) -> bool:
    start, end = draft.stamp
    mine, body = draft.body, twin.body
    if twin.check is not None:  # only a checksum is left: with a time of the server, compare ids only
        return end > 0 or is_same(twin, mine)
    return len(mine) == len(body) and mine[:start] == body[:start] and mine[end:] == body[end:]


def _fit(state: QueueState, now: Now, loads: dict[str, _Load]) -> Refusal | None:
    """Check every bound of every stream, before anything changes."""
    size = sum(load.size for load in loads.values())
    if size > state.limits.pending_max:
        message = f"the batch has {size} bytes and `limits.pending_max` allows no more at once"
        return Refusal("TooLarge", message, hint=SMALLER)
    if (refusal := overload(state, size)) is not None:
        return refusal
    for load in loads.values():
        channel = load.channel
        policy = channel.policy
        count = len(load.fresh)
        refusal = state.sort(channel, list(load.fresh.values())) if channel.ready_order is not None else None
        if refusal is not None:
            return refusal
        if count > policy.max_depth or load.size > policy.max_bytes:
            message = f"the batch brings {count} envelopes of {load.size} bytes to `{channel.name}`, more than it holds"
            hint = f"{SMALLER}, or raise the stream's `maxDepth` or `maxBytes`"
            return Refusal("TooLarge", message, ref=channel.name, hint=hint)
        victims = overflowing(channel, count, load.size)
        if isinstance(victims, Refusal):
            channel.counters.reject += count
            return victims
        load.victims = victims
    for load in loads.values():
        refusal = state.tenants.admit(now, load.channel, len(load.fresh), load.size)
        if refusal is not None:
            return refusal
    return None
