"""`penstock done`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, agent_name, run
from penstock.cli.output import print_json, print_line

if TYPE_CHECKING:
    from penstock.client import Client, Settled


def done(
    id_: Annotated[str, Parameter(name="ID")],
    /,
    *,
    as_: Annotated[
        str | None, Parameter(name="--as", env_var="PENSTOCK_AGENT", help="Whose inbox it came from.")
    ] = None,
    stream: Annotated[str | None, Parameter(help="Or the stream it came from.")] = None,
    lease: Annotated[str | None, Parameter(help="Its lease id: settles exactly this delivery.")] = None,
    op: Annotated[Literal["ack", "nack", "release", "term", "extend"], Parameter()] = "ack",
    delay_ms: Annotated[int | None, Parameter(help="For nack: deliver it again after this.")] = None,
    ms: Annotated[int | None, Parameter(help="For extend: the new time, from now.")] = None,
    reason: Annotated[str | None, Parameter(help="For nack and term.")] = None,
    common: Common = DEFAULTS,
) -> int:
    """Settle a message that was taken with `penstock inbox`.

    For example:

      penstock done m-17 --as jen
      penstock done m-17 --lease 2f.1.a9 --op nack --delay-ms 60000
      penstock done m-17 --as jen --op term --reason "cannot be parsed"
    """
    if stream is None and lease is None:
        stream = f"agents/{agent_name(as_)}/inbox"

    async def work(client: Client) -> Settled:
        return await client.settle(
            id_, op, lease_id=lease, stream=stream, delay_ms=delay_ms, reason=reason, ms=ms
        )

    settled = run(common, work)
    if common.as_json:
        print_json(settled)
    elif op == "extend":
        print_line(f"extended {id_} until {settled.lease_expires_at} (ms since 1970)")
    else:
        print_line(f"{op} {id_}: done")
    return 0
