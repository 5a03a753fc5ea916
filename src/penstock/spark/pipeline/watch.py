"""The query `watch`: evaluates the alert rules of the config, writes the table `alerts` and sends alerts as envelopes.

Its state is in its tables: which alerts are firing, and when each agent was last active. So it can be killed at any point and still ends
with the same alerts. The order matters: an envelope is sent before the commit that records it, under an id that the server
deduplicates. A crash between the two sends nothing twice and loses nothing. The commit also counts the batches that were sent, so that
their numbers grow even where a journal loses rows.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from penstock.core.errors import PenstockError
from penstock.ipc.pipeline import AlertsSection, SilenceRule, TriggerFailureRule
from penstock.journal.lake_location import LakePath
from penstock.spark.lake.schemas import AGENTS, ALERTS, TABLES
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake_tables.envelopes import agents, newest_acts, turns
from penstock.spark.lake_tables.minutes import TRIGGERED, trigger_minutes
from penstock.spark.lake_tables.queue_minutes import touched_queue_minutes
from penstock.spark.pipeline import alerts
from penstock.spark.pipeline.alerts import Act, Alert, Breach
from penstock.spark.pipeline.batch import JournalBatch, StepTimes, open_batch
from penstock.spark.pipeline.ingest import add_cluster
from penstock.spark.pipeline.journal_group import JournalGroup, Positions, app_of
from penstock.spark.pipeline.journal_rows import RecentRows, ranges_between

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.admin import Stage
    from penstock.spark.location import SourceJournal

APP = "penstock"
"""The application id of the pipeline's batches on the server, and of their count in the table; `from` is `pipeline/penstock`."""
PART = "alerts"
Place: TypeAlias = tuple[int, str, int]
"""The time, journal and offset of a row: the order of rows of several journals."""
_NEVER: Place = (-1, "", -1)
_DIGEST_BITS = 32
"""The number of a staged batch is a count, shifted by this many bits, and a digest of its content."""


def enqueue_alerts(stage: Stage, envelopes: Sequence[dict[str, Any]], sent: int) -> int:
    """Enqueue envelopes once, as the batch after `sent` earlier ones; returns its count.

    A batch that is sent again after a crash has the same number, and the server drops it. If the server has a later number, or one of
    other content, these envelopes are not there: they go out under the next count, and the server drops those that it has. One whose id
    it knows with other content gets a new id: after a journal lost rows, an alert may be resolved twice.
    """
    count = sent + 1
    while True:
        lines = [msgspec.json.encode(one) for one in envelopes]
        number = count << _DIGEST_BITS | crc32(b"\n".join(lines))
        try:
            stage.part(APP, number, PART, lines)
            done = stage.commit(APP, number, [PART])
        except PenstockError as error:
            known = [one for one in envelopes if one["id"] == error.refusal.ref]
            if error.code != "IdConflict" or not known:
                raise
            digest = crc32(lines[envelopes.index(known[0])])  # the same id when it is sent again
            known[0]["id"] = known[0]["payload"]["envelope_id"] = f"{known[0]['id']}-{digest:08x}"
            continue
        if not done.duplicate or done.last is None or done.last == number:
            return count
        count = (done.last >> _DIGEST_BITS) + 1


