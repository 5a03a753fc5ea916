"""The query `watch`: alerts do not depend on how rows are batched, on restarts or on crashes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pytest

from penstock.client.admin import Stage
from penstock.ipc.pipeline import AlertsSection, DeadLetterRule, SilenceRule, TriggerFailureRule
from penstock.spark import location
from penstock.spark.lake.schemas import AGENTS, ALERTS
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.pipeline.queries import CHECKPOINTS
from penstock.spark.pipeline.watch import APP as SENDER
from penstock.spark.pipeline.watch import AlertWatch, enqueue_alerts
from tests.integration.serving import Http
from tests.server_process import ServerProcess
from tests.spark.journal_builder import (
    WATCHED,
    JournalBuilder,
    content,
    work,
)
from tests.spark.journaled import JOURNAL, holder
from tests.spark.pipeline.queried import APP, exported, run
from tests.spark.recomputation.check import check, lake_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SPARK = cast("SparkSession", None)
"""The clock and the start need no session."""
RULES = AlertsSection(
    (
        DeadLetterRule("dead"),
        SilenceRule("quiet", for_ms=90_000, agent="bob"),
        TriggerFailureRule("failing", trigger="s*"),
    )
)


@pytest.fixture
def watch(spark: SparkSession) -> Callable[[Path], AlertWatch]:
    return lambda data: AlertWatch(spark, location.open_one(data), data / "lake", RULES, None)


@pytest.mark.more
@pytest.mark.promise(
    "Spark: pipeline",
    "alerts on rate, latency, dead letters, failing triggers and silence do not depend on how rows are batched",
)
def test_alerts_are_the_same_however_the_rows_come(
    spark: SparkSession, worked: Path, watch: Callable[[Path], AlertWatch], tmp_path: Path
) -> None:
    results = []
    for name, rows_max in (("few", 10_000), ("many", 70)):
        data = Path(shutil.copytree(worked, tmp_path / name))
        looking = watch(data)
        batches = run(spark, data, looking, "watch", rows_max)
        assert (batches > 3) == (name == "many")
        looking.on_clock(location.open_one(data).time_of(looking.end[JOURNAL] - 1) + 600_000_000)
        results.append(content(data / "lake", WATCHED))
    assert results[0] == results[1]
    dead = [row for row in results[0]["alerts"] if row["rule"] == "dead"]
    assert {(row["subject"], row["state"], row["value"]) for row in dead} == {
        ("jobs", "firing", 2.0),
        ("agents/ann/inbox", "firing", 4.0),
    }
    [failing] = [row for row in results[0]["alerts"] if row["rule"] == "failing"]
    assert (failing["subject"], failing["state"]) == ("strict", "resolved")
    assert "failed firings in a minute" in failing["message"]
    [quiet] = [row for row in results[0]["alerts"] if row["rule"] == "quiet" and row["state"] == "firing"]
    assert (quiet["subject"], quiet["value"], quiet["envelope_id"]) == ("bob", 90_000.0, None)
    assert {row["agent"] for row in results[0]["agents"]} == {"ann", "bob", "sam"}


def test_a_watch_that_starts_again_knows_what_fires(
    spark: SparkSession, data: Path, watch: Callable[[Path], AlertWatch]
) -> None:
    looking = watch(data)
    run(spark, data, looking, "watch", 10_000)
    late = location.open_one(data).time_of(looking.end[JOURNAL] - 1) + 600_000_000
    looking.on_clock(late)
    made = content(data / "lake", WATCHED)
    cells = check(exported(data), lake_tables(str(data / "lake")), ["agents"], msgspec.to_builtins(RULES.rules), late)
    assert min(cells.values()) > 0
    shutil.rmtree(data / "lake" / CHECKPOINTS)
    again = watch(data)
    assert again.end == looking.end
    again.on_clock(late + 1)
    assert content(data / "lake", WATCHED) == made


def test_a_watch_killed_between_its_two_tables_reports_no_agent_as_silent(
    spark: SparkSession, data: Path, watch: Callable[[Path], AlertWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alerts of a batch are committed and who was seen in it is not: the next run reads that up first."""
    journal = location.open_one(data)
    end = journal.bounds().end
    whole = watch(data)
    whole.on_batch({journal.id: end})
    expected_alerts = content(data / "lake", WATCHED)
    for name in WATCHED:
        shutil.rmtree(data / "lake" / name)
    killed = watch(data)
    killed.on_batch({journal.id: 20})
    with monkeypatch.context() as patch:
        patch.setattr(killed, "_update_agents", lambda part: None)
        killed.on_batch({journal.id: end - 3})
    again = watch(data)
    again.on_batch({journal.id: end})
    assert content(data / "lake", WATCHED) == expected_alerts


