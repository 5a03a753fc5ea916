"""Deployment files: a unit for systemd and a file to build a container from, filled in from `templates/`.

Both are printed, not installed. The stop timeout follows from the bounds of the server, so that systemd does not kill it while it drains.
"""

# size: the files themselves are in `templates/`.

from __future__ import annotations

from math import ceil
from pathlib import Path
from string import Template

from penstock.core.limits import Limits
from penstock.server.ops import pipeline_supervisor
from penstock.server.relay import supervisor

MARGIN_S = 15
"""Reserve for a busy disk: the last commit, and the running batch of the pipeline."""
STATE, CACHE = "/var/lib/penstock", "/var/cache/penstock"
PORT = 8787


def stop_seconds(drain_ms: int = Limits().drain_ms) -> int:
    """How long a clean stop may take: the leases, then the relay, then the pipeline."""
    return ceil(drain_ms / 1000 + supervisor.STOP_S + pipeline_supervisor.STOP_S + MARGIN_S)


def _template(name: str) -> Template:
    return Template((Path(__file__).parent / "templates" / name).read_text("utf-8"))


def systemd_unit(program: str, *, data: str = STATE, config: str | None = None, user: str = "penstock") -> str:
    """A unit for a server on this machine."""
    return _template("penstock.service").substitute(
        program=program,
        data=data,
        config="" if config is None else f" --config {config}",
        user=user,
        cache=CACHE,
        drain_ms=Limits().drain_ms,
        stop_s=stop_seconds(),
    )


def containerfile() -> str:
    """A file to build an image from, in a checkout."""
    return _template("Containerfile").substitute(port=PORT, stop_s=stop_seconds())
