"""The figures of `penstock top`: two readings of a server, and the rates between them.

Rates are differences of counters over the time between the looks. After a restart of the server counters begin anew, so the first look at a
new one has no rates, and says so with None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.client.admin import Counters, ServerFigures
from penstock.core.errors import PenstockError


class DoorFigures(msgspec.Struct, frozen=True):
    """One protocol."""

    name: str
    connected: int | None
    """Connections of Courier, participants of spaces, topics of the relay."""
    in_rate: float | None
    out_rate: float | None
    note: str = ""


class QueueFigures(msgspec.Struct, frozen=True):
    """One stream of Courier."""

    name: str
    depth: int
    inflight: int
    delayed: int
    in_rate: float | None
    out_rate: float | None
    p50_ms: float
    p95_ms: float
    oldest_ms: float
    consumers: int
    agents: list[str] = []
    """Who the first of them are."""


class SpaceStreamFigures(msgspec.Struct, frozen=True):
    """One stream of a space."""

    space: str
    name: str
    owner: str
    to: str
    frames: int
    rate: float | None
    deliveries_rate: float | None
    dropped: int


class PipelineFigures(msgspec.Struct, frozen=True):
    """The Spark pipeline."""

    state: str
    lag_rows: int
    restarts: int
    batch_ms: dict[str, float]


class Reading(msgspec.Struct, frozen=True):
    """The figures of one screen."""

    version: str
    status: str
    uptime_s: float
    connections: int
    doors: list[DoorFigures]
    queues: list[QueueFigures]
    """The deepest first, then the busiest."""
    streams: list[SpaceStreamFigures]
    """The busiest first."""
    dead_now: int
    """Dead letters that wait."""
    dead_ever: int
    """Envelopes that became dead letters since the journal began."""
    latency_ms: dict[str, float]
    """Enqueue to first delivery in the last minute, by quantile."""
    pipeline: PipelineFigures | None
    sees_spaces: bool
    """Whether the token shows what is in the spaces."""
    troubles: list[str] = []
    """The parts that are degraded or failed, and why."""


class Look(msgspec.Struct, frozen=True):
    """ServerFigures, and when they were read."""

    at_s: float
    figures: ServerFigures

    @property
    def boot(self) -> str:
        return str(self.figures.health.get("bootId"))


def read(before: Look | None, now: Look) -> Reading:
    """The figures of a reading, with rates if the reading before was of the same run of the server."""
    rates = _Rates(before if before is not None and before.boot == now.boot else None, now)
    figures = now.figures
    value = _Values(figures.counters)
    health = figures.health
    return Reading(
        version=str(health.get("version", "")),
        status=str(health.get("status", "")),
        uptime_s=float(health.get("uptime", 0.0)),
        connections=int(value("penstock_links")),
        doors=_doors(value, rates, health),
        queues=sorted(
            (_queue(entry, rates) for entry in figures.streams),
            key=lambda queue: (-queue.depth - queue.inflight, -(queue.in_rate or 0), queue.name),
        ),
        streams=sorted(
            (_stream(space, one, rates) for space in figures.spaces or () for one in space["streams"]),
            key=lambda stream: (-(stream.rate or 0), -stream.frames, stream.space, stream.name),
        ),
        dead_now=int(value("penstock_dead_letters")),
        dead_ever=int(value("penstock_q_dead_total")),
        latency_ms={share: value("penstock_q_lat_ms", quantile=share) for share in ("0.5", "0.95", "0.99")},
        pipeline=_pipeline(value, health),
        sees_spaces=figures.spaces is not None,
        troubles=[
            f"{name}: {part.get('reason', part['state'])}"
            for name, part in health.get("parts", {}).items()
            if part["state"] in ("degraded", "failed")
        ],
    )


class ServerPoller:
    """Polls a server, and continues after it was away."""

    def __init__(self, fetch: Callable[[], ServerFigures], clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._clock = clock
        self._last: Look | None = None
        self.reading: Reading | None = None
        """The latest reading."""
        self.trouble: str | None = None
        """Why there is no newer reading."""

    def look(self) -> None:
        """Read once. A server that does not answer is noted in `trouble`; a refusal is raised."""
        try:
            figures = self._fetch()
        except PenstockError as error:
            if not error.retryable:
                raise
            self.trouble = error.refusal.message
            return
        look = Look(self._clock(), figures)
        self.reading = read(self._last, look)
        self._last, self.trouble = look, None


class _Values:
    """Samples of `/metrics`; a missing one is 0."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def __call__(self, name: str, **labels: str) -> float:
        return self._counters.get((name, tuple(sorted(labels.items()))), 0.0)

    def total(self, name: str) -> float:
        """The sum over all labels."""
        return sum(value for (known, _), value in self._counters.items() if known == name)

    def by(self, name: str, label: str) -> dict[str, float]:
        return {dict(labels)[label]: value for (known, labels), value in self._counters.items() if known == name}


