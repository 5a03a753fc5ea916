"""The health of a server: for each part a state, a reason, since when, the last failure, and what to do.

`/health`, `penstock doctor`, `penstock pipeline status` and `wait`, the console and the log all read it, so they agree. The
caller gives findings and the time; `Health` remembers when each began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from penstock.core.clock import rfc3339

State: TypeAlias = Literal["ok", "starting", "degraded", "failed", "off"]
Status: TypeAlias = Literal["ok", "degraded", "draining", "refusing"]

PARTS = ("doors", "journal", "disk", "relay", "pipeline", "lake")
NEEDED = ("journal", "disk")
"""Parts without which no new envelope is accepted."""
DISK_LOW_BYTES = 256 * 1024**2
"""Less free space than this fills up within minutes under load."""


class Finding(msgspec.Struct, frozen=True):
    """What is true of a part now."""

    state: State
    reason: str = ""
    """Why, or what it does; for people."""
    action: str = ""
    """What to do about it; empty when nothing is to be done."""
    failure: tuple[int, str] | None = None
    """When it failed last, and why, where the part knows it itself."""
    since_us: int = 0
    """Since when, where the part knows it itself."""

    @property
    def is_bad(self) -> bool:
        return self.state in ("degraded", "failed")


class PartHealth(msgspec.Struct):
    """One part: the finding, since when, and the last failure. Times are microseconds since 1970."""

    finding: Finding
    since_us: int
    failure: tuple[int, str] | None = None

    def to_json(self, *, is_full: bool = True) -> dict[str, Any]:
        """For people and programs; without the texts for those who may not read them."""
        finding, failure = self.finding, self.failure
        shown = {"state": finding.state, "since": rfc3339(self.since_us)}
        if not is_full:
            return shown
        last = None if failure is None else {"at": rfc3339(failure[0]), "reason": failure[1]}
        return shown | {"reason": finding.reason, "lastFailure": last, "action": finding.action or None}


def to_part(finding: Finding) -> PartHealth:
    """A part that is looked at once, from its files."""
    return PartHealth(finding, finding.since_us, finding.failure)


class Health:
    """The parts of one server."""

    def __init__(self) -> None:
        self.parts: dict[str, PartHealth] = {}

    def update(self, wall_us: int, findings: Mapping[str, Finding]) -> list[str]:
        """Take in the findings of now; returns the parts whose state changed, a part that starts sound not included."""
        changed = []
        for name, finding in findings.items():
            part = self.parts.get(name)
            if part is None:
                part = self.parts[name] = PartHealth(finding, wall_us)
                is_changed = finding.is_bad
            else:
                is_changed = part.finding.state != finding.state
            if is_changed:
                changed.append(name)
            if is_changed or finding.since_us:
                part.since_us = finding.since_us or wall_us
            if finding.failure is not None:
                part.failure = finding.failure
            elif finding.is_bad and (is_changed or part.finding.reason != finding.reason):
                part.failure = (wall_us, finding.reason)
            part.finding = finding
        return changed

    def status(self, *, is_draining: bool) -> Status:
        """Whether new envelopes are accepted, and whether every part is sound."""
        found = {name: part.finding for name, part in self.parts.items()}
        if is_draining:
            return "draining"
        if any(name in found and found[name].state == "failed" for name in NEEDED):
            return "refusing"
        return "degraded" if any(finding.is_bad for finding in found.values()) else "ok"


def journal_finding(trouble: str | None, notice: str | None = None, began_us: int = 0) -> Finding:
    """`notice` says what the recovery at the start lost."""
    if trouble is not None:
        action = "free some space, or replace the disk; the server checks every second and needs no restart"
        return Finding("failed", f"{trouble}: new envelopes are refused, settles go on", action)
    return Finding("ok", "accepts envelopes", failure=None if notice is None else (began_us, notice))


def disk_finding(free_bytes: int, reserved_bytes: int | None, full_bytes: int) -> Finding:
    """Free space, and what a running server reserves besides."""
    reason = f"{size_text(free_bytes)} free"
    if reserved_bytes:
        reason += f"; {size_text(reserved_bytes)} more are reserved for settles, so that acks fit on a full disk"
    elif reserved_bytes is not None:
        reason += "; the space that was reserved for settles is in use"
    if free_bytes >= DISK_LOW_BYTES:
        return Finding("ok", reason)
    action = "free some space, or shorten `journal.retention`"
    if free_bytes >= full_bytes:
        return Finding("degraded", f"the disk is almost full: {reason}", action)
    return Finding("failed", f"the disk is full: {reason}", action)


def doors_finding(
    connections: int, *, is_draining: bool, is_full: bool, slow: str | None, failure: tuple[int, str] | None
) -> Finding:
    """The listeners. `slow` describes the readers that hold most; `failure` is the last peer that was refused or cut."""
    count = f"{connections} connections"
    if is_draining:
        return Finding("degraded", f"draining: no new envelopes; {count}", "wait until it has stopped", failure)
    if is_full:
        action = "close some, or raise the limit of open files; `penstock doctor` says how"
        return Finding("degraded", f"{count} leave no descriptor for another one", action, failure)
    if slow is not None:
        action = "make the client read faster or grant less credit; `penstock stats` and the console show its streams"
        return Finding("degraded", f"slow reader: {slow}", action, failure)
    return Finding("ok", count, failure=failure)


def relay_finding(is_up: bool, restarts: int, topics: int, failure: tuple[int, str] | None) -> Finding:
    if is_up:
        return Finding("ok", f"{topics} topics, {restarts} restarts", failure=failure)
    if failure is None:
        return Finding("starting", "the process of the relay opens its sockets")
    action = "the server starts it again; the lines `relay.` in the log of the server say more"
    return Finding("failed", f"{failure[1]}; {restarts} restarts", action, failure)


def lake_finding(trouble: str | None) -> Finding:
    if trouble is None:
        return Finding("ok", "history moves into the table `events`")
    action = "free some space, or restore the table from a backup; `penstock log check` shows the damage"
    return Finding("degraded", f"{trouble}; history stays in segments", action)


def size_text(count: int) -> str:
    """Bytes for people."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
