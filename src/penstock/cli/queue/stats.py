"""`penstock stats`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import print_fields, print_json, print_note, print_table

if TYPE_CHECKING:
    from penstock.client import Client

COLUMNS = ("depth", "inflight", "rateIn", "rateOut", "latP50", "latP95")


def stats(stream: str | None = None, *, common: Common = DEFAULTS) -> int:
    """Numbers of one stream, or a table of all.

    For example:

      penstock stats
      penstock stats --stream agents/jen/inbox --json
    """

    async def one(client: Client) -> None:
        numbers = await client.stats(str(stream))
        if common.as_json:
            print_json(numbers)
        else:
            print_fields(numbers)

    async def every(client: Client) -> None:
        streams = await client.metrics()
        if common.as_json:
            print_json({"streams": streams})
        elif not streams:
            print_note("there are no streams yet")
        else:
            now = datetime.now(UTC)
            rows = [
                [
                    entry["id"],
                    *(entry["stats"].get(name) for name in COLUMNS),
                    _ago(entry["stats"].get("lastTs"), now),
                ]
                for entry in streams
            ]
            print_table(["stream", *COLUMNS, "last"], sorted(rows, key=lambda cells: str(cells[0])))

    run(common, one if stream is not None else every)
    return 0


def _ago(moment: str | None, now: datetime) -> str:
    """How long ago, short enough for a narrow terminal."""
    if moment is None:
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(moment)).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"
