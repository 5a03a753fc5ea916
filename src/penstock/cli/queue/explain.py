"""`penstock explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from penstock.client import Client


def explain(stream: str, *, common: Common = DEFAULTS) -> int:
    """Say why a stream flows, or does not.

    For example:

      penstock explain agents/jen/inbox
    """

    async def work(client: Client) -> dict[str, Any]:
        return await client.explain(stream)

    answer = run(common, work)
    if common.as_json:
        print_json(answer)
        return 0
    print_line(f"{stream} is {'flowing' if answer.get('flowing') else 'not flowing'}")
    for reason in answer.get("reasons", []):
        print_line(f"  {reason.get('code')}: {reason.get('message')}")
    consumers = answer.get("consumers")
    if consumers:
        print_table(list(consumers[0]), [list(consumer.values()) for consumer in consumers])
    return 0
