"""`penstock replay`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from penstock.cli.history.feed import EnqueueFeed
from penstock.cli.history.journal import (
    DATA_DEFAULT,
    WHOLE,
    DataOption,
    Filter,
    JournalOptions,
    OffsetRange,
    ReadableJournal,
    open_journal,
    reading,
    select,
    target,
)
from penstock.cli.options import Token, flag, run
from penstock.cli.output import print_note, print_result
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.plain_values import records

if TYPE_CHECKING:
    from penstock.client import Client

COLUMNS = ("offset", "recorded_at", "event", "channel", "body")


def replay(
    *,
    part: OffsetRange = WHOLE,
    speed: Annotated[str, Parameter(help="1 is the original speed, 10 ten times as fast, or `max`.")] = "max",
    channel: Annotated[str | None, Parameter(help="Only this stream; * matches anything.")] = None,
    kind: Annotated[str | None, Parameter(help="Only this type; * matches anything.")] = None,
    door: Annotated[Literal["courier"], Parameter(help="The protocol that takes them.")] = "courier",
    prefix: Annotated[str, Parameter(help="Prefix of each stream's name, e.g. `replay/`.")] = "",
    new_ids: Annotated[bool, flag("Give each envelope a new id.")] = False,
    url: Annotated[
        str | None,
        Parameter(name=["--url", "--to-url"], help="The server that takes them; default: the one on the directory."),
    ] = None,
    token: Token = None,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """Enqueue the envelopes of a part of the journal again, at full or at original speed.

    An envelope keeps its id unless --new-ids, so what is still known is
    counted as a duplicate and not stored twice. Dead letters are left out:
    their originals are there. A delay that was asked for has passed and is
    not asked for again.

    For example:

      penstock replay --since 1h --prefix replay/
      penstock replay --from 1000 --to 2000 --speed 10 --to-url tcp://staging:9787
      penstock replay --channel 'jobs/*' --since 1d --new-ids --json
    """
    pace = _pace(speed)
    common = target(place.data, url, token, place.as_json)
    with reading():
        journal = open_journal(JournalOptions(data=place.data))
        first, end = part.resolve(journal)
        rows = _rows(journal, first, end, Filter(door=door, event="enqueue", channel=channel, kind=kind))

        async def work(client: Client) -> EnqueueFeed:
            feed = EnqueueFeed(client, prefix=prefix, new_ids=new_ids)
            try:
                await _play(rows, feed, pace)
            except PenstockError:
                print_note(f"before the error: {feed.counts}")
                raise
            return feed

        counts = run(common, work).counts
    print_result({"from": first, "to": end, **msgspec.to_builtins(counts)}, str(counts), as_json=place.as_json)


def _pace(speed: str) -> float | None:
    """The factor of the speed; None is as fast as possible."""
    if speed == "max":
        return None
    try:
        pace = float(speed)
    except ValueError:
        pace = 0.0
    if not 0 < pace < float("inf"):
        raise PenstockError(Refusal("InvalidRequest", f"`{speed}` is not a speed", hint="write 1, 10, 0.5 or max"))
    return pace


def _rows(journal: ReadableJournal, first: int, end: int, wanted: Filter) -> Iterator[dict[str, Any]]:
    for batch in select(journal, first, end, wanted, COLUMNS):
        yield from records(batch)


async def _play(rows: Iterator[dict[str, Any]], feed: EnqueueFeed, pace: float | None) -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    start_us: int | None = None
    for row in rows:
        if start_us is None:
            start_us = row["recorded_at"]
        if pace is not None:
            due_s = start_s + (row["recorded_at"] - start_us) / 1_000_000 / pace
            if due_s > loop.time():
                await feed.flush()
                await asyncio.sleep(due_s - loop.time())
        await feed.put(row["event"], row["channel"], row["body"])
    await feed.flush()
