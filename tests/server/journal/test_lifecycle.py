"""The journal of a server: recovery under a lock, torn tails, reloads, and refusals of offline sealing."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.core.errors import PenstockError
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.journal.disk import RealDisk
from penstock.journal.port import Committed, Outcome
from penstock.journal.reader import JournalError
from penstock.server.config.load import Config
from penstock.server.config.sections import StreamsSection
from penstock.server.engine.machines import Machines, make_machine
from penstock.server.engine.schedulers import real_now
from penstock.server.journal.lifecycle import JournalLifecycle, LockedError, progress_bar, seal_directory
from tests.journal.histories import START_US, ack, publish, put, reopened


def machines() -> Machines:
    return Machines(make_machine(Limits(), lambda name: Policy(), bytes))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with two envelopes, one of them acknowledged."""
    data = tmp_path / "data"
    disk = RealDisk(data / "journal")
    log, _ = reopened(disk)
    log.commit([[put("a", seq=1), put("b", seq=2), ack("a", seq=1)]], START_US)
    log.close()
    publish(disk, 3)
    return data


def recovered(data: Path, work: Callable[[JournalLifecycle, Machines, int], None] | None = None) -> int:
    """Open a directory, work on it, and close it; returns the number of rows read."""

    async def run() -> int:
        archive, found = JournalLifecycle(data, Config()), machines()
        rows = archive.recover(found, real_now())
        archive.start(asyncio.get_running_loop())
        try:
            if work is not None:
                work(archive, found, rows)
        finally:
            await archive.close()
        return rows

    return asyncio.run(run())


def test_a_new_directory_is_private_and_empty(tmp_path: Path) -> None:
    def work(archive: JournalLifecycle, found: Machines, rows: int) -> None:
        assert (rows, archive.journal.next_offset, len(found.queue.channels)) == (0, 0, 0)
        assert (tmp_path / "data/lake").stat().st_mode & 0o777 == 0o700
        assert archive.free_bytes() > 0

    recovered(tmp_path / "data", work)


def test_the_machine_is_rebuilt_from_the_rows(data: Path) -> None:
    def work(archive: JournalLifecycle, found: Machines, rows: int) -> None:
        assert (rows, archive.journal.next_offset) == (3, 3)
        assert list(found.queue.channels["jobs"].live) == ["b"]

    recovered(data, work)


def test_progress_is_reported_while_rows_are_read(data: Path) -> None:
    seen: list[tuple[int, int]] = []
    archive = JournalLifecycle(data, Config())
    archive.recover(machines(), real_now(), lambda done, total: seen.append((done, total)))
    archive._disk.unlock()
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] > 0


def test_what_is_appended_is_there_after_a_restart(data: Path) -> None:
    async def run() -> None:
        archive, found = JournalLifecycle(data, Config()), machines()
        archive.recover(found, real_now())
        journal = archive.start(asyncio.get_running_loop())
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        journal.append(0, 0, [Record("c", "note", b"{}", channel=found.queue.channels["jobs"], seq=3)], done.set_result)
        outcome = await done
        assert isinstance(outcome, Committed)
        assert (outcome.first_offset, outcome.refused) == (3, None)
        await archive.close()

    asyncio.run(run())
    assert recovered(data) == 4


def test_a_directory_has_one_writer(data: Path) -> None:
    def work(*_: object) -> None:
        with pytest.raises(LockedError, match=r"another process writes `.*data`\nhint: stop it"):
            JournalLifecycle(data, Config()).recover(machines(), real_now())

    recovered(data, work)
    assert recovered(data) == 3, "closing it unlocks it"


def test_a_torn_tail_is_cut_and_logged(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    [segment] = (data / "journal").glob("log-*.seg")
    whole = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"\1\2\3")
    caplog.set_level(logging.WARNING)
    assert recovered(data) == 3
    assert "journal.torn" in caplog.text and segment.stat().st_size == whole


def test_a_reload_changes_streams_and_limits_but_not_the_journal(tmp_path: Path) -> None:
    before = Config()
    after = replace(
        before,
        streams=StreamsSection(max_depth=7),
        limits=Limits(frame_max=9),
        journal=replace(before.journal, linger_us=before.journal.linger_us + 1),
    )

    async def run() -> Config:
        archive = JournalLifecycle(tmp_path, before)
        archive.adopt(after)
        return archive._config

    config = asyncio.run(run())
    assert (config.streams, config.limits, config.journal) == (after.streams, after.limits, before.journal)


class TestOfflineSealing:
    def test_a_typo_creates_no_journal(self, tmp_path: Path) -> None:
        with pytest.raises(JournalError, match="there is no journal"):
            seal_directory(tmp_path / "typo", None)
        assert list(tmp_path.iterdir()) == []

    def test_an_invalid_config_is_refused_with_every_error(self, data: Path) -> None:
        file = data / "config.yaml"
        file.write_text("listen: {http: 5}\nlogs: {level: loud}\n")
        with pytest.raises(PenstockError) as caught:
            seal_directory(data, file)
        assert caught.value.code == "InvalidRequest" and caught.value.refusal.message.count("; ") == 1

    def test_a_directory_that_a_server_writes_is_refused(self, data: Path) -> None:
        server = RealDisk(data / "journal")
        assert server.lock()
        try:
            with pytest.raises(PenstockError) as caught:
                seal_directory(data, None)
        finally:
            server.unlock()
        refusal = caught.value.refusal
        assert refusal.code == "JournalUnavailable" and "hint" not in refusal.message
        assert refusal.hint is not None and refusal.hint.startswith("stop it")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("reading the journal") as progress:
        assert progress is not None
        progress(1, 2)
    assert "reading the journal" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("reading the journal") as progress:
        assert progress is None
