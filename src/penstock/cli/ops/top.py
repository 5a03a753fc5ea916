"""`penstock top`: figures and rates of the broker, refreshed."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, flag, http_server
from penstock.cli.output import about, console, print_json
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from penstock.cli.ops.top_figures import Reading, ServerPoller
    from penstock.client.admin import ServerFigures

ROWS = 15
SHORTEST_S = 0.2
"""A shorter interval would load the server."""


def top(
    *,
    interval: Annotated[float, Parameter(help="Seconds between two readings.")] = 1.0,
    rows: Annotated[int, Parameter(help="Queues to show, and as many streams of spaces.")] = ROWS,
    once: Annotated[bool, flag("Measure one interval, print it, and exit.")] = False,
    common: Common = DEFAULTS,
) -> None:
    """Show protocols, queues, streams of spaces, relay and pipeline with their rates, until Ctrl-C.

    The fullest queues come first, then the busiest. It goes on when the server is restarted. With --json, and
    wherever the output is no terminal, it prints one reading and ends.

    For example:

      penstock top
      penstock top --once
      penstock top --json | jq '.queues[0]'
    """
    from penstock.cli.ops.top_figures import ServerPoller

    interval = max(interval, SHORTEST_S)
    watch = ServerPoller(lambda: _fetch(common), time.monotonic)
    watch.look()
    if watch.reading is None:
        raise PenstockError(Refusal("Unreachable", str(watch.trouble)))
    if not (once or common.as_json) and sys.stdout.isatty():
        _follow(watch, interval, rows)
    time.sleep(interval)
    watch.look()
    if common.as_json:
        shown = watch.reading
        print_json(msgspec.structs.replace(shown, queues=shown.queues[:rows], streams=shown.streams[:rows]))
    else:
        console().print(picture(watch.reading, rows, watch.trouble))


def _fetch(common: Common) -> ServerFigures:
    """Looked up for each reading: a restarted server may have another address and token."""
    from penstock.client.admin import RemoteFigures

    return RemoteFigures(*http_server(common.url, common.token)).read()


def _follow(watch: ServerPoller, interval: float, rows: int) -> None:
    from rich.live import Live

    assert watch.reading is not None
    with Live(picture(watch.reading, rows, None), console=console(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            watch.look()
            live.update(picture(watch.reading, rows, watch.trouble), refresh=True)


QUEUE_COLUMNS = ("queue", "depth", "in flight", "delayed", "in/s", "out/s", "p50 ms", "p95 ms", "oldest", "consumers")
STREAM_COLUMNS = ("space", "stream", "from", "to", "frames/s", "deliveries/s", "frames", "dropped")


def picture(reading: Reading, rows: int, trouble: str | None) -> RenderableType:
    """The whole screen, with at most so many rows of queues and of streams."""
    from rich.console import Group
    from rich.text import Text

    head = Text(
        f"penstock {reading.version}  {reading.status}  up {_duration(reading.uptime_s)}  "
        f"{reading.connections} connections  {reading.dead_now} dead letters now, {reading.dead_ever} ever"
    )
    for one in reading.troubles:
        head.append(f"\n{one}", style="yellow")
    if trouble is not None:
        head.append(f"\nreconnecting: {trouble}", style="bold red")
    waits = {share: about(ms) for share, ms in reading.latency_ms.items()}
    doors = [(one.name, one.connected, _rate(one.in_rate), _rate(one.out_rate), one.note) for one in reading.doors]
    queues: list[tuple[object, ...]] = []
    for queue in reading.queues[:rows]:
        counts = (queue.depth, queue.inflight, queue.delayed, _rate(queue.in_rate), _rate(queue.out_rate))
        times = (about(queue.p50_ms), about(queue.p95_ms), _duration(queue.oldest_ms / 1000))
        who = f"{queue.consumers}: {', '.join(queue.agents)}" if queue.agents else queue.consumers
        queues.append((queue.name, *counts, *times, who))
    streams: list[tuple[object, ...]] = []
    for stream in reading.streams[:rows]:
        rates = (_rate(stream.rate), _rate(stream.deliveries_rate))
        streams.append((stream.space, stream.name, stream.owner, stream.to, *rates, stream.frames, stream.dropped))
    parts: list[RenderableType] = [
        head,
        Text(f"enqueue to delivery  p50 {waits['0.5']} ms  p95 {waits['0.95']} ms  p99 {waits['0.99']} ms"),
        Text(_pipeline_line(reading)),
        Text(),
        _table(("door", "connected", "in/s", "out/s", ""), doors),
        Text(),
        _table(QUEUE_COLUMNS, queues, len(reading.queues) - rows),
    ]
    if streams:
        parts += [Text(), _table(STREAM_COLUMNS, streams, len(reading.streams) - rows)]
    elif not reading.sees_spaces:
        parts.append(Text("spaces: only the operator's token shows what is in them", style="dim"))
    return Group(*parts)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], more: int = 0) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    words = {"door", "", "queue", "space", "stream", "from", "to"}
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*(Text(str("-" if cell is None else cell)) for cell in cells))
    if more > 0:
        table.add_row(Text(f"and {more} more", style="dim"))
    return table


def _pipeline_line(reading: Reading) -> str:
    found = reading.pipeline
    if found is None:
        return "pipeline  off"
    batches = ", ".join(f"{name} {took:.0f} ms" for name, took in found.batch_ms.items())
    return (
        f"pipeline  {found.state}, {found.lag_rows} rows behind, {found.restarts} restarts; "
        f"batches: {batches or 'none yet'}"
    )


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _duration(seconds: float) -> str:
    """A number short enough for a cell."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds else "-"
