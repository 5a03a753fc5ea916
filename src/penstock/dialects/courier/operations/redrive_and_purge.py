"""`POST /v1/redrive`, `/v1/purge` and `/v1/drop`: send dead letters back to their stream, and drop what waits in one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.names import stream_problem
from penstock.core.queue.dead_letters import begin_purge
from penstock.core.queue.machine import QueueMachine
from penstock.core.scopes import Principal
from penstock.core.steps import Steps
from penstock.core.tenants import dead_name, home_name
from penstock.dialects.courier.operations.outcomes import Body, Outcome, Result, as_known, check_access, forbidden

PURGE_STEP = 2_500
"""Envelopes that a purge holds, and later drops, in one turn: about 10 ms."""
IDS_MAX = 1_000
"""Ids of one request. Finding them is one pass over the stream, in a turn of its own: 5 to 20 ms for 50,000 envelopes."""
Ids = Annotated[list[str], msgspec.Meta(min_length=1, max_length=IDS_MAX)]


class RedriveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/redrive`."""

    stream: str
    max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000
    ids: Ids | None = None
    """Only these dead letters, all of them or none."""


class StreamRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request that only names a stream."""

    stream: str


class DropRequest(StreamRequest):
    """`POST /v1/drop`: envelopes that wait in a stream, all of them or none."""

    ids: Ids


def redrive(machine: QueueMachine, now: Now, principal: Principal, request: RedriveRequest) -> Outcome:
    """Move dead letters back to their stream, at once."""
    return Steps(redrive_steps(machine, now, principal, request)).all(now)


def redrive_steps(
    machine: QueueMachine, now: Now, principal: Principal, request: RedriveRequest
) -> Generator[None, Now, Outcome]:
    """Move dead letters back, in steps. Needs `subscribe` on the dead letters and `enqueue` on the stream."""
    dead = dead_name(principal.to_channel(request.stream))
    refusal = (
        stream_problem(request.stream, machine.limits.name_max)
        or forbidden(principal, "subscribe", dead)
        or forbidden(principal, "enqueue", home_name(dead))
    )
    if refusal is not None:
        return refusal
    job = machine.begin_redrive(now, dead, request.max, request.ids)
    if isinstance(job, Refusal):
        return as_known(principal, dead, job)
    while job.waiting:
        yield
        machine.send_back(job)

    def body() -> Body:
        channel = machine.channels.get(dead)
        return {"moved": job.moved, "kept": len(job.kept), "left": 0 if channel is None else len(channel.ready)}

    return Result(body, machine.commit_log.gate)


def drop_steps(machine: QueueMachine, principal: Principal, request: DropRequest) -> Generator[None, Now, Outcome]:
    """Drop envelopes that wait in a stream, by their ids, in the next turn; needs `admin`."""
    now = yield
    refusal = check_access(machine, principal, "admin", request.stream)
    if refusal is not None:
        return refusal
    name = principal.to_channel(request.stream)
    channel = machine.find(name)
    dropped = channel if isinstance(channel, Refusal) else machine.drop(now, channel, request.ids, principal.name)
    if isinstance(dropped, Refusal):
        return as_known(principal, name, dropped)
    return Result({"dropped": dropped}, machine.commit_log.gate)


def purge_steps(
    machine: QueueMachine, now: Now, principal: Principal, request: StreamRequest
) -> Generator[None, Now, Outcome]:
    """Drop what waits in a stream; needs `admin`. Its steps hold all of it, then drop it. Readers see all of it until the last one is held."""
    refusal = check_access(machine, principal, "admin", request.stream)
    if refusal is not None:
        return refusal
    name = principal.to_channel(request.stream)
    channel = machine.find(name)
    if isinstance(channel, Refusal):
        return as_known(principal, name, channel)
    job = yield from begin_purge(channel, PURGE_STEP)
    for start in range(0, len(job.records), PURGE_STEP):
        now = yield
        machine.purge_part(now, job, start, PURGE_STEP)
    return Result({"purged": len(job.records)}, machine.commit_log.gate)


def move_steps(
    machine: QueueMachine, principal: Principal, request: RedriveRequest | DropRequest | StreamRequest
) -> Generator[None, Now, Outcome]:
    """What the request asks for, from the next step on."""
    if isinstance(request, DropRequest):
        return (yield from drop_steps(machine, principal, request))
    now = yield
    if isinstance(request, RedriveRequest):
        return (yield from redrive_steps(machine, now, principal, request))
    return (yield from purge_steps(machine, now, principal, request))
