"""Locations of journals: tokens, directories, and journals that stay open."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from penstock.spark.errors import SourceError
from penstock.spark.location import JournalLocation, open_one
from penstock.spark.source.options import parse_options
from tests.journal.histories import START_US
from tests.spark.journals import (
    SECOND_US,
    Written,
    at,
    batch,
    stream,
    table,
)


def test_tokens_come_from_where_they_are_said_to_be_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_TOKEN", "secret-2")
    (tmp_path / "token").write_text("secret-3\n")
    url = {"url": "http://one:1, https://two"}
    for secret, token in (
        ({"token": "secret-1"}, "secret-1"),
        ({"token": "env:JOURNAL_TOKEN"}, "secret-2"),
        ({"tokenFile": str(tmp_path / "token")}, "secret-3"),
    ):
        options = parse_options(url | secret)
        assert [(location.url, location.token) for location in options.locations] == [
            ("http://one:1", token),
            ("https://two", token),
        ]
        assert "secret" not in repr(options) + str(options.locations)
        assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(SourceError, match="the variable `MISSING` is not set"):
        parse_options(url | {"token": "env:MISSING"})
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        parse_options(url | {"tokenFile": str(tmp_path / "none")})
    with pytest.raises(SourceError, match="`one:1` is not the URL") as caught:
        parse_options({"url": "http://me:secret-4@one:1"})
    assert "secret" not in str(caught.value)


@pytest.mark.promise("Spark: source and sinks", "wrong options, paths, permissions and schemas fail with a hint")
def test_places_that_hold_no_journal_say_what_to_name(tmp_path: Path, written: Written) -> None:
    for path, message in (
        (tmp_path / "none", "there is no directory"),
        (tmp_path, "name the directory that contains `journal` and `lake`"),
    ):
        with pytest.raises(SourceError) as caught:
            stream(path).initialOffset()
        assert message in str(caught.value)
    twice = stream(written.data, written.data / "journal", Path(f"{written.data}/../data"), startingOffsets="earliest")
    assert table(twice, twice.partitions(twice.initialOffset(), at(written, 30))).num_rows == 30
    (tmp_path / "empty" / "journal").mkdir(parents=True)
    with pytest.raises(SourceError, match="holds no journal yet; start a server"):
        batch(tmp_path / "empty").partitions()


def test_a_copied_directory_is_the_same_journal(tmp_path: Path, written: Written) -> None:
    import shutil

    shutil.copytree(written.data, tmp_path / "copy")
    with pytest.raises(SourceError, match="its rows would be read twice"):
        stream(written.data, tmp_path / "copy").initialOffset()


@pytest.mark.promise(
    "Spark: source and sinks", "a query starts and ends by offset or time, even if the clock stepped back"
)
def test_a_clock_that_is_stepped_back_leaves_times_in_order(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data")
    journal.add(5)
    journal.seal()
    journal.now_us -= 3 * SECOND_US  # to that of the row at offset 2
    journal.add(5)
    reader = batch(journal.data)
    times = table(reader, reader.partitions()).column("recorded_at").cast(pa.int64()).to_pylist()
    assert times == sorted(times)
    assert times == [
        START_US + min(max(n, 0), 4) * SECOND_US if n < 8 else START_US + (n - 3) * SECOND_US for n in range(10)
    ]
    opened = open_one(journal.data)
    for n in range(10):
        moment = opened.time_of(n)
        assert moment == times[n] and opened.offset_at(moment) == times.index(moment)
        assert opened.offset_at(moment + 1) == len([time for time in times if time <= moment])


def test_threads_that_share_a_journal_do_not_disturb_one_another(written: Written) -> None:
    opened = open_one(written.data)

    def read(seed: int) -> bool:
        dice = Random(seed)
        for _ in range(40):
            first = dice.randrange(30)
            found = [n for b in opened.batches(first, 30, ["offset"]) for n in b.column(0).to_pylist()]
            if found != list(range(first, 30)) or opened.time_of(first) != START_US + first * SECOND_US:
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(4)))


def test_places_are_kept_open_and_bounded(tmp_path: Path) -> None:
    from penstock.spark import location

    journals = []
    for number in range(location.OPENED_MAX + 2):
        journal = Written(tmp_path / str(number), f"{number:032x}")
        journal.add(1)
        journals.append(JournalLocation(path=str(journal.data)))
    opened = journals[0].open()
    assert journals[0].open() is opened
    assert [location.open().id for location in journals] == [f"{n:032x}" for n in range(len(journals))]
    assert len(location._opened) == location.OPENED_MAX
    assert journals[0].open() is not opened
