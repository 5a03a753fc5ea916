"""`penstock send`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, payload_of, run
from penstock.cli.output import print_json, print_line

if TYPE_CHECKING:
    from penstock.client import Client, Sent


def send(
    to: str,
    payload: str,
    /,
    *,
    type_: Annotated[str, Parameter(name="--type", help="Type of the message.")] = "message",
    as_: Annotated[
        str | None, Parameter(name="--as", env_var="PENSTOCK_AGENT", help="Your own agent name.")
    ] = None,
    id_: Annotated[str | None, Parameter(name="--id", help="Else one is made.")] = None,
    corr: Annotated[str | None, Parameter(help="What this message belongs to.")] = None,
    delay_ms: Annotated[int | None, Parameter(help="Deliver it that much later.")] = None,
    schema: Annotated[str | None, Parameter(help="Schema of the payload: ns/name@vN.")] = None,
    common: Common = DEFAULTS,
) -> int:
    """Write to an agent's inbox, or to a stream when TO has a slash.

    PAYLOAD is JSON, or plain text.

    For example:

      penstock send jen "the build is green" --as sam
      penstock send agents/jen/inbox '{"task": 7}' --type task.new
    """

    async def work(client: Client) -> Sent:
        return await client.send(
            to, payload_of(payload), type=type_, id=id_, corr=corr, delay_ms=delay_ms, schema=schema
        )

    sent = run(common, work, agent=as_)
    if common.as_json:
        print_json(sent)
        return 0
    print_line(f"sent {sent.id} to {sent.to} as seq {sent.seq}")
    if sent.recipient is not None and not sent.recipient.present:
        known = "was here before" if sent.recipient.known else "was never seen"
        print_line(f"nobody listens there now; the recipient {known}, and the message waits")
    return 0