def test_a_watch_goes_back_with_a_journal_that_lost_rows(tmp_path: Path) -> None:
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 1)
    story.close()
    journal = location.open_one(data)
    end = journal.bounds().end
    lake = data / "lake"
    seen = [
        {"journal": JOURNAL, "cluster": JOURNAL, "agent": name, "offset": offset, "last_at": 0}
        for name, offset in (("ann", 1), ("gone", end + 50))
    ]
    LakeTable(lake, AGENTS).merge(pa.Table.from_pylist(seen, AGENTS.schema), {APP: Progress(0, end + 60)})
    LakeTable(lake, ALERTS).merge(ALERTS.schema.empty_table(), {APP: Progress(0, end + 60)})
    watch = AlertWatch(NO_SPARK, journal, lake, AlertsSection(), None)
    assert watch.end == {JOURNAL: end}
    assert [row["agent"] for row in content(lake, ["agents"])["agents"]] == ["ann"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("watch"))
    yield process
    process.kill()


def stage_of(server: ServerProcess) -> Stage:
    return Stage(server.http, (server.data / "run" / "operator.token").read_text().strip())


def arrived(server: ServerProcess, stream: str) -> list[tuple[str, str, str]]:
    """The envelopes of a stream: rule, subject and state."""
    answer = Http(server.http).get("/v1/peek", stream=stream, max=100)
    payloads = [row["env"]["payload"] for row in answer.json["rows"]] if answer.status == 200 else []
    return [(one["rule"], one["subject"], one["state"]) for one in payloads]


@pytest.mark.promise("Spark: pipeline", "an alert is sent once, also after a journal lost rows")
def test_alerts_of_a_journal_that_lost_rows_are_sent(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    rules = AlertsSection((DeadLetterRule("dead"),), to="lost")

    def watch(data: Path) -> AlertWatch:
        return AlertWatch(spark, location.open_one(data), tmp_path / "lake", rules, stage_of(server))

    long, short = JournalBuilder(tmp_path / "long"), JournalBuilder(tmp_path / "short")
    work(long, 2)
    work(short, 1)
    watch(long.data).on_batch({JOURNAL: long.end})
    first = arrived(server, "agents/lost/inbox")
    assert ("dead", "jobs", "firing") in first
    # The same journal with fewer rows, then with others.
    later = watch(short.data)
    sam = short.subscribe("later", 50, label="sam", link=short.connect(holder("sam")))
    short.send("later", "job-1", "ann")
    short.grant(sam, 1)
    short.machine.term(short.now, sam, short.held(sam, "job-1"), "hopeless")
    short.apply()
    short.commit()
    assert short.end < long.end
    later.on_batch({JOURNAL: short.end})
    assert [one for one in arrived(server, "agents/lost/inbox") if one not in first] == [("dead", "later", "firing")]
    for story in (long, short):
        story.close()


def lines(*ids: str, **payload: Any) -> list[dict[str, Any]]:
    """Envelopes of alerts."""
    return [
        {"id": id_, "type": "alert.firing", "from": "pipeline/penstock", "to": "agents/count/inbox", "ts": "2026-03-01T00:00:00Z",
         "payload": {"rule": "r", "subject": id_, "state": "firing", "envelope_id": id_, **payload}}
        for id_ in ids
    ]  # fmt: skip


def test_a_batch_of_alerts_counts_once_and_another_of_its_number_is_not_lost(server: ServerProcess) -> None:
    stage = stage_of(server)

    def ids() -> list[str]:
        rows = Http(server.http).get("/v1/peek", stream="agents/count/inbox", max=100).json["rows"]
        return [row["env"]["id"] for row in rows]

    sent = (stage.last(SENDER) or 0) >> 32
    count = enqueue_alerts(stage, lines("a", "b"), sent)
    assert count == sent + 1
    assert enqueue_alerts(stage, lines("a", "b"), sent) == count, "after a crash before the commit that records it"
    assert ids() == ["a", "b"]
    assert enqueue_alerts(stage, lines("b", "c"), sent) in (count, count + 1), "the same count with other content"
    assert ids() == ["a", "b", "c"]
    far = count + 1_000
    stage.part(SENDER, far << 32, "alerts", [msgspec.json.encode(*lines("far"))])
    stage.commit(SENDER, far << 32, ["alerts"])
    assert enqueue_alerts(stage, lines("d"), count) == far + 1, "the count follows that of the server"
    changed, again = lines("a", value=5), lines("a", value=5)
    count = enqueue_alerts(stage, changed, far + 1)
    assert count > far + 1
    *before, new = ids()
    assert before == ["a", "b", "c", "far", "d"]
    assert changed[0]["payload"]["envelope_id"] == changed[0]["id"] == new != "a"
    enqueue_alerts(stage, again, far + 1)
    assert again == changed and ids() == [*before, new], "sent again, it has the same name"


# Without a JVM

MINUTE_MS = 60_000


@pytest.fixture
def idle(tmp_path: Path) -> tuple[Path, int]:
    """A lake that knows two agents, evaluated to the end of the journal; and when they were active."""
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 1)
    story.close()
    journal = location.open_one(data)
    end = journal.bounds().end
    at_us = journal.time_of(end - 1)
    agents = [
        {"journal": JOURNAL, "cluster": JOURNAL, "agent": name, "offset": number, "last_at": at_us}
        for number, name in enumerate(("ann", "bob"))
    ]
    LakeTable(data / "lake", AGENTS).merge(pa.Table.from_pylist(agents, AGENTS.schema), {APP: Progress(0, end)})
    LakeTable(data / "lake", ALERTS).merge(ALERTS.schema.empty_table(), {APP: Progress(0, end)})
    return data, at_us


