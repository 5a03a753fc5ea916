"""Recovery: rebuild the machine from its rows, and write its state as rows.

`snapshot` returns the state as rows and `resume` takes them back. `restore` applies rows of history in offset order, without effects
or facts; `recovered` then makes leased and due records ready. A row about a record that is not live is skipped: the record was
settled before the first row. The machines of other protocols have the same four verbs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice

import msgspec
from msgspec.structs import replace

from penstock.core.clock import Now
from penstock.core.queue import stage
from penstock.core.queue.channel import Channel, Seen
from penstock.core.queue.counters import Counters
from penstock.core.queue.state import Dormant, QueueState
from penstock.core.queue.views import LATEST, is_inbox
from penstock.core.records import DELAYED, HELD, LEASED, PENDING, READY, Applied, Note, Record, Ruled, shared
from penstock.core.rows import Row, row_of
from penstock.core.scopes import PIPELINE

_OUTCOMES = {
    "ack": ("ack", "acked"),
    "dead": ("dead", "dead"),
    "drop": ("drop", "dropped"),
    "purge": ("purged", "purged"),
    "move": ("moved", "moved"),
}


class _Meta(msgspec.Struct, omit_defaults=True):
    """The `meta` column of the rows of a record."""

    due: int = 0
    moved: bool = False
    fate: str = ""
    scheduled: int = 0
    released: int = 0
    """Written by earlier versions: deliveries that did not count."""
    failures: int | None = None
    """If not every delivery failed."""
    abandoned: int = 0
    error: str | None = None
    check: int | None = None


class _Gauge(msgspec.Struct):
    """What the rows of a channel keep: every count of invariant 2, and when it was last used."""

    counters: Counters
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    last: int = 0
    floor: int = 0


class _MinuteGauge(_Gauge):
    """A gauge in the history, with what readers need besides."""

    minute: int = 0
    """Start of the minute that it closes."""
    oldest: float = 0
    """Age of the oldest ready record in milliseconds."""
    delta: dict[str, int] = {}
    """How much each counter grew since the last gauge."""
    own: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """What of `delta` and of the depths is the pipeline's own, where there is any: its tables leave that out."""


OLDEST_LOOK_MAX = 10_000
"""Records searched for the oldest ready one; beyond that its age is a lower bound."""
_NOTHING = _Meta()
_OBSERVED = ("out", "re", "nack", "release", "timeout", "dup", "reject")
"""Counters without facts: only the latest gauge has them."""


def _meta(row: Row) -> _Meta:
    return msgspec.json.decode(row.meta, type=_Meta) if row.meta else _NOTHING


def _gauge(state: QueueState, channel: Channel | Dormant) -> str:
    return _measured(_Gauge(channel.counters, last=channel.last_wall_us, floor=state.seq_floor), channel)


def _measured(gauge: _Gauge, channel: Channel | Dormant) -> str:
    if isinstance(channel, Channel):
        gauge.ready, gauge.leased, gauge.delayed = channel.depth, channel.leased, channel.postponed
    return msgspec.json.encode(gauge).decode()


def tick(state: QueueState, now: Now, minute_us: int | None = None) -> None:
    """Write a `tick`, so that windows over history close; with a minute, close it for every channel at once."""
    state.commit_log.note(Note("tick", "server"))
    if minute_us is not None:
        close_minute(state, now, minute_us, list(state.channels.values()))


def close_minute(state: QueueState, now: Now, minute_us: int, channels: list[Channel]) -> None:
    """Write a `gauge` of each of these channels that changed: it closes the minute for them. O(channels)."""
    for channel in channels:
        # Skip an object whose channel was unloaded and loaded again.
        if not _is_ungauged(channel) or state.channels.get(channel.name) is not channel:
            continue
        gauge = _MinuteGauge(
            channel.counters,
            own=_take_own(channel),
            last=channel.last_wall_us,
            floor=state.seq_floor,
            minute=minute_us,
            oldest=_oldest_ms(now, channel),
            delta=_growth(channel),
        )
        channel.gauged = replace(channel.counters)
        channel.wants_gauge = False
        meta = _measured(gauge, channel)
        state.commit_log.note(Note("gauge", "courier", channel.name, channel.seq, meta))


def is_gauged(state: QueueState) -> bool:
    """Whether every channel in memory has a current gauge."""
    return not any(_is_ungauged(channel) for channel in state.channels.values())


def _is_ungauged(channel: Channel) -> bool:
    return channel.wants_gauge or channel.counters != channel.gauged


def _growth(channel: Channel) -> dict[str, int]:
    """What grew since the last gauge. A refused settle lowers a counter, which is not reported."""
    before = msgspec.to_builtins(channel.gauged)
    counts = msgspec.to_builtins(channel.counters)
    return {name: count - before[name] for name, count in counts.items() if count > before[name]}