class _Rates:
    """Differences over the time between two readings."""

    def __init__(self, before: Look | None, now: Look) -> None:
        self._before = before
        self._now = now
        self._queues = {} if before is None else {one["id"]: one["q"] for one in before.figures.streams}
        self._streams = {
            (space["id"], one["stream_id"]): one
            for space in (before.figures.spaces if before is not None else None) or ()
            for one in space["streams"]
        }

    def sum(self, name: str) -> float | None:
        if self._before is None:
            return None
        total = _Values(self._now.figures.counters).total(name)
        return self._rate(total - _Values(self._before.figures.counters).total(name))

    def queue(self, entry: Mapping[str, Any], key: str) -> float | None:
        known = self._queues.get(entry["id"])
        return None if known is None else self._rate(entry["q"][key] - known[key])

    def stream(self, space: str, entry: Mapping[str, Any], key: str) -> float | None:
        known = self._streams.get((space, entry["stream_id"]))
        return None if known is None else self._rate(entry[key] - known[key])

    def _rate(self, difference: float) -> float | None:
        assert self._before is not None
        seconds = self._now.at_s - self._before.at_s
        return max(difference, 0.0) / seconds if seconds > 0 else None


def _doors(value: _Values, rates: _Rates, health: Mapping[str, Any]) -> list[DoorFigures]:
    def door(name: str, connected: float, came: str, went: str, note: str) -> DoorFigures:
        return DoorFigures(name, int(connected), rates.sum(f"penstock_{came}"), rates.sum(f"penstock_{went}"), note)

    participants = value.total("penstock_space_participants")
    note = f"streams: {int(value('penstock_streams'))}"
    doors = [door("courier", value("penstock_links") - participants, "q_in_total", "q_out_total", note)]
    if health.get("spaces"):
        saved = value.total("penstock_space_broadcast_total") - value.total("penstock_space_deliveries_total")
        note = f"spaces: {health['spaces']}; targets saved {int(saved)} deliveries"
        doors.append(door("mew", participants, "space_frames_total", "space_deliveries_total", note))
    if "relay" in health:
        state = "up" if value("penstock_relay_up") else "down, being started again"
        note = f"{state}; restarts: {int(value('penstock_relay_restarts_total'))}"
        topics = value("penstock_relay_topics")
        doors.append(door("relay", topics, "relay_messages_total", "relay_forwarded_total", note))
    return doors


def _queue(entry: Mapping[str, Any], rates: _Rates) -> QueueFigures:
    stats = entry["stats"]
    return QueueFigures(
        name=entry["id"],
        depth=stats["depth"],
        inflight=stats["inflight"],
        delayed=stats.get("delayed", 0),
        in_rate=rates.queue(entry, "q.in"),
        out_rate=rates.queue(entry, "q.out"),
        p50_ms=stats["latP50"],
        p95_ms=stats["latP95"],
        oldest_ms=stats.get("oldestMs", 0),
        consumers=stats.get("consumers", 0),
        agents=stats.get("agents", []),
    )


def _stream(space: Mapping[str, Any], one: Mapping[str, Any], rates: _Rates) -> SpaceStreamFigures:
    return SpaceStreamFigures(
        space=space["id"],
        name=one.get("name") or one["stream_id"],
        owner=one["owner"],
        to=", ".join(one.get("target") or ()) or "everybody",
        frames=one["frames"],
        rate=rates.stream(space["id"], one, "frames"),
        deliveries_rate=rates.stream(space["id"], one, "deliveries"),
        dropped=one["dropped"],
    )


def _pipeline(value: _Values, health: Mapping[str, Any]) -> PipelineFigures | None:
    if "pipeline" not in health:
        return None
    return PipelineFigures(
        state=str(health["pipeline"]),
        lag_rows=int(value("penstock_pipeline_lag_rows")),
        restarts=int(value("penstock_pipeline_restarts_total")),
        batch_ms=value.by("penstock_pipeline_batch_ms", "query"),
    )
