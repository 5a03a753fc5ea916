"""`penstock subscribe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import compact, print_json, print_line
from penstock.cli.queue.inbox import row

if TYPE_CHECKING:
    from penstock.client import Client


def subscribe(
    stream: str,
    *,
    credit: Annotated[int, Parameter(help="How many unsettled ones to hold at most.")] = 100,
    ack: Annotated[bool, Parameter(help="Settle each one when it is printed.")] = False,
    max_: Annotated[int | None, Parameter(name="--max", help="Stop after that many.")] = None,
    lease_ms: Annotated[int | None, Parameter(help="How long a delivery stays ours.")] = None,
    common: Common = DEFAULTS,
) -> int:
    """Print deliveries of a stream as they come.

    Without --ack everything goes back to the stream at the end, and at most --credit are printed.

    For example:

      penstock subscribe --stream jobs --max 1
      penstock subscribe jobs --ack --json | jq .deliver.payload
    """

    async def work(client: Client) -> int:
        count = 0
        async with client.subscribe(stream, credit=credit, lease_ms=lease_ms) as deliveries:
            async for delivery in deliveries:
                if common.as_json:
                    print_json(row(delivery))
                else:
                    envelope = delivery.envelope
                    print_line(
                        f"{delivery.seq}  {delivery.id}  {envelope['type']}  {compact(envelope['payload'])}"
                    )
                if ack:
                    await delivery.ack()
                count += 1
                if max_ is not None and count >= max_:
                    break
        return 0

    return run(common, work, reconnect=True)