def _oldest_ms(now: Now, channel: Channel) -> float:
    """The age of the oldest ready record, 0 if none is ready. Live records are in order of arrival."""
    if not channel.ready:
        return 0
    arrived_us = now.us
    for record in islice(channel.live.values(), OLDEST_LOOK_MAX):
        if record.sender == PIPELINE:
            continue
        arrived_us = record.arrived_us
        if record.state == READY:
            break
    else:
        if len(channel.live) <= OLDEST_LOOK_MAX:
            return 0  # only the pipeline's own records are ready
    return round(max(now.us - arrived_us, 0) / 1000, 3)


def _take_own(channel: Channel) -> dict[str, int] | msgspec.UnsetType:
    """The counts and depths of what the pipeline sent, which start again. O(live records), only where it sent something."""
    if channel.own is None:
        return msgspec.UNSET
    states = Counter(record.state for record in channel.live.values() if record.sender == PIPELINE)
    depths = {"ready": states[READY], "leased": states[LEASED], "delayed": states[DELAYED] + states[HELD]}
    counts = msgspec.to_builtins(channel.own)
    channel.own = Counters() if states else None
    return {name: count for name, count in (counts | depths).items() if count}


def note(state: QueueState, event: str, meta: str) -> None:
    """Write a row about the server itself."""
    state.commit_log.note(Note(event, "server", meta=meta))


def snapshot(state: QueueState, now: Now) -> Iterator[Row]:
    """The whole state as rows: each application's newest batch, each channel's gauge, ids and live records, the kept view."""
    for app, applied in state.applied.items():
        batch = stage.last_batch(state, app)
        if batch is not None:
            applied = Applied(app, batch, applied.envelopes)
            yield Row(door="server", event=applied.event, meta=applied.meta)
    for rule_id, text in state.triggers.texts.items():
        ruled = Ruled(rule_id, text)
        yield Row(door="server", event=ruled.event, meta=ruled.meta)
    for name, dormant in state.dormant.items():
        yield Row(event="gauge", channel=name, seq=dormant.seq, meta=_gauge(state, dormant))
        yield from _window(name, dormant.settled, now)
    for name, channel in state.channels.items():
        yield Row(event="gauge", channel=name, seq=channel.seq, meta=_gauge(state, channel))
        yield from _window(name, channel.settled, now)
        for record in channel.live.values():
            if record.offset >= 0:
                yield _live_row(record)
    for entry in state.views.latest.rows.values():
        yield Row(event="view", channel=entry.addr, kind=LATEST, body=entry.data)


def _window(name: str, settled: dict[str, Seen], now: Now) -> Iterator[Row]:
    for id_, seen in settled.items():
        at = now.wall_us - (now.us - seen.settled_us)
        check = str(seen.check)
        yield Row(recorded_at=at, event="seen", channel=name, seq=seen.seq, id=id_, reason=seen.outcome, meta=check)


def _live_row(record: Record) -> Row:
    meta = _Meta(
        record.due_wall_us,
        fate=record.fate,
        scheduled=record.scheduled_wall_us,
        failures=None if record.failures == record.attempt else record.failures,
        abandoned=record.abandoned,
        error=record.error,
        check=record.check,
    )
    return replace(
        row_of(record),
        offset=record.offset,
        recorded_at=record.recorded_us,
        attempt=record.attempt,
        size=None,
        first_at=record.first_wall_us or None,
        meta=None if meta == _NOTHING else msgspec.json.encode(meta).decode(),
    )


def resume(state: QueueState, now: Now, row: Row) -> None:
    """Take back one row of a snapshot."""
    if row.door != "courier":
        _restore_tick(state, row)
        return
    if row.event == "gauge":
        # Keep it dormant until a live record shows up: most streams of a long history are empty.
        gauge = msgspec.json.decode(row.meta or "{}", type=_Gauge)
        counters = gauge.counters
        state.dormant[row.channel] = Dormant(row.seq, counters, {}, deque(), gauge.last, replace(counters))
        state.asleep.add(counters)
        state.seq_floor = max(state.seq_floor, gauge.floor)
        return
    if row.event == "view":
        state.views.latest.put(row.channel, row.channel, row.body or b"{}")
        return
    assert row.id is not None
    if row.event == "seen":
        dormant = state.dormant[row.channel]
        at_us = now.us - max(now.wall_us - row.recorded_at, 0)
        dormant.settled[row.id] = Seen(row.seq, int(row.meta or 0), at_us, row.reason or "", 0)
        dormant.order.append(row.id)
        state.ids += 1
        return
    channel = state.channels.get(row.channel) or state.load(row.channel)
    meta = _meta(row)
    record = _live_again(state, now, channel, row)
    record.due_wall_us, record.fate, record.error, record.check = meta.due, meta.fate, meta.error, meta.check
    record.scheduled_wall_us, record.abandoned = meta.scheduled, meta.abandoned
    record.attempt = row.attempt or 0
    record.failures = record.attempt - meta.released if meta.failures is None else meta.failures
    record.first_wall_us = row.first_at or 0


