"""`penstock redrive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import print_json, print_line

if TYPE_CHECKING:
    from penstock.client import Client, Redriven


def redrive(
    stream: str,
    *,
    max_: Annotated[int | None, Parameter(name="--max", help="Move at most that many.")] = None,
    common: Common = DEFAULTS,
) -> int:
    """Send the dead letters of a stream back to it.

    For example:

      penstock redrive jobs
      penstock redrive jobs --max 10 --json
    """

    async def work(client: Client) -> Redriven:
        return await client.redrive(stream, max=max_)

    redriven = run(common, work)
    if common.as_json:
        print_json(redriven)
    else:
        print_line(f"moved {redriven.moved}, left {redriven.left}")
    return 0
