"""The entry of a load process: `python -m penstock.bench.roles JOB`, which prints `Report` as JSON.

A consumer prints one line more, when it has subscribed. One role is a server under the profiler.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Coroutine
from typing import Any

import msgspec

from penstock.bench import redis_load
from penstock.bench.consuming import open_consumer
from penstock.bench.jobs import Job, Report

READY = '{"ready":true}'


def _run(work: Coroutine[Any, Any, Report]) -> Report:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _consume(job: Job) -> Report:
    consumer = await (open_consumer if job.role == "consume" else redis_load.open_lean_consumer)(job)
    print(READY, flush=True)
    return await consumer.done


def perform(job: Job) -> Report:
    """Do the job in this process."""
    from penstock.bench import cycles, fanout_loads, following, holding, posting, producing

    match job.role:
        case "produce":
            return _run(producing.produce(job))
        case "pace":
            return producing.pace(job)
        case "consume" | "redis-consume":
            return _run(_consume(job))
        case "post":
            return _run(posting.post(job))
        case "idle":
            return _run(holding.hold(job))
        case "follow":
            return _run(following.follow(job))
        case "change":
            return _run(following.change(job))
        case "core":
            return cycles.cycle(job)
        case "fan-publish":
            return fanout_loads.publish(job)
        case "fan-receive":
            return fanout_loads.receive(job, lambda: print(READY, flush=True))
        case "fan-pace":
            return fanout_loads.pace(job)
        case "relay-publish" | "relay-receive" | "relay-register" | "relay-hold" | "relay-verify":
            return _relay(job)
        case "redis-produce":
            return _run(redis_load.lean_produce(job))
        case "redis-pace":
            return redis_load.lean_pace(job)
        case "redis-py-produce":
            return redis_load.stock_produce(job)
        case "redis-py-consume":
            return redis_load.stock_consume(job)
        case _:
            return Report(error=f"there is no role `{job.role}`")


def _relay(job: Job) -> Report:
    from penstock.bench import relay_loads

    def announce() -> None:
        print(READY, flush=True)

    match job.role:
        case "relay-publish":
            return relay_loads.publish(job)
        case "relay-receive":
            return relay_loads.receive(job, announce)
        case "relay-hold":
            return relay_loads.hold(job, announce)
        case "relay-register":
            return relay_loads.register(job)
        case _:
            return relay_loads.verify(job)


def serve(profile: str, words: list[str]) -> int:
    """`penstock up` under cProfile; the figures are in `profile` when it has stopped."""
    import cProfile

    from penstock.cli import main

    profiler = cProfile.Profile()
    try:
        return profiler.runcall(main, ["up", *words])
    finally:
        profiler.dump_stats(profile)


def serve_relay(profile: str) -> int:
    """The relay's process under cProfile."""
    import cProfile

    from penstock.server.relay.process import main

    profiler = cProfile.Profile()
    try:
        return profiler.runcall(main)
    finally:
        profiler.dump_stats(profile)


def run(words: list[str]) -> int:
    if words[0] == "serve":
        return serve(words[1], words[2:])
    if words[0] == "relay":
        return serve_relay(words[1])
    if words[0] == "proxy":
        from penstock.bench.relay_servers import run_proxy

        return run_proxy(words[1], words[2])
    job = msgspec.json.decode(words[0], type=Job)
    start_s = _cpu_s()
    try:
        report = perform(job)
    except (OSError, ValueError) as error:
        report = Report(error=f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        return 130
    report.cpu_s = _cpu_s() - start_s
    print(msgspec.json.encode(report).decode(), flush=True)
    return 0 if report.error is None else 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