def restore(state: QueueState, now: Now, row: Row) -> None:
    """Apply one row of the past."""
    if row.door != "courier":
        _restore_tick(state, row)
        return
    if row.event == "enqueue":
        _restore_enqueue(state, now, row)
        return
    channel = state.channels.get(row.channel)
    if row.event == "gauge" and channel is not None and row.meta:
        latest = msgspec.json.decode(row.meta, type=_Gauge).counters
        for name in _OBSERVED:
            setattr(channel.counters, name, getattr(latest, name))
        return
    record = None if channel is None or row.id is None else channel.live.get(row.id)
    if channel is None or record is None or record.seq != row.seq:
        return
    record.attempt = max(record.attempt, row.attempt or 0)
    record.first_wall_us = row.first_at or record.first_wall_us
    if row.event in ("nack", "timeout", "release"):
        meta = _meta(row)
        record.abandoned = max(record.abandoned, meta.abandoned)
        if meta.failures is not None:
            record.failures = meta.failures
        elif row.event != "release":
            record.failures = record.attempt
        if row.event != "timeout":
            record.due_wall_us = meta.due
    if row.event == "nack":
        channel.counters.nack += not meta.fate  # with a fate: the dead letters are full
        record.error = row.reason
        record.fate = meta.fate
        return
    settled = _OUTCOMES.get(row.event)
    if settled is None:
        return
    counter, outcome = settled
    setattr(channel.counters, counter, getattr(channel.counters, counter) + 1)
    then = Now(now.us - max(now.wall_us - row.recorded_at, 0), now.wall_us)
    state.settle(record, outcome, then, durable=True)


class _Tick(msgspec.Struct):
    """The content of a tick: a batch of an application, or a rule that was added or removed."""

    app: str | None = None
    batch: int = 0
    envelopes: int = 0
    trigger: str | None = None
    rule: msgspec.Raw = msgspec.Raw(b"null")


def _restore_tick(state: QueueState, row: Row) -> None:
    """Apply a tick; most carry only the time."""
    if row.door != "server" or row.event != "tick" or not row.meta:
        return
    tick = msgspec.json.decode(row.meta, type=_Tick)
    if tick.app is not None:
        state.applied[tick.app] = Applied(tick.app, tick.batch, tick.envelopes)
    elif tick.trigger is not None:
        text = bytes(tick.rule).decode()
        if text == "null":
            state.triggers.texts.pop(tick.trigger, None)
        else:
            state.triggers.texts[tick.trigger] = text


def _restore_enqueue(state: QueueState, now: Now, row: Row) -> None:
    channel = state.channels.get(row.channel) or state.load(row.channel)
    assert row.id is not None
    if row.id in channel.settled:  # taken again by a redrive, or after its window
        channel.unsettle(row.id)
        state.ids -= 1
    record = _live_again(state, now, channel, row)
    meta = _meta(row)
    record.due_wall_us = record.scheduled_wall_us = meta.due
    record.check = meta.check
    if not meta.moved and is_inbox(row.channel):
        state.views.latest.put(row.channel, row.channel, record.body)
    channel.counters.in_ += 1
    channel.last_wall_us = row.recorded_at


def _live_again(state: QueueState, now: Now, channel: Channel, row: Row) -> Record:
    assert row.id is not None
    assert row.body is not None
    sender = shared(row.sender) if row.sender else None
    record = Record(row.id, shared(row.kind or ""), row.body, sender, row.corr)
    record.channel = channel
    record.seq = row.seq
    record.offset = row.offset
    record.recorded_us = row.recorded_at
    record.arrived_us = now.us - max(now.wall_us - row.recorded_at, 0)
    if sender == PIPELINE:
        channel.count_own()
    if channel.ready_order is not None:
        state.sort(channel, [record])
    channel.live[record.id] = record
    channel.seq = max(channel.seq, row.seq)
    channel.bytes += len(record.body)
    state.bytes += len(record.body)
    return record


def recovered(state: QueueState, now: Now) -> None:
    """Everything has been restored: make records ready in sequence order, or delayed until they are due."""
    for channel in list(state.channels.values()):
        for record in channel.live.values():
            if record.state != PENDING:
                continue
            if record.fate:
                record.due_wall_us = now.wall_us
                channel.make_held(record)
                state.timers.arm(now.us, record)
            elif record.due_wall_us > now.wall_us:
                channel.make_delayed(record)
                state.timers.arm(now.us + record.due_wall_us - now.wall_us, record)
                assert record.state == DELAYED
            else:
                channel.make_ready(record, now.us)
                assert record.state == READY
        # Do not report earlier counts again; report the current state of the records.
        channel.gauged = replace(channel.counters)
        channel.wants_gauge = bool(channel.live)
        state.rest(channel, now)
    state.tenants.recovered()
    for name, dormant in state.dormant.items():
        if dormant.order:
            state.timers.arm(now.us + state.policy_for(name).dedup_us, dormant)