class AlertWatch:
    """Evaluates the rules for new rows and, for silence, by the clock."""

    def __init__(
        self,
        spark: SparkSession,
        given: SourceJournal | JournalGroup,
        lake: LakePath,
        settings: AlertsSection,
        stage: Stage | None,
    ) -> None:
        self._spark = spark
        self._group = JournalGroup.of(given)
        self._lake = lake
        self._settings = settings
        self._stage = stage
        self._alerts = LakeTable(lake, ALERTS)
        self._agents = LakeTable(lake, AGENTS)
        self.retention: Mapping[str, str] | None = None
        """How long rows stay, by table; None leaves the settings of the tables."""
        self._lock = threading.Lock()
        self.times = StepTimes()
        """Where the time of the latest batch went."""
        self._recent = {one: RecentRows(journal) for one, journal in self._group.journals.items()}
        self._watches_minutes = any(not isinstance(rule, SilenceRule | TriggerFailureRule) for rule in settings.rules)
        self._watches_triggers = any(isinstance(rule, TriggerFailureRule) for rule in settings.rules)
        self._watches_agents = any(isinstance(rule, SilenceRule) for rule in settings.rules)
        add_cluster(self._agents)
        self._rewind()
        is_ours = pc.field("cluster") == self._group.cluster
        self._last = {} if self._agents.version() is None else _places(self._agents.rows(filter=is_ours))
        """The newest row of each agent: its time, journal and offset."""
        self.end = self._group.stored(self._alerts)
        """Rows before this have been evaluated."""
        self._read_to = dict(self.end)
        """Rows before this were delivered by the query, or evaluated."""
        # If killed between the two commits: agents that were active in those rows must not seem silent.
        missed = ranges_between(self._group, self._group.stored(self._agents), self.end)
        self._update_agents(JournalBatch(spark, self._table, self._group, missed, recent=self._recent))
        self._firing = self._read_firing()
        self._seen = {agent: at_us for agent, (at_us, _, _) in self._last.items()}

    def _rewind(self) -> None:
        """Go back to the end of a journal that lost rows in a recovery: the rows written there since are new."""
        for one, end in self._group.ends().items():
            # Alerts that were sent stay. Agents lose their lost rows: otherwise new rows would not count until they are newer.
            is_there = (pc.field("journal") != one) | (pc.field("offset") < end)
            for table, kept in ((self._alerts, None), (self._agents, is_there)):
                if self._group.stored(table)[one] > end:
                    table.overwrite(table.rows(filter=kept), {app_of(one): Progress(0, end)}, may_go_back=True)

    def _read_firing(self) -> dict[str, Alert]:
        if self._alerts.version() is None:
            return {}
        is_ours = pc.field("journal").isin([*self._group.journals, self._group.cluster])
        found = self._alerts.rows(filter=(pc.field("state") == "firing") & is_ours)
        return {alert.id: alert for alert in alerts.read(found)}

    # Rows

    def on_batch(self, ends: Positions, _number: int = 0) -> None:
        """Evaluate the rows up to the ends of a batch."""
        with self._lock:
            self.times = StepTimes()
            self._read_to |= {one: max(end, self._read_to[one]) for one, end in ends.items()}
            stored = self._group.stored(self._alerts)
            ends, until_us = self._evaluable(stored)
            conditions = [TRIGGERED] if self._watches_triggers else []
            opened = open_batch(
                self._spark, self._group, self._table, stored, ends, self._recent, conditions, self.times
            )
            with opened as batch:
                if batch is not None:
                    self._evaluate(batch, until_us)

    def _table(self, name: str) -> LakeTable:
        return LakeTable(self._lake, TABLES[name])

    def _evaluate(self, batch: JournalBatch, until_us: int) -> None:
        known = list(self._firing.values())
        rules = self._settings.rules
        with self.times.of("alerts.rows"):
            acts = self._acts(batch)
            made = alerts.episodes(rules, known, self._breaches(batch), batch.until)
            silent, seen = alerts.silences(self._group.cluster, rules, self._seen, acts, known, until_us)
        with self.times.of("alerts.commit"):
            self._publish([*made, *silent], batch.progress)
        self._seen = seen
        with self.times.of("agents.commit"):
            self._update_agents(batch)
        self.end |= batch.ends

    def _evaluable(self, stored: Positions) -> tuple[Positions, int]:
        """The ends of the rows that can be evaluated, and the time up to which every journal was read.

        Agents act in several journals. While the query has not delivered all rows of one journal, rows of the others that are later
        than its last delivered row wait: an agent that seems silent in them may be active there.
        """
        times = {
            one: journal.time_of(self._read_to[one] - 1) if self._read_to[one] > journal.bounds().first else 0
            for one, journal in self._group.journals.items()
        }
        limits = [times[one] for one, end in self._group.ends().items() if end > self._read_to[one]]
        if not limits or len(times) == 1:
            return dict(self._read_to), max(times.values())
        return {
            one: max(stored[one], min(self._read_to[one], journal.offset_at(min(limits) + 1)))
            for one, journal in self._group.journals.items()
        }, min(limits)

    def _update_agents(self, batch: JournalBatch) -> None:
        stored = self._group.stored(self._agents)
        if any(stored[one] < end for one, end in batch.ends.items()):
            batch = batch.since(stored)
            cluster = self._group.cluster
            rows = agents(batch.events, cluster).toArrow() if batch.rows is None else newest_acts(batch.rows, cluster)
            newer = {name: place for name, place in _places(rows).items() if place > self._last.get(name, _NEVER)}
            rows = rows.filter(pc.field("agent").isin(pa.array(list(newer), pa.string())))
            self._agents.merge(rows, batch.progress)
            self.times.wrote(AGENTS.name, rows.num_rows)
            self._last |= newer

    def _breaches(self, batch: JournalBatch) -> list[Breach]:
        """Minutes that break a rule, of those that the new rows may have changed."""
        found: list[Breach] = []
        if self._watches_minutes:
            minutes = touched_queue_minutes(batch)
            if isinstance(minutes, pa.Table):
                found += alerts.broken_minutes(minutes, self._settings.rules)
            else:
                found += [Breach(*row) for row in alerts.breaches(minutes, self._settings.rules).collect()]
        if self._watches_triggers and TRIGGERED not in batch.unmet:
            fired = trigger_minutes(batch.whole_minutes, batch.until)
            broken = alerts.breaches(fired, self._settings.rules, "trigger")
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
            if self.end != self._group.ends():
                return  # an agent that seems silent may be active in the waiting rows
            made, _ = alerts.silences(
                self._group.cluster, self._settings.rules, self._seen, [], list(self._firing.values()), now_us
            )
            if made:
                self._publish(made, {})
        finally:
            self._lock.release()

    # Alerts

    def _publish(self, made: Sequence[Alert], progress: Mapping[str, Progress]) -> None:
        """Send the changed alerts, then record them; without progress the clock raised them, not rows."""
        changed, count = self._sent(made)
        self._alerts.merge(alerts.table(changed), {**progress, **count})
        self.times.wrote(ALERTS.name, len(changed))
        for alert in changed:
            if alert.state == "firing":
                self._firing[alert.id] = alert
            else:
                self._firing.pop(alert.id, None)

    def _sent(self, changed: Sequence[Alert]) -> tuple[Sequence[Alert], dict[str, Progress]]:
        """Enqueue an envelope for each change of state; returns the alerts with its id, and the count of batches."""
        to = self._settings.to
        if to is None or self._stage is None:
            return changed, {}
        states = {alert.id: alert.state for alert in self._firing.values()}
        news = {alert.id: alerts.envelope(alert, to) for alert in changed if states.get(alert.id) != alert.state}
        if not news:
            return changed, {}
        before = self._alerts.progress(APP) or 0
        count = enqueue_alerts(self._stage, list(news.values()), before)
        named = [replace(one, envelope_id=news[one.id]["id"]) if one.id in news else one for one in changed]
        return named, {APP: Progress(before, count)}

    def compact_tables(self) -> None:
        """Compact the tables if they are due."""
        for table in (self._alerts, self._agents):
            table.compact(retention=None if self.retention is None else self.retention.get(table.name, ""))


def _places(agents: pa.Table) -> dict[str, Place]:
    """The place of each agent's row in the table `agents`."""
    times = agents.column("last_at").cast(pa.int64()).to_pylist()
    places = zip(times, agents.column("journal").to_pylist(), agents.column("offset").to_pylist(), strict=True)
    return dict(zip(agents.column("agent").to_pylist(), places, strict=True))
