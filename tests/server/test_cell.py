"""A cell: the machines of one journal, one runtime, one commit log."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.core.rows import Row
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.mew.settings import SpaceSettings
from penstock.journal.port import Journal, MemoryJournal
from penstock.server.cell import Cell
from penstock.server.engine.machines import Machines, make_machine
from penstock.server.engine.schedulers import HandScheduler

NOW = Now(1, 1_700_000_000_000_000)


class Built:
    def __init__(
        self,
        restore: Callable[[Machines], None] = lambda machines: None,
    ) -> None:
        self.scheduler = HandScheduler(lambda: NOW)
        self.journal = MemoryJournal(self.scheduler.soon)

        def open_journal(machines: Machines) -> Journal:
            restore(machines)
            machines.recovered(NOW)
            return self.journal

        self.cell = Cell(
            make_machine(Limits(), lambda _: Policy(), lambda count: b"\1" * count),
            open_journal,
            self.scheduler,
            authenticate=lambda token: ANONYMOUS,
            version="test",
        )


def test_rows_of_the_journal_are_restored_before_the_runtime_starts() -> None:
    def restore(machines: Machines) -> None:
        machines.restore(NOW, enqueued("e-1"))

    built = Built(restore)
    assert list(built.cell.machine.channels["a"].live) == ["e-1"]
    assert built.cell.runtime.machine is built.cell.machine
    assert built.cell.machine.commit_log.take_batch() is None, "what is restored is not written again"


def test_spaces_share_the_commit_log_and_the_turns_of_the_queue() -> None:
    cell = Built().cell
    spaces = cell.host_spaces(is_operator=lambda token: False)
    spaces.add(SpaceSettings(id="demo"))
    assert cell.spaces is spaces
    assert spaces.spaces["demo"].commit_log is cell.machine.commit_log
    assert cell.runtime.turn_listeners == [spaces]
    assert cell.runtime.health(NOW)["spaces"] == 1


def test_two_cells_share_nothing() -> None:
    one, other = Built().cell, Built().cell
    one.machine.enqueue(NOW, "a", [Record("e-1", "note", b"{}")])
    assert (len(one.machine.commit_log.facts), len(other.machine.commit_log.facts)) == (1, 0)
    assert "a" not in other.machine.channels


def enqueued(id_: str) -> Row:
    body = msgspec.json.encode({"id": id_, "ts": "2026-01-01T00:00:00Z", "type": "note", "payload": 1})
    return Row(door="courier", event="enqueue", channel="a", seq=1, id=id_, kind="note", body=body)
