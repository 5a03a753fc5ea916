"""`penstock explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import print_fields, print_json, print_line

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
    rest = {name: value for name, value in answer.items() if name not in {"stream", "flowing", "reasons"}}
    print_fields(rest)
    return 0
