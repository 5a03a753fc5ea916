"""`penstock stats`, `peek`, `where`, `explain` and `snapshot`: look at streams, envelopes and views without taking anything."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from penstock.cli import output
from penstock.cli.options import DEFAULTS, Common, flag, run
from penstock.cli.output import console, print_json, print_rows, table

if TYPE_CHECKING:
    from penstock.client import Client, Explained, LiveView, PeekedRow, Place, Stats, StreamMetrics


ENVELOPE = ("id", "type", "from")
COLUMNS = ("depth", "inflight", "rateIn", "rateOut", "latP50", "latP95")


def stats(stream: str | None = None, *, common: Common = DEFAULTS) -> None:
    """Show the figures of one stream, or a table of all.

    For example:

      penstock stats
      penstock stats --stream agents/jen/inbox --json
    """
    if stream is not None:
        numbers: Stats = run(common, lambda client: client.stats(stream))
        output.print_result(numbers, _figures(numbers), as_json=common.as_json)
        return
    streams: list[StreamMetrics] = run(common, lambda client: client.streams())
    now = datetime.now(UTC)
    rows = [
        [one.id, *(figures[name] for name in COLUMNS), _ago(one.stats.last_ts, now)]
        for one, figures in ((one, _figures(one.stats)) for one in sorted(streams, key=lambda one: one.id))
    ]
    columns = ["stream", *COLUMNS, "last"]
    output.print_rows({"streams": streams}, columns, rows, as_json=common.as_json, empty="there are no streams yet")


def _figures(stats: Stats) -> dict[str, Any]:
    """The figures of a stream, percentiles with the digits that they have."""
    figures = msgspec.to_builtins(stats)
    return {name: output.about(one) if name.startswith("lat") else one for name, one in figures.items()}


def _ago(moment: str | None, now: datetime) -> str:
    return "-" if moment is None else output.ago((now - datetime.fromisoformat(moment)).total_seconds())


def peek(
    stream: str,
    *,
    state: Annotated[Literal["ready", "inflight", "delayed", "dead"], Parameter()] = "ready",
    max_: Annotated[int, Parameter(name="--max", help="Show at most this many.")] = 10,
    common: Common = DEFAULTS,
) -> None:
    """Show envelopes of a stream without taking them.

    For example:

      penstock peek agents/jen/inbox
      penstock peek jobs --state dead --max 100 --json
    """

    rows: list[PeekedRow] = run(common, lambda client: client.peek(stream, state=state, max=max_))
    cells = [
        [row.seq, row.attempt, *(row.envelope.get(name) for name in ENVELOPE), output.compact(row.payload)]
        for row in rows
    ]
    columns = ["seq", "attempt", *ENVELOPE, "payload"]
    if state == "dead":
        columns.append("because")
        for line, row in zip(cells, rows, strict=True):
            cause = (row.envelope.get("headers") or {}).get("x-courier", {})
            line.append(": ".join(filter(None, (cause.get("reason"), cause.get("lastError")))) or None)
    output.print_rows({"rows": rows}, columns, cells, as_json=common.as_json, empty=f"no {state} envelopes in {stream}")


def where(id_: Annotated[str, Parameter(name="ID")], /, *, common: Common = DEFAULTS) -> None:
    """Find an envelope by its id: every stream that holds it or settled it recently.

    For example:

      penstock where m-17
      penstock where m-17 --json
    """

    places: list[Place] = run(common, lambda client: client.where(id_))
    if common.as_json:
        output.print_json({"id": id_, "places": places})
        return
    for number, place in enumerate(places):
        if number:
            output.print_line("")
        shown = msgspec.to_builtins(place)
        times = {name: output.moment(shown[name]) for name in ("leaseExpiresAt", "dueAt") if name in shown}
        output.print_fields(shown | times)


def explain(stream: str, *, common: Common = DEFAULTS) -> None:
    """Explain why a stream flows or does not.

    For example:

      penstock explain agents/jen/inbox
    """

    answer: Explained = run(common, lambda client: client.explain(stream))
    if common.as_json:
        output.print_json(answer)
        return
    output.print_line(f"{stream} is {'flowing' if answer.flowing else 'not flowing'}")
    for reason in answer.reasons:
        output.print_line(f"  {reason.code}: {reason.message}")
    if answer.consumers:
        consumers = msgspec.to_builtins(answer.consumers)
        output.print_table(list(consumers[0]), [list(consumer.values()) for consumer in consumers])


_ENVELOPE = ("id", "type", "from", "ts", "payload")
_COLUMNS = {
    "inflight": ("lease", ("id", "attempt", "holder", "leaseExpiresAt")),
    "metrics:streams": (
        "stream",
        ("depth", "inflight", "delayed", "rateIn", "rateOut", "latP50", "latP95", "consumers"),
    ),
}


def snapshot(
    *,
    view: Annotated[str, Parameter(help="latestPerAgent, inflight or metrics:streams.")] = "latestPerAgent",
    addr: Annotated[str | None, Parameter(help="Only rows that match, e.g. 'agents/j*'.")] = None,
    live: Annotated[bool, flag("Follow the changes.")] = False,
    max_: Annotated[int | None, Parameter(name="--max", help="With --live, stop after this many changes.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Print the rows of a view.

    With --live a terminal shows a table that follows the view until Ctrl-C; off a terminal, or with
    --json, each change is a line of JSON.

    For example:

      penstock snapshot --view latestPerAgent
      penstock snapshot --view inflight --addr jobs --json
      penstock snapshot --view metrics:streams --live
    """
    if live:
        run(common, lambda client: _follow(client, view, addr, max_, common.as_json), reconnect=True)
        return
    found = run(common, lambda client: client.snapshot(view, addr=addr))
    rows = {row["addr"]: row.get("env", row.get("row")) for row in found["rows"]}
    print_rows(found, *_shown(view, rows), as_json=common.as_json, empty=f"{view} has no rows that you may see")


async def _follow(client: Client, view: str, addr: str | None, most: int | None, as_json: bool) -> None:
    async with client.live(view, addr=addr) as followed:
        if as_json or not sys.stdout.isatty():
            await _take(followed, most, print_json)
            return
        from rich.live import Live

        # Redrawn at a fixed rate, whatever the rate of the changes.
        with Live(console=console(), get_renderable=lambda: table(*_shown(view, followed.rows))):
            await _take(followed, most, lambda _: None)


async def _take(followed: LiveView, most: int | None, show: Callable[[Any], None]) -> None:
    count = 0
    while most is None or count < most:
        change = await followed.next_change()
        if change is None:
            return
        show(change)
        count += 1


def _shown(view: str, rows: dict[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Columns and rows of the table."""
    kind = view.removeprefix("views/")
    first, columns = _COLUMNS.get(kind, ("address", _ENVELOPE))
    if kind == "metrics:streams":
        rows = {stream: row["stats"] for stream, row in rows.items()}
    return [first, *columns], [[addr, *map(row.get, columns)] for addr, row in sorted(rows.items())]
