"""The query `watch`: evaluates the alert rules of the config, writes the table `alerts` and sends alerts as envelopes.

Its state is in its tables: which alerts are firing, and when each agent was last active. So it can be killed at any point and still ends
with the same alerts. The order matters: an envelope is sent before the commit that records it, under an id that the server
deduplicates. A crash between the two sends nothing twice and loses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from penstock.ipc.pipeline import AlertsSection, SilenceRule, TriggerFailureRule
from penstock.journal.lake_location import LakePath
from penstock.journal.segments import SHARD
from penstock.spark.lake.schemas import AGENTS, ALERTS, TABLES
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake_tables.envelopes import agents, turns
from penstock.spark.lake_tables.minutes import TRIGGERED, queue_minutes, trigger_minutes
from penstock.spark.pipeline import alerts
from penstock.spark.pipeline.alerts import Act, Alert, Breach
from penstock.spark.pipeline.batch import JournalBatch, RecentRows, open_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.staging import Stage
    from penstock.spark.location import SourceJournal

APP = "penstock"
"""The application id of the pipeline's batches on the server; `from` is `pipeline/penstock`."""
PART = "alerts"
_BATCH_BITS = 20
"""The number of a staged batch is its end offset, shifted by this many bits to leave room for batches of the clock in between."""


