"""`penstock stats`, `peek`, `where` and `explain`: look at streams and envelopes without taking them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, run
from penstock.cli.output import compact, print_fields, print_json, print_line, print_note, print_table

if TYPE_CHECKING:
    from penstock.client import Client

COLUMNS = ("depth", "inflight", "rateIn", "rateOut", "latP50", "latP95")


def stats(stream: str | None = None, *, common: Common = DEFAULTS) -> int:
    """Show the figures of one stream, or a table of all.

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
            now = datetime.now(UTC)
            rows = [
                [
                    entry["id"],
                    *(entry["stats"].get(name) for name in COLUMNS),
                    _ago(entry["stats"].get("lastTs"), now),
                ]
                for entry in streams
            ]
            print_table(["stream", *COLUMNS, "last"], sorted(rows, key=lambda cells: str(cells[0])))

    run(common, one if stream is not None else every)
    return 0


def _ago(moment: str | None, now: datetime) -> str:
    """The age, short enough for a narrow terminal."""
    if moment is None:
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(moment)).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def peek(
    stream: str,
    *,
    state: Annotated[Literal["ready", "inflight", "delayed", "dead"], Parameter()] = "ready",
    max_: Annotated[int, Parameter(name="--max", help="Show at most this many.")] = 10,
    common: Common = DEFAULTS,
) -> int:
    """Show envelopes of a stream without taking them.

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
        print_note(f"no {state} envelopes in {stream}")
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


def where(id_: Annotated[str, Parameter(name="ID")], /, *, common: Common = DEFAULTS) -> int:
    """Find an envelope by its id: every stream that holds it or settled it recently.

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


def explain(stream: str, *, common: Common = DEFAULTS) -> int:
    """Explain why a stream flows or does not.

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
