"""`penstock stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import print_fields, print_json, print_note, print_table

if TYPE_CHECKING:
    from penstock.client import Client

COLUMNS = ("depth", "inflight", "rateIn", "rateOut", "latP50", "latP95", "lastTs")


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
            rows = [[entry["id"], *(entry["stats"].get(name) for name in COLUMNS)] for entry in streams]
            print_table(["stream", *COLUMNS], sorted(rows, key=lambda cells: str(cells[0])))

    run(common, one if stream is not None else every)
    return 0
