"""Failures of a journal as errors of the source."""

from __future__ import annotations

import pytest

from penstock.spark.errors import SourceError, source_errors
from tests.spark.journals import (
    ALL,
    Written,
    at,
    batch,
    stream,
    table,
)


def test_damage_is_named_and_not_skipped(written: Written) -> None:
    segment = sorted((written.data / "journal").glob("log-*"))[-1]
    data = bytearray(segment.read_bytes())
    data[-100] ^= 0xFF  # in the last frame
    segment.write_bytes(data)
    reader = batch(written.data)
    with pytest.raises(SourceError, match=r"are missing, in the journal at .*`penstock log check`"):
        table(reader, reader.partitions())


def test_a_directory_that_goes_away_says_so(written: Written) -> None:
    import shutil

    reader = stream(written.data)
    reader.latestOffset(at(written, 0), ALL)
    written.close()
    shutil.rmtree(written.data)
    with pytest.raises(SourceError, match="no longer exists"):
        reader.latestOffset(at(written, 30), ALL)


@pytest.mark.promise("Spark: source and sinks", "wrong options, paths, permissions and schemas fail with a hint")
def test_a_file_that_may_not_be_read_says_who_may() -> None:
    with (
        pytest.raises(SourceError, match=r"no access to `/x/watermark`.* Run Spark as that user"),
        source_errors("`/x`"),
    ):
        raise PermissionError(13, "Permission denied", "/x/watermark")
