"""The lake in Google's and in Azure's store: what the tests of S3 do without faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal.delta_log import DeltaLog, table_names
from penstock.journal.lake_location import StoreError, find_delta, lake_of, record_lake, remove_tree
from penstock.journal.reader import JournalReader
from penstock.journal.sql import ask
from penstock.spark.lake.table import LakeTable, Progress
from tests.cloud_stores import AzureStore, GoogleStore, azure_store, google_store  # noqa: F401 - fixtures
from tests.integration.serving import Http
from tests.server_process import ServerProcess
from tests.spark.journals import Written
from tests.spark.lakes import APP, COUNTS, NOTES, counted, counts, notes, offsets

Store = AzureStore | GoogleStore


@pytest.fixture(params=["azure_store", "google_store"])
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(request.param)
    return found


@pytest.mark.promise("The lake", "sealing, reading, merging and compacting work in Azure's and in Google's store")
def test_sealed_rows_are_in_the_store_once(store: Store, tmp_path: Path) -> None:
    journal = Written(tmp_path / "data")
    record_lake(journal.data, store.lake(tmp_path))
    for _ in range(3):
        journal.add(10)
        journal.seal()
    journal.add(5)
    batches = JournalReader(journal.data).batches(0, journal.end, ["offset"])
    assert [one for batch in batches for one in batch.column(0).to_pylist()] == list(range(35))
    lake = lake_of(journal.data)
    assert list(ask(lake, "select count(*), count(distinct offset) from events").rows) == [[30, 30]]
    assert table_names(lake) == ["events"]
    assert not (journal.data / "lake").exists()


@pytest.mark.promise("The lake", "sealing, reading, merging and compacting work in Azure's and in Google's store")
def test_tables_are_merged_compacted_and_replaced(store: Store, tmp_path: Path) -> None:
    lake = store.lake(tmp_path)
    merged = LakeTable(lake, COUNTS)
    assert merged.merge(counts({("a", 1): 1, ("b", 1): 1}), {APP: Progress(0, 5)})
    assert merged.merge(counts({("b", 1): 2, ("c", 1): 3}), {APP: Progress(5, 9)})
    assert not merged.merge(counts({("b", 1): 7}), {APP: Progress(5, 9)}), "the table has it"
    assert counted(merged.rows()) == {("a", 1): 1, ("b", 1): 2, ("c", 1): 3}
    table = LakeTable(lake, NOTES)
    for number in range(9):
        table.append(notes(number, number + 1), {APP: Progress(number, number + 1)})
    assert table.compact_files() == (9, 1)
    assert offsets(table.rows()) == list(range(9))
    other = LakeTable(lake / "_rebuild", NOTES)
    other.append(notes(0, 3), {APP: Progress(0, 3)})
    table.replace_with(other, [APP])
    remove_tree(lake / "_rebuild")
    assert offsets(table.rows()) == [0, 1, 2]
    assert table_names(lake) == ["counts", "notes"]
    assert list(DeltaLog(table.path).damage()) == []


@pytest.fixture
def server(store: Store, tmp_path: Path) -> Iterator[ServerProcess]:
    lake = store.lake(tmp_path)
    process = ServerProcess(tmp_path, config=f"lake: {lake.url}\nlake_credentials: {lake.credentials}\n")
    yield process
    process.kill()


def test_a_server_seals_into_the_store_and_answers_sql(server: ServerProcess) -> None:
    http = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    http.enqueue("jobs", "a", "b", "c")
    assert http.post("/v1/journal/seal", {}).status == 200
    query = "select count(*) as n from events where event = 'enqueue'"
    assert http.post("/v1/sql", {"query": query}).json["rows"] == [[3]]
    assert http.get("/health").json["lake"] == {"ok": True, "trouble": None}


def test_a_store_that_cannot_be_used_says_why(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the bucket does not exist"):
        find_delta(store.lake(tmp_path, "nothing-here") / "events")


def test_a_wrong_key_of_azure_is_refused(azure_store: AzureStore, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(StoreError, match="refuses the credentials"):
        find_delta(azure_store.lake(tmp_path, key="d3Jvbmc=") / "events")


def test_of_two_writers_of_a_version_one_wins(store: Store, tmp_path: Path) -> None:
    lake = store.lake(tmp_path)
    first, second = LakeTable(lake, NOTES), LakeTable(lake, NOTES)
    first.append(notes(0, 1), {APP: Progress(0, 1)})
    assert second.progress(APP) == 1
    first.append(notes(1, 2), {APP: Progress(1, 2)})
    assert not second.append(notes(1, 2), {APP: Progress(1, 2)}), "the table has it"
    assert offsets(second.rows()) == [0, 1]
