"""`penstock tail`."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.history.journal import (
    EVERY,
    ORIGIN,
    Filter,
    JournalOptions,
    moment_us,
    offset_at,
    open_journal,
    reading,
    select,
)
from penstock.cli.output import print_note
from penstock.cli.rows import SHOWN, Printer

POLL_S = 0.1
"""Seconds between two polls of the journal."""


def tail(
    *,
    wanted: Filter = EVERY,
    since: Annotated[str | None, Parameter(help="Begin at a time or an age: 15m, 2h.")] = None,
    back: Annotated[int, Parameter(help="Without --since, begin this many rows before the end.")] = 10,
    follow: Annotated[bool, Parameter(help="Wait for new rows.")] = True,
    limit: Annotated[int | None, Parameter(help="Stop after this many rows.")] = None,
    origin: JournalOptions = ORIGIN,
) -> None:
    """Print the latest rows of the journal, and new ones as they are committed, until Ctrl-C.

    For example:

      penstock tail
      penstock tail --channel 'agents/*' --since 10m
      penstock tail --corr order-17 --json | jq .event
      penstock tail --url http://broker:8787 --no-follow
    """
    printer = Printer(None, as_json=origin.as_json, limit=limit)
    columns = None if origin.as_json else list(SHOWN)
    with reading():
        journal = open_journal(origin)
        bounds = journal.bounds()
        if since is not None:
            offset = offset_at(journal, bounds.first, bounds.end, moment_us(since))
        else:
            offset = max(bounds.first, bounds.end - back)
        end = bounds.end
        while not printer.is_done:
            for batch in select(journal, offset, end, wanted, columns):
                printer.show(batch)
                if printer.is_done:
                    return
            offset = end
            if not follow:
                break
            while (end := journal.end()) == offset:
                time.sleep(POLL_S)
            if end < offset:
                print_note(f"rows {end} to {offset - 1} were lost in a crash; the journal continues at {end}")
                offset = end
