"""Options of the source: parsed, refused with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.errors import SourceError
from penstock.spark.source.datasource import PenstockSource
from penstock.spark.source.options import NAMES, parse_options
from tests.spark.journals import (
    batch,
    stream,
)


@pytest.mark.promise("Spark: source and sinks", "wrong options, paths, permissions and schemas fail with a hint")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "latest"}, "no option `startingOffset`; did you mean `startingOffsets`?"),
        ({"wrong": "1"}, "no option `wrong`; options: url, token"),
        ({"startingOffsets": "soon"}, "write `earliest`, `latest` or offsets as JSON"),
        ({"startingOffsets": '{"v":2,"journals":{}}'}, "offsets of version 2"),
        ({"startingOffsets": '{"v":1,"journals":{"x":{"0":-3}}}'}, "the minimum is -2"),
        ({"startingOffsets": '{"v":1,"journals":{"x":{"1":3}}}'}, "has only shard 0"),
        ({"startingOffsets": "[1]"}, "`startingOffsets` has invalid offsets"),
        ({"endingOffsets": "earliest"}, "write `latest` or offsets as JSON"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number of 1 or more"),
        ({"maxTriggerDelay": "soon"}, "write a duration like"),
        ({"event": "enqueue,enqueued"}, "there is no event `enqueued`; `event` is one of ack, agent,"),
        ({"event": "stream.*"}, "there is no event `stream.*`"),
        ({"door": "http"}, "there is no door `http`; `door` is one of courier, mew, streamservice, server"),
        (
            {"path": "s3a://lakes/one"},
            "`s3://lakes/one` is an object store, and a journal is on the disk of its server",
        ),
        ({"columns": "ofset"}, "did you mean `offset`?"),
        ({"columns": "offset,offset"}, "once"),
        ({"bodyAs": "xml"}, "one of binary, string, json"),
        ({"failOnDataLoss": "maybe"}, "one of true, false"),
        ({"reader": "a/b"}, "a reader's name has"),
        ({"token": "secret-1"}, "a token is for a server"),
        ({"url": "http://localhost:1"}, "either a data directory"),
    ],
    ids=str,
)
def test_a_wrong_option_is_rejected_with_a_hint(options: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_options({"path": "somewhere"} | options)
    assert message in str(caught.value) and "secret" not in str(caught.value)


def test_options_are_read_in_any_case_and_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = PenstockSource({"PATH": "one, file:///two/three", "STARTINGOFFSETS": "Latest", "maxtriggerdelay": "2 min"})
    monkeypatch.chdir("/")
    options = parse_options(source.options)
    assert [location.path for location in options.locations] == [str(tmp_path / "one"), "/two/three"]
    assert (options.starting, options.delay_s, options.fails_on_loss) == (-1, 120.0, True)
    assert {"startingOffsets", "maxTriggerDelay", "path"} == options.given <= set(NAMES)


def test_over_connect_a_relative_path_is_of_the_directory_where_spark_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", "/started/here")
    for session, path in (("default", tmp_path / "data"), ("5f1c", Path("/started/here/data"))):
        monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", session)
        assert PenstockSource({"path": "data"}).options["path"] == str(path)


def test_the_directory_of_the_journal_stands_for_its_data_directory(tmp_path: Path) -> None:
    (tmp_path / "journal" / "journal").mkdir(parents=True)
    inner = tmp_path / "journal"
    for given in (inner, inner / "journal", f"file://{inner}/lake"):
        (location,) = parse_options({"path": str(given)}).locations
        assert location.path == str(inner)
    assert parse_options({"path": "x", "event": "stream_*, ack"}).selection.events == ("stream_*", "ack")


def test_options_that_would_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="`endingOffsets` does not apply to a stream"):
        stream(tmp_path, endingOffsets="latest")
    with pytest.raises(SourceError, match="`maxOffsetsPerTrigger` does not apply to a batch read"):
        batch(tmp_path, maxOffsetsPerTrigger=5)
