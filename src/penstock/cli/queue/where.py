"""`penstock where`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import print_fields, print_json, print_line

if TYPE_CHECKING:
    from penstock.client import Client


def where(id_: Annotated[str, Parameter(name="ID")], /, *, common: Common = DEFAULTS) -> int:
    """Find an envelope by its id: every stream where it is, or was settled lately.

    For example:

      penstock where m-17
      penstock where m-17 --json
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        return await client.where(id_)

    places = run(common, work)
    if common.as_json:
        print_json({"id": id_, "places": places})
        return 0
    for number, place in enumerate(places):
        if number:
            print_line("")
        print_fields(place)
    return 0
