"""`penstock snapshot`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, flag, run
from penstock.cli.output import console, print_json, print_rows, table

if TYPE_CHECKING:
    from penstock.client import Client, LiveView

_ENVELOPE = ("id", "type", "from", "ts", "payload")
_COLUMNS = {
    "inflight": ("lease", ("id", "attempt", "holder", "leaseExpiresAt")),
    "metrics:streams": (
        "stream",
        ("depth", "inflight", "delayed", "rateIn", "rateOut", "latP50", "latP95", "consumers"),
    ),
}


def snapshot(
    *,
    view: Annotated[str, Parameter(help="latestPerAgent, inflight or metrics:streams.")] = "latestPerAgent",
    addr: Annotated[str | None, Parameter(help="Only rows that match, e.g. 'agents/j*'.")] = None,
    live: Annotated[bool, flag("Follow the changes.")] = False,
    max_: Annotated[int | None, Parameter(name="--max", help="With --live, stop after this many changes.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Print the rows of a view.

    With --live a terminal shows a table that follows the view until Ctrl-C; off a terminal, or with
    --json, each change is a line of JSON.

    For example:

      penstock snapshot --view latestPerAgent
      penstock snapshot --view inflight --addr jobs --json
      penstock snapshot --view metrics:streams --live
    """
    if live:
        run(common, lambda client: _follow(client, view, addr, max_, common.as_json), reconnect=True)
        return
    found = run(common, lambda client: client.snapshot(view, addr=addr))
    rows = {row["addr"]: row.get("env", row.get("row")) for row in found["rows"]}
    print_rows(found, *_shown(view, rows), as_json=common.as_json, empty=f"{view} has no rows that you may see")


async def _follow(client: Client, view: str, addr: str | None, most: int | None, as_json: bool) -> None:
    async with client.live(view, addr=addr) as followed:
        if as_json or not sys.stdout.isatty():
            await _take(followed, most, print_json)
            return
        from rich.live import Live

        # Redrawn at a fixed rate, whatever the rate of the changes.
        with Live(console=console(), get_renderable=lambda: table(*_shown(view, followed.rows))):
            await _take(followed, most, lambda _: None)


async def _take(followed: LiveView, most: int | None, show: Callable[[Any], None]) -> None:
    count = 0
    while most is None or count < most:
        change = await followed.next_change()
        if change is None:
            return
        show(change)
        count += 1


def _shown(view: str, rows: dict[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Columns and rows of the table."""
    kind = view.removeprefix("views/")
    first, columns = _COLUMNS.get(kind, ("address", _ENVELOPE))
    if kind == "metrics:streams":
        rows = {stream: row["stats"] for stream, row in rows.items()}
    return [first, *columns], [[addr, *map(row.get, columns)] for addr, row in sorted(rows.items())]
