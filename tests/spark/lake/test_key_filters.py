"""Bloom filters: which files a merge or a lookup by key reads."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.spark.lake import data_files, key_filters
from penstock.spark.lake.key_filters import HashedKeys, read_filters, xxh64
from penstock.spark.lake.schemas import TABLES
from penstock.spark.lake.table import LakeTable, Progress
from tests.spark.lakes import APP, LATEST

FILES = 6


def latest(names, offset=0):
    rows = [{"journal": "j1", "address": name, "offset": offset, "tags": None} for name in names]
    return pa.Table.from_pylist(rows, LATEST.schema)


def names_of(number):
    return [f"{each:02}-agent-{number}" for each in range(50)]


def filled(tmp_path):
    """A table of several files whose bounds overlap, so that only filters tell them apart."""
    table = LakeTable(tmp_path, LATEST)
    for number in range(FILES):
        table.append(latest(names_of(number)), {APP: Progress(number, number + 1)})
    return table


def test_hashes_are_xxh64():
    known = {"": 0xEF46DB3751D8E999, "a": 0xD24EC4F1A98C6E5B, "abc": 0x44BC2CF5AD770999}
    for text, number in known.items():
        assert int(xxh64([text])[0]) == number
    assert xxh64([None, "a"]).tolist() == [known["a"]]
    assert xxh64([]).tolist() == []


def test_every_stored_key_is_found_and_hardly_any_other(tmp_path, monkeypatch):
    """Arrow writes the filters, so this compares our lookup with the format, for keys of every length."""
    letters = random.Random(1)
    keys = ["".join(letters.choices("abcäöü01", k=length % 90)) for length in range(6_000)]
    path = tmp_path / "keys.parquet"
    pq.write_table(
        pa.table({"key": keys}), path, row_group_size=2_000, bloom_filter_options={"key": {"ndv": 2_000, "fpp": 1e-5}}
    )
    filters = read_filters(path)["key"]
    assert len(filters) == 3
    together = np.stack(filters, axis=1)
    for key in keys:
        assert HashedKeys([key]).hits(together), key
    assert sum(bool(HashedKeys([f"other {number}"]).hits(together)) for number in range(5_000)) < 5
    some = [keys[50], keys[-1], "other"]
    monkeypatch.setattr(key_filters, "WORDS_MAX", 1)
    assert HashedKeys(some).hits(together) == [0, 2], "one key at a time gives the same"


@pytest.mark.promise("Spark: pipeline", "a batch reads only the files that hold its keys, however large the table is")
def test_a_merge_reads_only_the_files_with_its_keys(tmp_path):
    table = filled(tmp_path)
    assert table.filters.lacking(table.files(), ["address"]) == []  # reads every filter
    untouched = [file for file in table.files() if file.least["address"] in ("00-agent-1", "00-agent-4")]
    for file in untouched:
        (table.path / file.path).unlink()
    table.merge(latest(["07-agent-2", "08-new"], 2), {"app": Progress(0, 1)})
    found = table.rows_with(
        {"address": pa.array(["07-agent-2", "08-new", "09-agent-5", "10-no"])}, ["address", "offset"]
    )
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == [
        ("07-agent-2", 2),
        ("08-new", 2),
        ("09-agent-5", 0),
    ]
    with pytest.raises(FileNotFoundError):
        table.merge(latest(["07-agent-4"], 3), {"app": Progress(1, 2)})
    assert len(untouched) == 2


def test_a_large_file_is_hardly_ever_read_in_vain(tmp_path):
    """Ten million rows are some 300 files, and a batch looks each of its keys up in all of them."""
    table = LakeTable(tmp_path, LATEST)
    rows = data_files.MERGE_FILE_ROWS_MAX
    table.append(latest([f"agent-{number}" for number in range(rows)]), {APP: Progress(0, 1)})
    [blocks] = read_filters(table.path / table.files()[0].path)["address"]
    others = [HashedKeys([f"other-{number}" for number in range(first, first + 50)]) for first in range(0, 200_000, 50)]
    assert sum(len(each.hits(blocks[:, None])) for each in others) <= 1
    assert blocks.nbytes / rows < 8


def test_filters_of_many_files_are_compared_in_few_calls(tmp_path, monkeypatch):
    table = filled(tmp_path)
    files = table.files()
    assert table.filters.lacking(files, ["address"]) == []
    calls = []
    hits = HashedKeys.hits
    monkeypatch.setattr(HashedKeys, "hits", lambda *given: calls.append(1) or hits(*given))
    wanted = {"address": pa.array(["07-agent-2", "no"])}
    [(found, groups)] = table.filters.holding_groups(files, wanted)
    assert (found.least["address"], groups, len(calls)) == ("00-agent-2", [0], 1)
    table.filters.keep([file for file in files if file is not found])
    assert table.filters.holding([file for file in files if file is not found], wanted) == []
    assert table.filters.holding(files, wanted) == [found], "a file whose filter was dropped is read again"


def test_a_table_of_an_earlier_version_is_read_and_rewritten_by_compaction(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "MERGE_FILE_ROWS_MAX", 20)
    table = LakeTable(tmp_path, LATEST)
    plain = replace(LATEST, write="append")  # writes large files without filters, as version 0.1.0 did
    LakeTable(tmp_path, plain).append(latest(names_of(1)), {APP: Progress(0, 1)})
    assert table.filters.lacking(table.files(), ["address"]) == table.files()
    table.merge(latest(["07-agent-1"], 1), {"warm": Progress(0, 1)})
    before = table.rows().sort_by("address")
    assert before.num_rows == 50
    table.compact(is_forced=True)
    assert table.rows().sort_by("address").equals(before)
    assert table.filters.lacking(table.files(), ["address"]) == []
    assert max(file.rows for file in table.files()) <= 20
    assert table.compact_files() == (0, 0)


def test_only_filters_of_live_files_are_held(tmp_path, monkeypatch):
    table = filled(tmp_path)
    for number in range(20):
        table.merge(latest(["07-agent-2"], number + 1), {"app": Progress(number, number + 1)})
    assert table.filters.lacking(table.files(), ["address"]) == []
    assert set(table.filters._held) == {file.path for file in table.files()}
    # Small filters count too: an entry is more than its blocks.
    blocks = sum(32 * len(one.words) for entry in table.filters._held.values() for one, _ in entry["address"])
    monkeypatch.setattr(key_filters, "HELD_BYTES_MAX", 2 * blocks)
    again = LakeTable(tmp_path, LATEST)
    assert again.filters.lacking(again.files(), ["address"]) == []
    assert 1 <= len(again.filters._held) < len(again.files())
    wanted = {"address": pa.array(["07-agent-2", "08-agent-3", "no"])}
    assert len(again.filters.holding(again.files(), wanted)) == 2, "what is not held is read for each lookup"
    again.filters.keep([])
    assert again.filters._bytes == 0 and not any(again.filters._stacks.values())


def test_threads_share_the_filters_of_a_table(tmp_path):
    table = filled(tmp_path)
    files = table.files()
    start = threading.Barrier(4)

    def read(_):
        start.wait(30)
        return table.filters.lacking(files, ["address"])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(4))) == [[]] * 4
    assert table.filters._bytes == sum(map(key_filters._size, table.filters._held.values()))


def test_which_columns_have_filters():
    found = {name: table.filters for name, table in TABLES.items() if table.filters}
    assert found == {
        "events": ("id", "corr"),
        "envelopes": ("id", "corr"),
        "deliveries": ("id", "corr"),
        "latest_per_agent": ("address",),
        "token_streams": ("topic_hash",),
        "conversations": ("corr",),
        "alerts": ("id",),
        "agents": ("agent",),
    }
