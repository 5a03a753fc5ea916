"""`penstock doctor`: checks of this machine and of the server."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.resources
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

import penstock
from penstock.cli.history.journal import endpoints_file
from penstock.cli.ops.config import load_config
from penstock.cli.options import DEFAULTS, EXIT_CHECK, Common, http_server
from penstock.cli.output import print_json, print_table
from penstock.core.errors import PenstockError
from penstock.core.health import disk_finding

if TYPE_CHECKING:
    from penstock.client.address import ServerEndpoints
    from penstock.server.config.load import Config

SERVER_S = 5.0
"""How long a server may take to answer."""
SYNC_SLOW_MS = 50.0
"""A disk slower than this makes every answer slow."""
CLOCK_LEAST_S = 1_700_000_000
"""Any clock before the end of 2023 is wrong."""
SYNC_ROUNDS = 8
CLOCK_FAR_S = 5.0
"""Clocks that differ by more than this make leases and tables look wrong."""
ROWS_LOOKED_AT = 1_000
"""Rows at the end of the journal that are read; `penstock log check` reads all of them."""
FINDINGS_SHOWN = 5
"""Damaged files of tables, and streams with failing envelopes, that are named."""
LIBRARIES = ("aiohttp", "cyclopts", "deltalake", "msgspec", "pyarrow", "pyzmq", "rich")
"""The libraries of the server."""
SPARK_LEAST = (4, 2)
"""The first Spark whose Python sources have admission control."""


class CheckResult(msgspec.Struct, frozen=True):
    """The outcome of one check."""

    check: str
    status: Literal["ok", "info", "failed"]
    detail: str


def doctor(
    *,
    config: Annotated[Path | None, Parameter(help="The config file to check.")] = None,
    data: Annotated[Path, Parameter(help="The data directory to check.")] = Path("penstock-data"),
    common: Common = DEFAULTS,
) -> int:
    """Check versions, config, ports, disk, journal, clocks, Java, Spark, console and server; the exit code is 3 if a check failed.

    Of a server that runs, it shows the health of every part with the reason, the last failure and what to do.

    For example:

      penstock doctor
      penstock doctor --data /var/lib/penstock --json
    """
    from penstock.client import address

    settings, problems = load_config(config)
    file = endpoints_file(data)
    running = address.read_endpoints(file)
    endpoints = running or address.ServerEndpoints()
    parts = _parts(common, file, running)
    findings = [
        _python(),
        _versions(),
        _config(settings, problems),
        *_ports(settings, endpoints),
        *_disk(data),
        *_descriptors(settings, endpoints),
        _clock(),
        *_journal(data),
        *_lake(data),
        *_accelerators(),
        *_spark(),
        _console(),
        *_server(common, file, running),
        *(parts or _local_parts(data)),
    ]
    is_sound = all(finding.status != "failed" for finding in findings)
    if common.as_json:
        print_json({"ok": is_sound, "checks": findings})
    else:
        print_table(["check", "status", "detail"], [[one.check, one.status, one.detail] for one in findings])
    return 0 if is_sound else EXIT_CHECK


def _python() -> CheckResult:
    version, is_known = ".".join(map(str, sys.version_info[:3])), sys.version_info >= (3, 11)
    return CheckResult("python", "ok" if is_known else "failed", f"{version}; 3.11 or newer is needed")


def _versions() -> CheckResult:
    found, missing = [f"penstock {penstock.__version__}"], []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return CheckResult("versions", "failed", f"missing: {', '.join(missing)}; install Penstock again with pip")
    return CheckResult("versions", "ok", ", ".join(found))


def _config(config: Config | None, problems: list[str]) -> CheckResult:
    if config is None:
        return CheckResult("config", "failed", "; ".join(problems))
    return CheckResult("config", "ok", config.source or "defaults")


def _ports(config: Config | None, endpoints: ServerEndpoints) -> Iterator[CheckResult]:
    """The ports: free, or bound by the running server."""
    from penstock.client.address import parse

    if config is None:
        return
    listen, relay = config.listen, config.relay
    pub = "off" if relay.enabled is False else relay.pub.removeprefix("tcp://")
    for name, place, served, setting in (
        ("http port", str(listen.http), endpoints.http, "listen.http"),
        ("control port", str(listen.control), endpoints.control, "listen.control"),
        ("relay port", pub, endpoints.pub, "relay.pub"),
    ):
        if served:
            yield CheckResult(name, "ok", f"{served}, served by process {endpoints.pid}")
        elif endpoints.pid:
            yield CheckResult(name, "info", f"off in process {endpoints.pid}")
        elif place.startswith(("unix:", "ipc:")) or place in {"off", "None"}:
            yield CheckResult(name, "info", place)
        else:
            address = parse(f"tcp://{place}")
            yield _port(name, address.host, address.port, setting)


def _port(name: str, host: str, port: int, setting: str) -> CheckResult:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = f"stop what listens there, or set `{setting}` in the config"
            return CheckResult(name, "failed", f"{host}:{port}: {error.strerror}; {hint}")
    return CheckResult(name, "ok", f"{host}:{port} is free")


def _disk(data: Path) -> Iterator[CheckResult]:
    """Whether the data directory, or its parent, is writable and syncs fast."""
    place = _existing(data)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            sync_ms = _sync_ms(file.fileno())
    except OSError as error:
        yield CheckResult("data directory", "failed", f"cannot write in {place}: {error.strerror}")
        return
    yield CheckResult("data directory", "ok", f"{place} can be written")
    is_quick = sync_ms <= SYNC_SLOW_MS
    yield CheckResult("disk sync", "ok" if is_quick else "info", f"{sync_ms:.2f} ms for each sync")


def _existing(place: Path) -> Path:
    """The directory, or the nearest above it that exists."""
    place = place.resolve()
    while not place.exists():
        place = place.parent
    return place


def _descriptors(config: Config | None, endpoints: ServerEndpoints) -> Iterator[CheckResult]:
    """Whether the limit of open files, of the running server or here, allows as many connections as the config."""
    from penstock.server.engine.admission import connections_of, descriptor_limit

    if config is None:
        return
    wanted = config.limits.links_max
    limit = descriptor_limit(raised=True)
    try:
        limits = Path(f"/proc/{endpoints.pid}/limits").read_text()
        limit = int(limits.partition("Max open files")[2].split()[0])
    except (OSError, ValueError, IndexError):  # no server, or not Linux
        pass
    room = connections_of(limit)
    detail = f"{limit} open files allow {room} connections; `limits.links_max` is {wanted}"
    hint = "raise the hard limit (`ulimit -Hn`, `LimitNOFILE=` of systemd), or lower `limits.links_max`"
    is_enough = room >= wanted
    yield CheckResult("descriptors", "ok" if is_enough else "info", detail if is_enough else f"{detail}; {hint}")


def _sync_ms(descriptor: int) -> float:
    times = []
    for _ in range(SYNC_ROUNDS):
        os.write(descriptor, b"x" * 4096)
        start = time.perf_counter()
        os.fsync(descriptor)
        times.append(time.perf_counter() - start)
    return sorted(times)[SYNC_ROUNDS // 2] * 1000


def _clock() -> CheckResult:
    wall_s, first = time.time(), time.monotonic()
    is_sane = wall_s > CLOCK_LEAST_S and time.monotonic() >= first
    shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_s))
    return CheckResult("clock", "ok" if is_sane else "failed", shown)


def _journal(data: Path) -> Iterator[CheckResult]:
    """Whether the end of the journal can be read and is not in the future."""
    from penstock.journal.open_and_repair import ERASURE, UNFINISHED
    from penstock.journal.reader import JournalError, JournalReader
    from penstock.journal.segments import DamageError

    if not (data / "journal").is_dir():
        yield CheckResult("journal", "info", "none has been written in this directory")
        return
    if (data / "journal" / ERASURE).exists():
        yield CheckResult("erasure", "failed", UNFINISHED)
    try:
        reader = JournalReader(data)
        bounds = reader.bounds()
        first = max(bounds.first, bounds.end - ROWS_LOOKED_AT)
        batches = list(reader.batches(first, bounds.end, ["recorded_at"]))
    except (JournalError, DamageError, OSError) as error:
        yield CheckResult("journal", "failed", f"{error}; `penstock log check` looks at all of it")
        return
    rows = sum(batch.num_rows for batch in batches)
    if rows != bounds.end - first:
        lost = f"{bounds.end - first - rows} of the last {bounds.end - first} rows cannot be read"
        yield CheckResult("journal", "failed", f"{lost}; `penstock log check` says which")
        return
    detail = f"rows {bounds.first} to {bounds.end - 1}" if bounds.end > bounds.first else "empty"
    yield CheckResult("journal", "ok", f"{detail}; the last {rows} can be read")
    if rows:
        ahead_s = batches[-1].column(0)[-1].as_py().timestamp() - time.time()
        if ahead_s <= CLOCK_FAR_S:
            yield CheckResult("clock and journal", "ok", f"the last row is {max(-ahead_s, 0):.0f} s old")
        else:
            hint = "set the clock; rows keep the time of the newest one until it is reached again"
            yield CheckResult("clock and journal", "failed", f"the last row is {ahead_s:.0f} s ahead; {hint}")


def _lake(data: Path) -> Iterator[CheckResult]:
    """Whether every table opens, and whether every file of its log is as it was written."""
    from penstock.journal.delta_log import DeltaLog, damaged_tables, table_names
    from penstock.journal.lake_location import StoreError, lake_of

    lake = lake_of(data)
    try:
        names = table_names(lake)
    except StoreError as error:
        yield CheckResult("lake", "failed", f"{error.message}; {error.hint}")
        return
    found = list(damaged_tables(lake))
    for name in names:
        found += [f"`{name}/_delta_log/{file}`: {what}" for file, what in DeltaLog(lake / name).damage()]
    if found:
        hint = "restore a backup; the pipeline can rebuild every table but `events`"
        yield CheckResult("lake", "failed", f"{'; '.join(found[:FINDINGS_SHOWN])}; {hint}")
    elif names:
        yield CheckResult("lake", "ok", f"{len(names)} tables can be opened")


def _console() -> CheckResult:
    page = importlib.resources.files("penstock").joinpath("console", "index.html")
    if page.is_file():
        return CheckResult("console", "ok", "built")
    return CheckResult("console", "info", "not built: `make setup` builds it where Node is installed; a wheel has it")


def _accelerators() -> Iterator[CheckResult]:
    for name in ("uvloop", "penstock_native"):
        is_there = importlib.util.find_spec(name) is not None
        yield CheckResult(name, *("ok", "present") if is_there else ("info", "absent: slower, but everything works"))


def _spark() -> Iterator[CheckResult]:
    """Java and Spark."""
    from penstock.spark import java

    try:
        found = java.find()
        yield CheckResult("java", "ok", f"{found.major}, {found.origin}: {found.home}")
    except java.JavaError as error:
        is_wanted = importlib.util.find_spec("pyspark") is not None
        yield CheckResult("java", "failed" if is_wanted else "info", f"{error}; only the pipeline needs it")
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        yield CheckResult("spark", "info", "not installed: no pipeline; `pip install penstock[spark]` installs it")
        return
    is_known = tuple(map(int, version.split(".")[:2])) >= SPARK_LEAST
    needed = ".".join(map(str, SPARK_LEAST))
    yield CheckResult("spark", "ok" if is_known else "failed", f"{version}; {needed} or newer is needed")


def _parts(common: Common, file: Path, running: ServerEndpoints | None) -> list[CheckResult]:
    """The health of the server that runs here, part by part; none without one, or without its answer."""
    from penstock.client import address
    from penstock.client.admin import RemoteServer

    url = common.url or (running and running.http)
    if not url:
        return []
    http, token = http_server(url, common.token, file)
    try:
        health = RemoteServer(http, token, timeout_s=SERVER_S).health()
    except PenstockError:  # the check of the server says why
        return []
    status, parts = str(health["status"]), health.get("parts", {})
    checks = [CheckResult("health", "ok" if status == "ok" else "failed", status), *map(_check, parts, parts.values())]
    if any("reason" not in part for part in parts.values()):
        refusal = address.bad_token(http, token)
        why = f"{refusal.message}, so the states of the parts have no reasons; {refusal.hint}"
        why += "; on the server's machine, `--data DIR` alone is enough"
        checks.insert(0, CheckResult("token", "failed", why))
    return checks


def _local_parts(data: Path) -> Iterator[CheckResult]:
    """What can be said of the parts without a server."""
    from penstock.cli.tables.pipeline_session import current_status
    from penstock.journal.log import FULL_BYTES
    from penstock.journal.reader import JournalError
    from penstock.journal.segments import DamageError

    findings = {"disk": disk_finding(shutil.disk_usage(_existing(data)).free, None, FULL_BYTES)}
    try:
        findings["pipeline"] = current_status(data).finding()
    except (JournalError, DamageError, OSError):  # the check of the journal says why
        pass
    for name, finding in findings.items():
        yield _check(name, finding.to_json())


def _check(name: str, part: dict[str, Any]) -> CheckResult:
    """A part of `/health`."""
    state, failure = part["state"], part.get("lastFailure")
    reason = part.get("reason", f"{state}; the reason needs a token that the server knows")
    shown: dict[str, Literal["ok", "info", "failed"]] = {"ok": "ok", "starting": "info", "off": "info"}
    said = [f"{state} since {part['since']}" if state not in shown else "", reason, part.get("action")]
    if failure is not None and failure["reason"] not in reason:
        shown["ok"] = "info"
        said.append(f"last failure at {failure['at']}: {failure['reason']}")
    return CheckResult(f"health: {name}", shown.get(state, "failed"), "; ".join(filter(None, said)))


def _server(common: Common, file: Path, running: ServerEndpoints | None) -> Iterator[CheckResult]:
    """A server with an endpoints file must answer; no server at all is no failure."""
    from penstock.client import address
    from penstock.client.queue.connect import connect

    is_expected = bool(common.url) or running is not None
    url = common.url or (running and (running.control or running.http)) or address.DEFAULT_URL

    async def ask() -> tuple[str, float, list[str]]:
        token = common.token or address.operator_token(url, file)
        async with connect(url, token, connect_timeout=3, reconnect=False) as client:
            before_s = time.time()
            shown = await client.snapshot("latestPerAgent", addr="agents/doctor/inbox")
            middle_s = (before_s + time.time()) / 2
            ahead_s = datetime.fromisoformat(shown["asOf"]).timestamp() - middle_s
            hot = [one.id for one in await client.streams() if one.stats.hot][:FINDINGS_SHOWN]
            reasons = [(stream, reason) for stream in hot for reason in (await client.explain(stream)).reasons]
            why = [f"{stream}: {one.message}" for stream, one in reasons if one.code == "redelivery.hot"]
            return f"{client.url}: {client.server.server}", ahead_s, why

    try:
        answer, ahead_s, hot = asyncio.run(ask())
    except PenstockError as error:
        if error.code == "Unreachable" and not is_expected:
            yield CheckResult("server", "info", "none is running here")
        else:
            yield CheckResult("server", "failed", f"{error.code}: {error.message}; {error.hint}")
        return
    yield CheckResult("server", "ok", answer)
    yield CheckResult("redeliveries", "failed" if hot else "ok", "; ".join(hot) or "no envelope fails again and again")
    is_near = abs(ahead_s) <= CLOCK_FAR_S
    yield CheckResult(
        "clock and server",
        "ok" if is_near else "failed",
        f"{ahead_s:+.1f} s{'' if is_near else '; set both by the same time server'}",
    )
