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
JOURNAL_ENDED = "the journal's thread has ended; restart the server"
DISK_FULL = "the disk is full"
DISK_LOW_BYTES = 256 * 1024**2
"""Less free space than this fills up within minutes under load."""


class PartHealth(msgspec.Struct, frozen=True):
    """What is true of a part. Times are microseconds since 1970."""

    state: State
    reason: str = ""
    """Why, or what it does; for people."""
    action: str = ""
    """What to do about it; empty when nothing is to be done."""
    failure: tuple[int, str] | None = None
    """When it failed last, and why; `Health` fills this and `since_us` where the part does not know them."""
    since_us: int = 0

    @property
    def is_bad(self) -> bool:
        return self.state in ("degraded", "failed")

    def to_json(self, *, is_full: bool = True) -> dict[str, Any]:
        """For people and programs; without the texts for those who may not read them."""
        shown = {"state": self.state, "since": rfc3339(self.since_us)}
        if not is_full:
            return shown
        last = self.failure and {"at": rfc3339(self.failure[0]), "reason": self.failure[1]}
        return shown | {"reason": self.reason, "lastFailure": last, "action": self.action or None}


class Health:
    """The parts of one server, each with its times."""

    def __init__(self) -> None:
        self.parts: dict[str, PartHealth] = {}

    def update(self, wall_us: int, findings: Mapping[str, PartHealth]) -> list[str]:
        """Take in the findings of now; returns the parts whose state changed, a part that starts sound not included."""
        changed = []
        for name, finding in findings.items():
            was = self.parts.get(name)
            if finding.is_bad if was is None else was.state != finding.state:
                changed.append(name)
            since_us = wall_us if was is None or was.state != finding.state else was.since_us
            failure = None if was is None else was.failure
            if finding.is_bad and (name in changed or was is None or was.reason != finding.reason):
                failure = (wall_us, finding.reason)
            self.parts[name] = msgspec.structs.replace(
                finding, since_us=finding.since_us or since_us, failure=finding.failure or failure
            )
        return changed

    def status(self, *, is_draining: bool) -> Status:
        """Whether new envelopes are accepted, and whether every part is sound."""
        if is_draining:
            return "draining"
        if any(part.state == "failed" and name in NEEDED for name, part in self.parts.items()):
            return "refusing"
        return "degraded" if any(part.is_bad for part in self.parts.values()) else "ok"


def refused_by(trouble: str) -> str:
    """What a journal with this trouble refuses. Only a full disk has space reserved for settles."""
    what = (
        "new envelopes are refused, settles go on" if trouble == DISK_FULL else "new envelopes and settles are refused"
    )
    return f"{trouble}: {what}"


def journal_finding(trouble: str | None, notice: str | None, needed_bytes: int) -> PartHealth:
    """`notice` says what the recovery at the start lost; with `needed_bytes` of free space a full disk counts as recovered."""
    if trouble is None:
        return PartHealth("ok", notice or "accepts envelopes")
    if trouble == JOURNAL_ENDED:
        return PartHealth("failed", refused_by(trouble), "restart the server; the log has the cause")
    space = f"let the disk have {size_text(needed_bytes)} of free space, the reserve for settles included"
    action = f"{space}, or replace it; the server checks every second and needs no restart"
    return PartHealth("failed", refused_by(trouble), action)


def disk_finding(free_bytes: int | None, reserved_bytes: int | None, full_bytes: int) -> PartHealth:
    """Free space, None when it cannot be read, and what a running server reserves besides."""
    if free_bytes is None:
        action = "check that its file system is mounted and sound; the part `journal` has the reason"
        return PartHealth("failed", "the free space of the disk cannot be read", action)
    reason = f"{size_text(free_bytes)} free"
    if reserved_bytes:
        reason += f"; {size_text(reserved_bytes)} more are reserved for settles, so that acks fit on a full disk"
    elif reserved_bytes is not None:
        reason += "; the space that was reserved for settles is in use"
    if free_bytes >= DISK_LOW_BYTES:
        return PartHealth("ok", reason)
    action = "free some space, or shorten `journal.retention`"
    if free_bytes >= full_bytes:
        return PartHealth("degraded", f"the disk is almost full: {reason}", action)
    return PartHealth("failed", f"the disk is full: {reason}", action)


def doors_finding(
    connections: int, *, is_draining: bool, is_full: bool, slow: str | None, failure: tuple[int, str] | None
) -> PartHealth:
    """The listeners. `slow` describes the readers that hold most; `failure` is the last peer that was refused or cut."""
    count = f"{connections} connections"
    if is_draining:
        return PartHealth("off", f"draining: no new envelopes; {count}", failure=failure)
    if is_full:
        action = "close some, or raise the limit of open files; `penstock doctor` says how"
        return PartHealth("degraded", f"{count} leave no descriptor for another one", action, failure)
    if slow is not None:
        action = "make the client read faster or grant less credit; `penstock stats` and the console show its streams"
        return PartHealth("degraded", f"slow reader: {slow}", action, failure)
    return PartHealth("ok", count, failure=failure)


def relay_finding(is_up: bool, restarts: int, topics: int, failure: tuple[int, str] | None) -> PartHealth:
    if is_up:
        return PartHealth("ok", f"{topics} topics, {restarts} restarts", failure=failure)
    if failure is None:
        return PartHealth("starting", "the process of the relay opens its sockets")
    action = "the server starts it again; the lines `relay.` in the log of the server say more"
    return PartHealth("failed", f"{failure[1]}; {restarts} restarts", action, failure)


def lake_finding(trouble: str | None) -> PartHealth:
    if trouble is None:
        return PartHealth("ok", "history moves into the table `events`")
    action = "free some space, reach the object store, or restore the table from a backup; `penstock doctor` says which"
    return PartHealth("degraded", f"{trouble}; history stays in segments", action)


def size_text(count: int) -> str:
    """Bytes for people."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
