"""`penstock lake erase`: nothing of an agent, a conversation or an envelope is left in a data directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from penstock.core.records import Entry
from penstock.ipc.pipeline import WORKSHOP
from penstock.journal.audit import audit
from penstock.journal.lake_location import lake_of, record_lake
from penstock.journal.reader import JournalReader
from penstock.server.ops.backup import backup, restore
from penstock.spark.lake.locks import TableLock
from penstock.spark.lake.schemas import AGENTS, ALERTS, CONVERSATIONS, DELIVERIES, ENVELOPES
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake_tables.envelopes import envelope_rows
from tests.spark.journal_builder import JOURNAL, JournalBuilder
from tests.spark.journaled import holder
from tests.spark.lakes import COUNTS, counts

APP = f"{JOURNAL}/0"
SECRET = "only-zelda-knows"


def written(data: Path) -> JournalBuilder:
    """Zelda asks Ann, works for Bob, and talks in a space; Ann and Bob also talk without her. Everything is settled."""
    story = JournalBuilder(data)
    ann, zelda = story.connect(holder("ann")), story.connect(holder("zelda"))
    inbox = story.subscribe("agents/ann/inbox", 50, link=ann)
    hers = story.subscribe("agents/zelda/inbox", 50, link=zelda)
    jobs = story.subscribe("jobs", 50, link=zelda)
    story.send("agents/ann/inbox", "m-1", "bob", corr="talk-1")
    story.send("agents/ann/inbox", "m-2", "zelda", corr="talk-1", payload={"text": SECRET})
    story.send("agents/zelda/inbox", "m-3", "ann", corr="talk-2", payload={"text": f"to her: {SECRET}"})
    story.send("jobs", "m-4", "bob", corr="talk-3")
    for consumer, id_ in ((inbox, "m-1"), (inbox, "m-2"), (hers, "m-3"), (jobs, "m-4")):
        story.ack(consumer, id_)
    story.say(1, "chat", "w-1", "zelda", payload={"text": SECRET})
    story.say(2, "chat", "w-2", "kim", to=["zelda", "bob"], payload={"text": SECRET})
    story.say(3, "chat", "w-3", "kim", payload={"text": "hello"})
    story.note(Entry("mew", "join", "demo", peer="zelda"))
    story.wait(61)
    return story


def fill(data: Path) -> None:
    """Tables as the pipeline leaves them, with an older version of one."""
    lake = lake_of(data)
    reader = JournalReader(data)
    end = reader.bounds().end
    rows = pa.Table.from_batches(reader.batches(0, end))
    sent = rows.filter(pc.is_in(rows.column("event"), pa.array(["enqueue", "envelope"])))
    for begin, behind in ((0, end // 2), (end // 2, end)):
        offsets = sent.column("offset")
        part = sent.filter(pc.and_(pc.greater_equal(offsets, begin), pc.less(offsets, behind)))
        made = pa.Table.from_batches([envelope_rows(batch) for batch in part.combine_chunks().to_batches()])
        LakeTable(lake, ENVELOPES).append(made, {APP: Progress(begin, behind)})
    LakeTable(lake, ENVELOPES).compact_files(files_min=2)
    settled = [
        {"journal": JOURNAL, "offset": row["offset"], "date": row["recorded_at"].date(), "channel": row["channel"],
         "seq": row["seq"], "id": row["id"], "sender": row["sender"], "holder": row["peer"], "corr": row["corr"]}
        for row in rows.to_pylist() if row["event"] == "ack"
    ]  # fmt: skip
    LakeTable(lake, DELIVERIES).append(pa.Table.from_pylist(settled, DELIVERIES.schema), {APP: Progress(0, end)})
    active = [
        {"journal": JOURNAL, "cluster": JOURNAL, "agent": agent, "offset": offset, "channel": "agents/zelda/inbox"}
        for agent, offset in (("zelda", 1), ("ann", 2), ("bob", 0))
    ]
    LakeTable(lake, AGENTS).merge(pa.Table.from_pylist(active[:2], AGENTS.schema), {})
    LakeTable(lake, AGENTS).merge(pa.Table.from_pylist(active, AGENTS.schema), {})
    alerts = [{"id": one, "journal": JOURNAL, "subject": subject} for one, subject in (("a", "zelda"), ("b", "ann"))]
    LakeTable(lake, ALERTS).merge(pa.Table.from_pylist(alerts, ALERTS.schema), {})


def traces(data: Path, *words: str) -> list[str]:
    """The files in which a word occurs, as it is or in a decoded column."""
    found = []
    for path in sorted(data.rglob("*")):
        if not path.is_file():
            continue
        texts = [path.read_bytes(), path.name.encode()]
        if path.suffix == ".parquet":
            texts.append(repr(pq.read_table(path, partitioning=None).to_pylist()).encode())
        found += [f"{path.relative_to(data)}: {word}" for word in words for text in texts if word.encode() in text]
    return found


def lake_files(data: Path) -> set[str]:
    return {str(path) for path in (data / "lake").glob("[!_]*/**/*") if path.is_file()}


def journal_rows(data: Path) -> list[dict]:
    reader = JournalReader(data)
    return pa.Table.from_batches(reader.batches(0, reader.bounds().end)).to_pylist()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    data = tmp_path_factory.mktemp("filled")
    story = written(data)
    fill(data)
    story.close()
    return data


@pytest.fixture
def data(filled, tmp_path):
    return Path(shutil.copytree(filled, tmp_path, dirs_exist_ok=True))


def test_a_rebuild_that_runs_is_not_joined(cli, data):
    with TableLock(lake_of(data), WORKSHOP).held():
        assert "fills tables" in cli("lake", "erase", "--agent", "zelda", "--yes", code=1).err
    assert traces(data, SECRET)


@pytest.mark.promise(
    "Spark: pipeline", "`penstock lake erase` leaves no byte of an agent in the journal, the tables and their logs"
)
def test_nothing_of_an_agent_is_left(cli, data):
    shutil.copytree(data / "lake" / "envelopes", data / "lake" / WORKSHOP / "envelopes")  # of a killed rebuild
    assert traces(data, "zelda", SECRET)
    before = journal_rows(data)
    plan = json.loads(cli("lake", "erase", "--agent", "zelda", "--dry-run", "--json").out)
    assert plan["dryRun"] and plan["rows"]["envelopes"] == 4 and plan["rows"]["deliveries"] == 3
    assert journal_rows(data) == before, "a dry run changes nothing"

    done = json.loads(cli("lake", "erase", "--agent", "zelda", "--yes", "--json").out)
    assert done["rows"] == plan["rows"] and any("backups" in one for one in done["notCovered"])
    assert traces(data, "zelda", SECRET) == []

    rows = journal_rows(data)
    assert [row["offset"] for row in rows] == list(range(len(rows))), "offsets stay dense"
    *_, record = rows
    rows = rows[: len(before)]
    erased = [row for row in rows if row["event"] == "erased"]
    kept = ("journal", "shard", "epoch", "offset", "recorded_at", "door", "event")
    assert len(erased) == done["rows"]["events"] == 9
    for row in erased:
        assert row == {**dict.fromkeys(row), **{name: before[row["offset"]][name] for name in kept[:5]},
                       "door": "server", "event": "erased"}  # fmt: skip
    assert all(row in (before[row["offset"]], *erased) for row in rows), "other rows stay as they are"
    assert (record["door"], record["event"]) == ("server", "erased")
    assert json.loads(record["meta"]) == {"rows": len(erased), "by": {"agent": 1}}

    lake = data / "lake"
    sent = [row for row in rows if row["event"] in ("enqueue", "envelope")]
    assert sorted(LakeTable(lake, ENVELOPES).rows(["offset"]).column(0).to_pylist()) == [row["offset"] for row in sent]
    assert LakeTable(lake, DELIVERIES).rows(["id"]).column(0).to_pylist() == ["m-1"]
    assert LakeTable(lake, ENVELOPES).progress(APP) == len(before), "the pipeline goes on where it was"
    listed = {one["table"]: one["offset"] for one in json.loads(cli("lake", "ls", "--json").out)["tables"]}
    assert listed["envelopes"] == len(before) <= listed["events"] < record["offset"] + 1
    assert LakeTable(lake, ALERTS).rows(["subject"]).column(0).to_pylist() == ["ann"]
    assert {(one["agent"], one["channel"]) for one in LakeTable(lake, AGENTS).rows().to_pylist()} == {
        ("ann", None), ("bob", None),
    }  # fmt: skip
    assert audit(data).is_sound, audit(data).findings
    story = JournalBuilder(data)  # a server goes on from here
    story.send("agents/ann/inbox", "m-9", "bob")
    story.seal()
    story.close()
    assert audit(data).is_sound, audit(data).findings


def test_live_envelopes_are_refused_and_nothing_changes(cli, data):
    story = JournalBuilder(data)
    story.send("agents/zelda/inbox", "m-live", "ann")
    story.send("jobs", "m-5", "ann")
    story.close()
    before = journal_rows(data)
    seen = cli("lake", "erase", "--agent", "zelda", "--json", code=1)
    assert json.loads(seen.out)["error"]["code"] == "EnvelopeLive"
    assert "still in use: `m-live`" in seen.err and "start the server, settle or `penstock drop --id`" in seen.err
    assert journal_rows(data)[: len(before)] == before
    assert not (data / "journal" / "erase.json").exists()


def test_words_that_name_nothing_are_errors(cli, data, tmp_path):
    assert "pass --agent NAME" in cli("lake", "erase", code=1).err
    assert "is not an agent's name" in cli("lake", "erase", "--agent", "agents/zelda", code=1).err
    assert "there is no journal" in cli("lake", "erase", "--agent", "zelda", at=tmp_path / "typo", code=1).err
    nothing = json.loads(cli("lake", "erase", "--id", "zeld", "--dry-run", "--json").out)
    assert set(nothing["rows"].values()) == {0}


def test_what_matches_nothing_changes_nothing(cli, data):
    cli("log", "seal")
    before = lake_files(data)
    assert "nothing matches" in cli("lake", "erase", "--id", "zeld", "--yes", code=1).err
    assert lake_files(data) == before


def test_without_spark_nothing_changes(cli, data, monkeypatch):
    cli("log", "seal")
    LakeTable(data / "lake", CONVERSATIONS).merge(CONVERSATIONS.schema.empty_table(), {})
    before = lake_files(data)
    monkeypatch.setattr("penstock.server.ops.pipeline_supervisor.is_installed", lambda: False)
    assert "Spark is not installed" in cli("lake", "erase", "--agent", "zelda", "--yes", code=1).err
    assert lake_files(data) == before and not (data / "journal" / "erase.json").exists()


def test_a_dry_run_does_not_claim_to_complete_an_erasure(cli, data):
    (data / "journal" / "erase.json").write_text('{"agent":["zelda"]}')
    assert "the next one completes it" in cli("lake", "erase", "--dry-run").err


def test_a_table_that_is_not_rebuilt_is_named_with_its_command(cli, data):
    LakeTable(data / "lake", COUNTS).merge(counts({("a", 0): 1}), {})
    done = json.loads(cli("lake", "erase", "--id", "m-2", "--yes", "--json").out)
    assert any(f"`penstock pipeline backfill {COUNTS.name}` after you delete it" in one for one in done["notCovered"])


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "an erasure that is killed at any step is completed by the next run")
@pytest.mark.parametrize("step", ["write_live", "bury", "scrub", "open_table", "seal"])
def test_an_erasure_that_is_killed_goes_on(cli, data, step, monkeypatch):
    from penstock.cli.tables import erase
    from penstock.journal import parquet_table

    def killed(*_):
        raise KeyboardInterrupt

    before = journal_rows(data)
    with monkeypatch.context() as patch:
        if step == "seal":  # between two commits of the journal's table
            real = parquet_table.EventsTable.rewrite
            patch.setattr(parquet_table.EventsTable, "rewrite", lambda *given: (real(*given), killed()))
        else:
            patch.setattr(erase, step, killed)
        cli("lake", "erase", "--agent", "zelda", "--yes", code=130)
    assert traces(data, "zelda")
    story = JournalBuilder(data)  # a server may run in between
    story.send("jobs", "m-6", "bob")
    story.close()
    again = ["--agent", "zelda"] if step == "write_live" else []  # nothing has changed before that
    done = cli("lake", "erase", "--yes", "--json", *again)
    assert again or "was interrupted" in done.err
    assert traces(data, "zelda", SECRET) == []
    assert audit(data).is_sound, audit(data).findings
    rows = journal_rows(data)
    erased = [row["offset"] for row in rows[: len(before)] if row["event"] == "erased"]
    assert json.loads(rows[-1]["meta"]) == {"rows": len(erased), "by": {"agent": 1}} and len(erased) == 9
    assert LakeTable(data / "lake", DELIVERIES).rows(["id"]).column(0).to_pylist() == ["m-1"]


@pytest.mark.more
@pytest.mark.parametrize(("word", "ids"), [("--id", {"m-2"}), ("--corr", {"m-1", "m-2"})])
def test_an_envelope_or_a_conversation_goes_alone(cli, data, word, ids):
    cli("lake", "erase", word, "m-2" if word == "--id" else "talk-1", "--yes")
    left = LakeTable(data / "lake", ENVELOPES).rows(["id"]).column(0).to_pylist()
    assert set(left) == {"m-1", "m-2", "m-3", "m-4", "w-1", "w-2", "w-3"} - ids
    assert {row["id"] for row in journal_rows(data)} & ids == set()
    assert traces(data, *(f'"{one}"' for one in ids)) == []
    assert audit(data).is_sound


@pytest.mark.more
@pytest.mark.promise(
    "Spark: pipeline", "`penstock lake erase` leaves no byte of an agent in the journal, the tables and their logs"
)
def test_nothing_is_left_in_an_object_store(cli, tmp_path, object_store):
    story = written(tmp_path)
    lake = object_store.lake(tmp_path)
    record_lake(tmp_path, lake)
    story.seal()
    fill(tmp_path)
    story.close()
    copies = tmp_path / "copies"

    def fetched(name):
        for one in lake.files.get_file_info(fs.FileSelector(lake.key, recursive=True)):
            if one.type == fs.FileType.File:
                path = copies / name / one.path.removeprefix(lake.key).lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(lake.files.open_input_file(one.path).read())
        return copies / name

    assert traces(fetched("before"), "zelda", SECRET)
    cli("lake", "erase", "--agent", "zelda", "--yes")
    assert traces(fetched("after"), "zelda", SECRET) == []
    assert traces(tmp_path / "journal", "zelda", SECRET) == []
    assert LakeTable(lake, DELIVERIES).rows(["id"]).column(0).to_pylist() == ["m-1"]
    assert audit(tmp_path).is_sound, audit(tmp_path).findings


@pytest.mark.more
def test_a_backup_of_an_erased_directory_can_be_restored(cli, data, tmp_path_factory):
    cli("lake", "erase", "--agent", "zelda", "--yes")
    away = tmp_path_factory.mktemp("away")
    backup(data, away / "copy.tar", "1")
    restore(away / "copy.tar", away / "data")
    assert journal_rows(away / "data") == journal_rows(data)
    assert traces(away, "zelda", SECRET) == []
