"""A cell: everything that a server runs per journal.

The machines that a journal rebuilds, the runtime around them with its commit log, and the spaces in it. Views and triggers
are parts of the queue machine. Cells share nothing with each other, so a server can hold several.
"""
# size: the server, `QueueCore` and the test kit build one each, without the config.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.core.queue.machine import QueueMachine
from penstock.dialects.courier.sessions.control.frames import FEATURES
from penstock.dialects.courier.triggers.config import Trigger
from penstock.journal.port import Journal
from penstock.server.engine.connections import Scheduler
from penstock.server.engine.machines import Machines, install_rules
from penstock.server.engine.runtime import Runtime
from penstock.server.spaces.host import Spaces

MEW_FEATURES = ("capabilities", "context", "validation", "http-io")
"""What clients of spaces look for in `GET /health`."""


class Cell:
    """The running parts of one journal."""

    def __init__(
        self,
        machine: QueueMachine,
        open_journal: Callable[[Machines], Journal],
        scheduler: Scheduler,
        *,
        triggers: Iterable[Trigger] = (),
        **options: Any,
    ) -> None:
        """`options` are those of `Runtime`."""
        self.machine = machine
        self.machines = Machines(machine)
        self.journal = open_journal(self.machines)
        """`open_journal` restores the rows of the journal into the machines before it returns."""
        self.lost_rules = install_rules(machine, triggers)
        """Rules that were set at run time and that this version cannot run."""
        self.runtime = Runtime(machine, self.journal, scheduler, about=self._about, **options)
        self.spaces: Spaces | None = None

    def _about(self) -> dict[str, Any]:
        spaces = 0 if self.spaces is None else len(self.spaces.spaces)
        return {"features": ["courier", "control", *FEATURES, *MEW_FEATURES], "spaces": spaces}

    def host_spaces(self, **options: Any) -> Spaces:
        """Add the host of the spaces; `options` are those of `Spaces`. It has no space yet."""
        assert self.spaces is None
        self.spaces = Spaces(self.runtime, self.machines.memory, **options)
        return self.spaces