class AlertWatch:
    """Evaluates the rules for new rows and, for silence, by the clock."""

    def __init__(
        self, spark: SparkSession, journal: SourceJournal, lake: LakePath, settings: AlertsSection, stage: Stage | None
    ) -> None:
        self._spark = spark
        self._journal = journal
        self._lake = lake
        self._settings = settings
        self._stage = stage
        self._app = f"{journal.id}/{SHARD}"
        self._alerts = LakeTable(lake, ALERTS)
        self._agents = LakeTable(lake, AGENTS)
        self.retention: Mapping[str, str] | None = None
        """How long rows stay, by table; None leaves the settings of the tables."""
        self._lock = threading.Lock()
        self._recent = RecentRows(journal)
        self._watches_minutes = any(not isinstance(rule, SilenceRule | TriggerFailureRule) for rule in settings.rules)
        self._watches_triggers = any(isinstance(rule, TriggerFailureRule) for rule in settings.rules)
        self._watches_agents = any(isinstance(rule, SilenceRule) for rule in settings.rules)
        self._rewind()
        looked = self._stored(self._alerts)
        if looked > self._stored(self._agents):
            # Killed between the two commits: agents that were active in those rows must not seem silent.
            until_us = journal.time_of(looked - 1)
            self._update_agents(JournalBatch(spark, journal, self._table, self._stored(self._agents), looked, until_us))
        self._firing = self._read_firing()
        self._seen = self._read_seen()
        self.end = min(self._stored(self._alerts), self._stored(self._agents))
        """Rows before this have been evaluated."""

    def _stored(self, table: LakeTable) -> int:
        stored = table.progress(self._app)
        return self._journal.bounds().first if stored is None else stored

    def _rewind(self) -> None:
        """Go back to the end of a journal that lost rows in a recovery: the rows written there since are new."""
        end = self._journal.mark().end
        # Alerts that were sent stay. Agents lose their lost rows: the newest offset wins, so new rows with lower offsets would not count.
        is_there = (pc.field("journal") != self._journal.id) | (pc.field("offset") < end)
        for table, kept in ((self._alerts, None), (self._agents, is_there)):
            if self._stored(table) > end:
                table.overwrite(table.rows(filter=kept), {self._app: Progress(0, end)}, may_go_back=True)

    def _read_firing(self) -> dict[str, Alert]:
        if self._alerts.version() is None:
            return {}
        wanted = (pc.field("state") == "firing") & (pc.field("journal") == self._journal.id)
        return {alert.id: alert for alert in alerts.read(self._alerts.rows(filter=wanted))}

    def _read_seen(self) -> dict[str, int]:
        if self._agents.version() is None:
            return {}
        rows = self._agents.rows(["agent", "last_at"], pc.field("journal") == self._journal.id)
        times = rows.column("last_at").cast(pa.int64()).to_pylist()
        return dict(zip(rows.column("agent").to_pylist(), times, strict=True))

    # Rows

    def on_batch(self, rows: DataFrame, _number: int = 0) -> None:
        """Evaluate a batch of journal rows. For `foreachBatch`."""
        conditions = [TRIGGERED] if self._watches_triggers else []
        with open_batch(self._spark, self._journal, self._table, rows, self._recent, conditions) as batch:
            if batch is not None:
                self._evaluate(batch)

    def _table(self, name: str) -> LakeTable:
        return LakeTable(self._lake, TABLES[name])

    def _evaluate(self, batch: JournalBatch) -> None:
        with self._lock:
            stored = self._stored(self._alerts)
            if stored < batch.end:
                batch = batch.since(stored)
                acts = self._acts(batch)
                known = list(self._firing.values())
                found = self._breaches(batch)
                rules = self._settings.rules
                made = alerts.episodes(self._journal.id, rules, known, found, batch.until_us)
                silent, seen = alerts.silences(self._journal.id, rules, self._seen, acts, known, batch.until_us)
                self._publish([*made, *silent], batch.first, batch.end)
                self._seen = seen
            self._update_agents(batch)
            self.end = batch.end

    def _update_agents(self, batch: JournalBatch) -> None:
        stored = self._stored(self._agents)
        if stored < batch.end:
            batch = batch.since(stored)
            self._agents.merge(agents(batch.events).toArrow(), {self._app: Progress(stored, batch.end)})

    def _breaches(self, batch: JournalBatch) -> list[Breach]:
        """Minutes that break a rule, of those that the new rows may have changed."""
        found: list[Breach] = []
        if self._watches_minutes:
            minutes = queue_minutes(batch.whole_minutes, batch.until, batch.minutes_since)
            found += [Breach(*row) for row in alerts.breaches(minutes, self._settings.rules).collect()]
        if self._watches_triggers and TRIGGERED not in batch.unmet:
            minutes = trigger_minutes(batch.whole_minutes, batch.until)
            broken = alerts.breaches(minutes, self._settings.rules, "trigger")
            found += [Breach(*row) for row in broken.collect()]
        return found

    def _acts(self, batch: JournalBatch) -> list[Act]:
        """When agents were active, with every pause that a rule may report."""
        shortest_ms = min((rule.for_ms for rule in self._settings.rules if isinstance(rule, SilenceRule)), default=None)
        if shortest_ms is None:
            return []
        return [Act(*row) for row in turns(batch.events, shortest_ms).collect()]

    # The clock

    def on_clock(self, now_us: int) -> None:
        """Raise alerts for silent agents, unless rows are waiting to be evaluated."""
        if not self._watches_agents or not self._lock.acquire(blocking=False):
            return
        try:
            if self.end < self._journal.mark().end:
                return  # an agent that seems silent may be active in the waiting rows
            made, _ = alerts.silences(
                self._journal.id, self._settings.rules, self._seen, [], list(self._firing.values()), now_us
            )
            if made:
                self._publish(made, self.end, self.end)
        finally:
            self._lock.release()

    # Alerts

    def _publish(self, made: Sequence[Alert], first: int, end: int) -> None:
        """Send the changed alerts, then record them; with `first == end` the clock raised them, not rows."""
        changed = [self._addressed(alert) for alert in made]
        self._send(changed, end, is_clock=first == end)
        progress = {self._app: Progress(first, end)} if end > first else {}
        self._alerts.merge(alerts.table(changed), progress)
        for alert in changed:
            if alert.state == "firing":
                self._firing[alert.id] = alert
            else:
                self._firing.pop(alert.id, None)

    def _addressed(self, alert: Alert) -> Alert:
        if self._settings.to is None or self._stage is None:
            return alert
        return replace(alert, envelope_id=str(alerts.envelope(alert, self._settings.to)["id"]))

    def _send(self, changed: Sequence[Alert], end: int, *, is_clock: bool) -> None:
        """Enqueue an envelope for each change of state."""
        to = self._settings.to
        states = {alert.id: alert.state for alert in self._firing.values()}
        news = [alert for alert in changed if states.get(alert.id) != alert.state]
        if to is None or self._stage is None or not news:
            return
        lines = [msgspec.json.encode(alerts.envelope(alert, to)) for alert in news]
        # A repeated batch has the same number, so the server drops it. Batches of the clock get the next free number.
        number = end << _BATCH_BITS
        if is_clock:
            number = max(number, self._stage.last(APP) or 0) + 1
        self._stage.part(APP, number, PART, lines)
        self._stage.commit(APP, number, [PART])

    def compact_tables(self) -> None:
        """Compact the tables if they are due."""
        for table in (self._alerts, self._agents):
            table.compact(retention=None if self.retention is None else self.retention.get(table.name, ""))
