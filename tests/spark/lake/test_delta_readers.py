"""The readers of `penstock_delta`: changes by version, in a batch and as a stream with restarts."""

from __future__ import annotations

import pickle
import shutil

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.errors import HintedError
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake.table_reader import LakeError
from tests.spark.delta_calls import read, source, write
from tests.spark.lakes import COUNTS, counted, counts


def stream(path, checkpoint, sink=None, **options):
    """What Spark does for a stream until it has read everything, with a restart before each batch; returns its batches."""
    batches = []
    while True:
        made = source(path, **options)
        reader = made.streamReader(made.schema())
        start = checkpoint[-1] if checkpoint else reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            return batches
        parts = reader.partitions(start, end)
        again = pickle.loads(pickle.dumps(reader))
        rows = [row for part in parts for batch in again.read(part) for row in batch.to_pylist()]
        batches.append(sorted((row["_commit_version"], row["_change_type"], row["channel"], row["n"]) for row in rows))
        if sink is not None:
            schema = to_arrow_schema(made.schema(), timezone="UTC")
            for _ in range(2):  # it is killed after the commit, and the batch comes again
                write(sink, pa.Table.from_pylist(rows, schema), batch=len(checkpoint), appId="q", mergeKeys="channel")
        checkpoint.append(end)


@pytest.mark.promise("Spark: source and sinks", "`readStream` of `penstock_delta`: changes by version, exactly once")
def test_tables_chain_by_their_changes(tmp_path):
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 1, ("b", 0): 1}), {})
    mirror, checkpoint, feed = tmp_path / "mirror", [], {"readChangeFeed": "true"}
    assert stream(table.path, checkpoint, mirror, **feed) == [[(1, "insert", "a", 1), (1, "insert", "b", 1)]]
    table.merge(counts({("a", 0): 2, ("c", 0): 1}), {})
    table.merge(counts({("a", 0): 3}), {}, counts({("b", 0): 0}))
    table.compact_files(files_min=2)
    found = stream(table.path, checkpoint, mirror, **feed)
    assert [[row[1] for row in batch] for batch in found] == [
        ["insert", "update_postimage", "update_preimage", "delete", "update_postimage", "update_preimage"]
    ]
    assert counted(read(mirror)) == counted(read(table.path)) == {("a", 0): 3, ("c", 0): 1}
    assert "_change_type" not in read(mirror).schema.names
    # The mirror has a feed of its own: insert, then in one commit what the two versions come to.
    version = str(LakeTable(tmp_path, COUNTS).version())
    assert stream(mirror, [], None, startingVersion="2", **feed)[0] == [
        (2, "delete", "b", 1), (2, "insert", "c", 1), (2, "update_postimage", "a", 3), (2, "update_preimage", "a", 1)
    ]  # fmt: skip
    assert len(stream(table.path, [], startingVersion="0", maxVersionsPerTrigger="1", **feed)) == int(version) + 1
    assert stream(table.path, [], startingVersion="latest", **feed) == [[]]
    assert stream(table.path, [], startingVersion="99", **feed) == [], "it waits for that version"
    late = source(table.path, startingVersion="1", **feed)
    reader = late.streamReader(late.schema())
    reader.prepareForTriggerAvailableNow()
    table.merge(counts({("d", 0): 1}), {})
    assert reader.latestOffset(reader.initialOffset(), None)["version"] == int(version) + 1
    changed = read(table.path, startingVersion="2", endingVersion="3", columns="n,_change_type", **feed)
    assert changed.schema.names == ["n", "_change_type"] and changed.num_rows == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readChangeFeed": "yes"}, "one of true, false"),
        ({"readChangeFeed": "true", "startingVersion": "2", "endingVersion": "3"}, r"version 3 .* has versions 0 to 2"),
        ({"stream": "1", "versionAsOf": "1"}, "leave other versions out"),
        ({"stream": "1", "startingVersion": "soon"}, "`startingVersion` is `soon`"),
        ({"stream": "1", "maxVersionsPerTrigger": "0"}, "1 or more"),
        (
            {"stream": "1", "startingVersion": "1"},
            r"version 2 of table `counts` .* it updates or deletes rows.* version is 3",
        ),
    ],
)
def test_a_feed_that_makes_no_sense_is_refused(tmp_path, options, message):
    table = LakeTable(tmp_path, COUNTS)
    for number in range(2):
        table.merge(counts({("a", 0): number}), {})
    ask = stream if options.pop("stream", None) else read
    with pytest.raises((HintedError, LakeError), match=message):
        ask(table.path, *([[]] if ask is stream else []), **options)


def test_a_stream_notices_that_its_table_or_its_files_are_gone(tmp_path):
    table = LakeTable(tmp_path, COUNTS)
    for number in range(2):
        table.merge(counts({("a", 0): number}), {})
    feed = {"readChangeFeed": "true", "startingVersion": "1"}
    made = source(table.path, **feed)
    reader = made.streamReader(made.schema())
    parts = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset(), None))
    shutil.rmtree(table.path / "_change_data")
    with pytest.raises(LakeError, match=r"version 2 .* its files are removed.*first readable version is 3"):
        [list(reader.read(part)) for part in parts]
    with pytest.raises(LakeError, match="was created anew"):
        stream(table.path, [{"table": "another", "version": 1}], **feed)
