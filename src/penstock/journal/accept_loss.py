"""`penstock log repair --accept-loss`: end a damaged journal before the damage, and write what was lost as a row.

The server never does this by itself. What is taken out of the journal stays in its directory as `lost-<epoch>-<name>`, the journal continues
in a new epoch, and the row `repair` holds the range, the bytes and the cause.
"""

# size: the repair itself is a part of opening a journal.

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.core.records import Entry
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import Identity, Opened
from penstock.journal.parquet_table import EventsTable


class RepairReport(msgspec.Struct):
    """What a repair did; `cause` is None when nothing was lost."""

    cause: str | None
    epoch: int
    end: int
    """The offset of the next row."""
    lost: dict[str, int | None] | None = None
    """Offsets `from` and `to`, where `to` is the last that is known, and the bytes that were taken out."""


def repair(disk: RealDisk, lake: Path, identity: Identity, wall_us: int, *, accepts_loss: bool) -> RepairReport:
    """Open the journal as a server does. The caller holds both locks. Raises DamageError unless the loss is accepted."""
    floor = EventsTable(lake).sealed_end(identity.id, 0) if accepts_loss else None
    opened = Opened(disk, fresh_id=identity.id, sync=identity.sync, loss_floor=floor)
    for _ in opened.live_rows():
        pass
    for _ in opened.tail_rows():
        pass
    news = opened.news
    if news is None or not accepts_loss:
        return RepairReport(None if news is None else news.reason, opened.identity.epoch, opened.position.offset)
    log = opened.log()
    log.commit([[news]], wall_us)
    opened.publish()
    log.close()
    opened.end()
    return RepairReport(news.reason, opened.identity.epoch, opened.position.offset, lost_of(news))


def lost_of(news: Entry) -> dict[str, int | None] | None:
    """The range and the bytes in a row `repair`; None in a row `epoch`."""
    if news.event != "repair":
        return None
    meta: dict[str, int | None] = msgspec.json.decode(news.meta or "{}")
    return {name: meta[name] for name in ("from", "to", "bytes")}
