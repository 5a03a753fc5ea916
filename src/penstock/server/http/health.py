"""`/health` and `/health/live`, and the loop that looks at every part of the server once a second and logs what changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.core import health
from penstock.core.clock import Now
from penstock.core.scopes import UNAUTHENTICATED
from penstock.journal.log import FULL_BYTES, MARGIN_BYTES, RESERVE_BYTES
from penstock.server.http.request import Request
from penstock.server.logging import logs
from penstock.transports.http_replies import Reply, json_reply

if TYPE_CHECKING:
    from penstock.server.http.services import HttpServices

LOOK_S = 1.0
"""How often the parts are looked at."""
_LEVELS = {"failed": logs.error, "degraded": logs.warning}
_OFF = health.PartHealth("off", "off on this server")
_IN_MEMORY = health.PartHealth("off", "in memory: envelopes do not survive a restart")


class HealthMonitor:
    """The health of one server."""

    def __init__(self, parts: health.Health) -> None:
        self.health = parts
        self._slow: dict[str, int] = {}
        """Readers that were slow at the last look, and the bytes that they held."""
        self._tokens_refused = 0
        self._refused: tuple[int, str] | None = None

    async def run(self, services: HttpServices) -> None:
        """Look at intervals, so that changes are logged and dated when they happen, not when someone asks."""
        failure = ""
        while True:
            archive = services.journal.archive
            try:
                if archive is not None:
                    services.runtime.note_trouble(archive.journal.trouble)
                    archive.journal.check()
                self.look(services, services.runtime.scheduler.now(), is_turn=True)
                failure = ""
            except Exception as error:
                if failure != (failure := repr(error)):  # once, not every second
                    logs.error("health.failed", exc=error)
            await asyncio.sleep(LOOK_S)

    def look(self, services: HttpServices, now: Now, *, is_turn: bool = False) -> health.Health:
        """Look at every part now; only every `LOOK_S` for readers that stay slow."""
        archive, relay, pipeline = services.journal.archive, services.relay, services.pipeline()
        findings = {
            "doors": self._doors(services, now, is_turn=is_turn),
            "journal": _IN_MEMORY,
            "disk": _OFF,
            "relay": _OFF,
            "pipeline": _OFF if pipeline is None else pipeline.finding(),
            "lake": _OFF,
        }
        if archive is not None:
            trouble = archive.journal.trouble or services.runtime.trouble
            findings["journal"] = health.journal_finding(
                trouble, archive.health()["notice"], RESERVE_BYTES + MARGIN_BYTES
            )
            findings["disk"] = health.disk_finding(*archive.journal.space, FULL_BYTES)
            findings["lake"] = health.lake_finding(archive.lake_trouble)
        if relay is not None:
            findings["relay"] = health.relay_finding(relay.is_up, relay.restarts, len(relay.topics), relay.last_failure)
        if services.cells is not None:
            part = "cells" if services.cells.cluster_status() is None else "cluster"
            findings[part] = services.cells.finding()
        for name in self.health.update(now.wall_us, findings):
            found = findings[name]
            log = _LEVELS.get(found.state, logs.event)
            log("health.changed", part=name, state=found.state, reason=found.reason, action=found.action or None)
        return self.health

    def _doors(self, services: HttpServices, now: Now, *, is_turn: bool) -> health.PartHealth:
        runtime = services.runtime
        if (refused := sum(services.tokens.refusals.values())) > self._tokens_refused:
            self._tokens_refused = refused
            self._refused = (now.wall_us, services.tokens.last_refusal)
        failures = [one for one in (self._refused, runtime.peers.last_cut) if one is not None]
        slow = runtime.peers.outboxes.slow(half := services.machine.limits.outbox_max // 2)
        # A paused reader that reads holds another amount at the next look.
        lasting = [
            name for name, size in slow.items() if name in self._slow and (size > half or size == self._slow[name])
        ]
        if is_turn:
            self._slow = slow
        return health.doors_finding(
            len(runtime.peers.all()),
            is_draining=runtime.commit_log.draining,
            is_full=services.admission.open >= services.admission.room,
            slow=f"{lasting[0]} holds {slow[lasting[0]]} bytes unread; {len(lasting)} in all" if lasting else None,
            failure=max(failures, default=None),
        )


def overall(services: HttpServices, request: Request) -> Reply:
    """Whether the server accepts work, and how each part is; 503 while it refuses new envelopes or drains."""
    archive, found = services.journal.archive, services.health.look(services, request.now)
    body = services.runtime.health(request.now)
    body["status"] = found.status(is_draining=services.runtime.commit_log.draining)
    body["ok"] = body["status"] in ("ok", "degraded")
    if archive is not None:
        body["journal"] |= archive.health()
        body["lake"] = {"ok": archive.lake_trouble is None, "trouble": archive.lake_trouble}
    pipeline = services.pipeline()
    if pipeline is not None:
        body["pipeline"] = pipeline.state
    if services.relay is not None:
        body["relay"] = services.relay.health()
    is_full = request.principal is not UNAUTHENTICATED
    if services.cells is not None and is_full:  # names of nodes, process ids and shards are not for strangers either
        status = services.cells.cluster_status()
        body["cells" if status is None else "cluster"] = services.cells.report()
    if not is_full:  # the texts of a part are for those who may read its reason
        for part, text in (("journal", "trouble"), ("journal", "notice"), ("lake", "trouble")):
            body.get(part, {}).pop(text, None)
    body["parts"] = {name: part.to_json(is_full=is_full) for name, part in found.parts.items()}
    return json_reply(200, body) if body["ok"] else json_reply(503, body, {"Retry-After": "1"})


def live(services: HttpServices, request: Request) -> Reply:
    """Whether the loop turns; a server that drains or refuses envelopes still takes acks, so it is not to be restarted."""
    return json_reply(200, {"ok": True, "bootId": services.runtime.boot_id})
