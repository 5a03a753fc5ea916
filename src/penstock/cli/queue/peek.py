"""`penstock peek`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import compact, print_json, print_note, print_table

if TYPE_CHECKING:
    from penstock.client import Client


def peek(
    stream: str,
    *,
    state: Annotated[Literal["ready", "inflight", "delayed", "dead"], Parameter()] = "ready",
    max_: Annotated[int, Parameter(name="--max", help="Show at most that many.")] = 10,
    common: Common = DEFAULTS,
) -> int:
    """Look at envelopes of a stream without taking them.

    For example:

      penstock peek agents/jen/inbox
      penstock peek jobs --state dead --max 100 --json
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        return await client.peek(stream, state=state, max=max_)

    rows = run(common, work)
    if common.as_json:
        print_json({"rows": rows})
    elif not rows:
        print_note(f"nothing is {state} in {stream}")
    else:
        print_table(
            ["seq", "attempt", "id", "type", "from", "payload"],
            [
                [
                    row.get("seq"),
                    row.get("attempt"),
                    row["env"].get("id"),
                    row["env"].get("type"),
                    row["env"].get("from"),
                    compact(row["env"].get("payload")),
                ]
                for row in rows
            ],
        )
    return 0