def quiet(data: Path, *rules: SilenceRule) -> AlertWatch:
    return AlertWatch(NO_SPARK, location.open_one(data), data / "lake", AlertsSection(rules), None)


def states(data: Path) -> list[tuple[str, str]]:
    return [(row["subject"], row["state"]) for row in content(data / "lake", ["alerts"])["alerts"]]


def test_the_clock_raises_an_alert_once_for_each_silent_agent(idle: tuple[Path, int]) -> None:
    data, at_us = idle
    watch = quiet(data, SilenceRule("quiet", for_ms=MINUTE_MS))
    watch.on_clock(at_us + MINUTE_MS * 1000)
    assert states(data) == []
    watch.on_clock(at_us + MINUTE_MS * 1000 + 1)
    assert sorted(states(data)) == [("ann", "firing"), ("bob", "firing")]
    version = LakeTable(data / "lake", ALERTS).version()
    watch.on_clock(at_us + 2 * MINUTE_MS * 1000)
    quiet(data, SilenceRule("quiet", for_ms=MINUTE_MS)).on_clock(at_us + 3 * MINUTE_MS * 1000)
    assert LakeTable(data / "lake", ALERTS).version() == version, "a restart knows what is firing"


def test_the_clock_waits_for_rows_that_are_not_evaluated(idle: tuple[Path, int]) -> None:
    data, at_us = idle
    watch = quiet(data, SilenceRule("quiet", for_ms=MINUTE_MS))
    story = JournalBuilder(data)
    story.send("jobs", "new", "ann")
    story.close()
    watch.on_clock(at_us + 10 * MINUTE_MS * 1000)
    assert states(data) == [], "an agent that seems silent may be active in them"


def test_without_a_rule_of_silence_the_clock_does_nothing(idle: tuple[Path, int]) -> None:
    data, at_us = idle
    quiet(data).on_clock(at_us + 10 * MINUTE_MS * 1000)
    assert states(data) == []


# Envelopes


@pytest.mark.promise("Spark: pipeline", "alerts are sent as envelopes also after a journal lost rows")
def test_alerts_are_sent_when_the_ends_of_the_journals_fell(tmp_path: Path) -> None:
    """A journal lost rows, or is not read any more: the numbers of batches begin below what the server has."""
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 1)
    story.close()
    (tmp_path / "server").mkdir()
    server = ServerProcess(tmp_path / "server")
    try:
        journal = location.open_one(data)
        end = journal.bounds().end
        with Stage(server.http) as stage:
            before = [b'{"to":"other","type":"t","payload":1}']
            stage.part(SENDER, 10 * end << 20, "alerts", before)
            stage.commit(SENDER, 10 * end << 20, ["alerts"])
            watch = AlertWatch(NO_SPARK, journal, data / "lake", AlertsSection(RULES.rules[:1], to="ops"), stage)
            watch.on_batch({journal.id: end})
            sent = sorted(row["envelope_id"] for row in content(data / "lake", ["alerts"])["alerts"])
            answer = Http(server.http).get("/v1/peek", stream="agents/ops/inbox", max=100)
            assert sorted(row["env"]["id"] for row in answer.json["rows"]) == sent != []
            for name in WATCHED:  # killed between the two: the same batch comes again
                shutil.rmtree(data / "lake" / name)
            AlertWatch(NO_SPARK, journal, data / "lake", AlertsSection(RULES.rules[:1], to="ops"), stage).on_batch(
                {journal.id: end}
            )
        answer = Http(server.http).get("/v1/peek", stream="agents/ops/inbox", max=100)
        assert len(answer.json["rows"]) == len(sent)
    finally:
        server.kill()
