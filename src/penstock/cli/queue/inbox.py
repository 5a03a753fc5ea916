"""`penstock inbox`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, agent_name, run
from penstock.cli.output import compact, print_json, print_line, print_note

if TYPE_CHECKING:
    from penstock.client import Client, Delivery

WAIT_MS = 30_000
"""Longest single wait on the server; longer ones are made of several."""


def inbox(
    *,
    as_: Annotated[str | None, Parameter(name="--as", env_var="PENSTOCK_AGENT", help="Whose inbox.")] = None,
    wait: Annotated[float, Parameter(help="Seconds to wait for the first message.")] = 0.0,
    max_: Annotated[int, Parameter(name="--max", help="Take at most that many.")] = 10,
    ack: Annotated[
        bool, Parameter(negative="", show_default=False, help="Settle at once what is printed.")
    ] = False,
    lease_ms: Annotated[int | None, Parameter(help="How long the messages stay yours.")] = None,
    common: Common = DEFAULTS,
) -> int:
    """Take messages from `agents/<NAME>/inbox`.

    Without --ack the messages stay yours until their lease ends; finish each with `penstock done`.

    For example:

      penstock inbox --as jen --wait 30
      penstock inbox --as jen --max 1 --ack --json
    """
    stream = f"agents/{agent_name(as_)}/inbox"

    async def work(client: Client) -> int:
        deadline = time.monotonic() + wait
        while True:
            wait_ms = max(0, min(WAIT_MS, int((deadline - time.monotonic()) * 1000)))
            deliveries = await client.pull(stream, max=max_, wait_ms=wait_ms, lease_ms=lease_ms, renew=False)
            if deliveries or time.monotonic() >= deadline:
                break
        for delivery in deliveries:
            # Printed first: what is settled but was never shown would be lost.
            _show(delivery, settled=ack, as_json=common.as_json)
            if ack:
                await delivery.ack()
        if not deliveries and not common.as_json:
            print_note(f"nothing in {stream}")
        return 0

    return run(common, work)


def _show(delivery: Delivery, *, settled: bool, as_json: bool) -> None:
    if as_json:
        print_json(row(delivery))
        return
    envelope = delivery.envelope
    again = f", attempt {delivery.attempt}" if delivery.attempt > 1 else ""
    print_line(f"{delivery.id}  {envelope['type']}  from {envelope.get('from', '-')}{again}")
    print_line(f"  {compact(envelope['payload'])}")
    if not settled:
        print_line(f"  to finish: penstock done {delivery.id} --lease {delivery.lease_id}")


def row(delivery: Delivery) -> dict[str, Any]:
    """A delivery as the wire has it."""
    return {
        "deliver": delivery.envelope,
        "stream": delivery.stream,
        "seq": delivery.seq,
        "attempt": delivery.attempt,
        "leaseId": delivery.lease_id,
        "leaseExpiresAt": delivery.lease_expires_at_ms,
    }
