"""`penstock log ls|cat|check|repair|seal|readers` and `penstock tail`: inspect, repair, seal and follow the journal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from penstock.cli.history import journal
from penstock.cli.options import EXIT_CHECK, flag
from penstock.cli.output import print_json, print_line, print_note, print_result, print_rows, print_table
from penstock.cli.rows import SHOWN, Printer
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.plain_values import iso

if TYPE_CHECKING:
    from penstock.journal.disk import RealDisk


log = App(name="log", help="Inspect the journal: files, rows, integrity, sealing, readers.")


@log.command
def ls(*, place: journal.DataOption = journal.DATA_DEFAULT) -> None:
    """List the files of the journal: sealed history, segments, live files.

    For example:

      penstock log ls
      penstock log ls --data /var/lib/penstock --json
    """
    from penstock.journal.lake_location import lake_of
    from penstock.journal.open_and_repair import LIVE_PREFIX, SUFFIX, named, segments
    from penstock.journal.parquet_table import EventsTable
    from penstock.journal.reader import JournalReader

    with journal.reading():
        bounds = JournalReader(place.data).bounds()
        disk = _disk(place.data)
        files: list[tuple[object, ...]] = [
            ("sealed", f"lake/events/{one.path}", one.first, one.last + 1, one.rows, one.size, iso(one.last_at_us))
            for one in EventsTable(lake_of(place.data)).files()
        ]
        for segment in segments(disk):
            end = bounds.end if segment.limit is None else segment.limit
            rows = max(end - segment.first, 0)
            files += _file(disk, "segment", segment.name, segment.first, segment.first + rows, rows)
        for name in named(disk, LIVE_PREFIX):
            offset = int(name[len(LIVE_PREFIX) : -len(SUFFIX)])
            files += _file(disk, "live", name, offset, None, None)
    columns = ("kind", "name", "first", "end", "rows", "bytes", "at")
    if place.as_json:
        shown = [dict(zip(columns, file, strict=True)) for file in files]
        print_json({**msgspec.to_builtins(bounds), "files": shown})
        return
    print_table(columns, files)
    print_note(f"journal {bounds.journal}: rows {bounds.first} to {bounds.end - 1}, sealed before {bounds.sealed_end}")


def _file(
    disk: RealDisk, kind: str, name: str, first: int, end: int | None, rows: int | None
) -> list[tuple[object, ...]]:
    """A file of the journal's directory; none if the sealer has just removed it."""
    try:
        status = (disk.directory / name).stat()
    except FileNotFoundError:
        return []
    return [(kind, f"journal/{name}", first, end, rows, status.st_size, iso(status.st_mtime_ns // 1000))]


def _disk(data: Path) -> RealDisk:
    from penstock.journal.disk import RealDisk

    return RealDisk(data / "journal")


@log.command
def cat(
    *,
    wanted: journal.Filter = journal.EVERY,
    part: journal.OffsetRange = journal.WHOLE,
    columns: Annotated[str | None, Parameter(help="Names, separated by commas.")] = None,
    limit: Annotated[int | None, Parameter(help="Stop after this many rows.")] = None,
    origin: journal.JournalOptions = journal.ORIGIN,
) -> None:
    """Print rows of the journal, oldest first, sealed or not. --id prints the history of an envelope.

    For example:

      penstock log cat --id m-17
      penstock log cat --channel 'jobs/*' --event dead --since 1d --json
      penstock log cat --from 1000 --to 2000 --columns offset,event,id
    """
    named = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    printer = Printer(named, as_json=origin.as_json, limit=limit)
    with journal.reading():
        source = journal.open_journal(origin)
        first, end = part.resolve(source)
        read = named or (None if origin.as_json else list(SHOWN))
        if not printer.is_done:
            for batch in journal.select(source, first, end, wanted, read):
                printer.show(batch)
                if printer.is_done:
                    break
    if not printer.count:
        print_note(f"no row of {first} to {end - 1} matches" if end > first else "the range is empty")


@log.command
def check(*, place: journal.DataOption = journal.DATA_DEFAULT) -> int:
    """Read and check the whole journal; the exit code is 3 if something is damaged.

    Checksums of every segment, offsets dense and once over sealed and new rows,
    times that never decrease, the live file, the watermark. Changes nothing,
    and may run while the server does.

    For example:

      penstock log check
      penstock log check --data /var/lib/penstock --json
    """
    from penstock.journal.audit import audit
    from penstock.server.journal.lifecycle import progress_bar

    if not (place.data / "journal").is_dir():
        hint = "name the data directory of a server with --data"
        raise PenstockError(Refusal("InvalidRequest", f"there is no journal in `{place.data}`", hint=hint))
    with progress_bar("checking", is_wanted=not place.as_json) as bar:
        report = audit(place.data, bar)
    if place.as_json:
        print_json({"ok": report.is_sound, **msgspec.to_builtins(report)})
        return 0 if report.is_sound else EXIT_CHECK
    for finding in report.findings:
        print_line(f"damaged: {finding.place}: {finding.what}")
    for note in report.notes:
        print_line(f"note: {note.place}: {note.what}")
    counts = (
        f"{report.sealed_rows} sealed rows in {report.sealed_files} files, "
        f"{report.segment_rows} rows in {report.segments} segments, {report.live_rows} rows of state"
    )
    rows = f"rows {report.first} to {report.end - 1}" if report.end > report.first else "no rows"
    print_line(f"{'sound' if report.is_sound else 'damaged'}: {counts}; {rows}")
    return 0 if report.is_sound else EXIT_CHECK


@log.command
def repair(
    *,
    accept_loss: Annotated[bool, flag("Give up the rows that cannot be read, and all rows after them.")] = False,
    place: journal.DataOption = journal.DATA_DEFAULT,
) -> None:
    """Open the journal as a server does, and end it before the damage if you accept the loss.

    Restore a backup instead, if you have one. The bytes that are taken out stay
    in the directory of the journal as `lost-*`. The journal continues in a new
    epoch, which its readers notice, and the row `repair` says what was lost.
    The server must be stopped.

    For example:

      penstock log repair --data /var/lib/penstock
      penstock log repair --data /var/lib/penstock --accept-loss
    """
    from penstock.journal.segments import DamageError
    from penstock.server.journal.lifecycle import repair_directory

    with journal.reading():
        try:
            report = repair_directory(place.data, accepts_loss=accept_loss)
        except DamageError as error:
            hint = "restore a backup, or give up these rows and all after them with --accept-loss"
            hint = "restore a backup" if accept_loss else hint
            raise PenstockError(Refusal("JournalDamaged", str(error), hint=hint)) from None
    text = f"the journal continues at row {report['end']}, in epoch {report['epoch']}"
    if "from" in report:
        last = "an unknown row" if report["to"] is None else f"at least {report['to']}"
        text = f"rows {report['from']} to {last} are lost, {report['bytes']} bytes are in `lost-*`; {text}"
    print_result(report, f"{report['notice'] or 'nothing to repair'}; {text}", as_json=place.as_json)


@log.command
def seal(
    *,
    config: Annotated[Path | None, Parameter(help="The server's config file, when it is not running.")] = None,
    place: journal.DataOption = journal.DATA_DEFAULT,
) -> None:
    """Move every committed row to the Delta table now, and save the state.

    Through the server that runs on the directory; when none does, by itself,
    holding its lock. Then nothing is removed by age or size unless the server's
    --config says how much to keep.

    For example:

      penstock log seal
      penstock log seal --data /var/lib/penstock --config penstock.yaml
    """
    report = journal.seal_now(place.data, config)
    print_result(report, report, as_json=place.as_json)


@log.command
def readers(
    *,
    forget: Annotated[str | None, Parameter(help="Delete this reader, so that retention may remove its rows.")] = None,
    place: journal.DataOption = journal.DATA_DEFAULT,
) -> None:
    """List the named readers and their positions; retention keeps the rows that they have not read.

    For example:

      penstock log readers
      penstock log readers --forget nightly-export
    """
    from penstock.journal import named_readers
    from penstock.journal.reader import JournalReader

    with journal.reading():
        end = JournalReader(place.data).bounds().end
    disk = _disk(place.data)
    known = named_readers.list_readers(disk)
    if forget is not None:
        if forget not in [reader.name for reader in known]:
            raise PenstockError(Refusal("InvalidRequest", f"there is no reader `{forget}`", hint="see log readers"))
        named_readers.forget(disk, forget)
        known = [reader for reader in known if reader.name != forget]
    columns = ("name", "offset", "behind", "at", "holds")
    cells = [
        (reader.name, reader.offset, max(end - reader.offset, 0), iso(reader.at_us), not reader.has_ended)
        for reader in known
    ]
    rows = [dict(zip(columns, row, strict=True)) for row in cells]
    print_rows({"readers": rows}, columns, cells, as_json=place.as_json, empty="there are no named readers")


POLL_S = 0.1
"""Seconds between two polls of the journal."""


def tail(
    *,
    wanted: journal.Filter = journal.EVERY,
    since: Annotated[str | None, Parameter(help="Begin at a time or an age: 15m, 2h.")] = None,
    back: Annotated[int, Parameter(help="Without --since, begin this many rows before the end.")] = 10,
    follow: Annotated[bool, Parameter(help="Wait for new rows.")] = True,
    limit: Annotated[int | None, Parameter(help="Stop after this many rows.")] = None,
    origin: journal.JournalOptions = journal.ORIGIN,
) -> None:
    """Print the latest rows of the journal, and new ones as they are committed, until Ctrl-C.

    For example:

      penstock tail
      penstock tail --channel 'agents/*' --since 10m
      penstock tail --corr order-17 --json | jq .event
      penstock tail --url http://broker:8787 --no-follow
    """
    printer = Printer(None, as_json=origin.as_json, limit=limit)
    columns = None if origin.as_json else list(SHOWN)
    with journal.reading():
        source = journal.open_journal(origin)
        bounds = source.bounds()
        if since is not None:
            offset = journal.offset_at(source, bounds.first, bounds.end, journal.moment_us(since))
        else:
            offset = max(bounds.first, bounds.end - back)
        end = bounds.end
        while not printer.is_done:
            for batch in journal.select(source, offset, end, wanted, columns):
                printer.show(batch)
                if printer.is_done:
                    return
            offset = end
            if not follow:
                break
            while (end := source.end()) == offset:
                time.sleep(POLL_S)
            if end < offset:
                print_note(f"rows {end} to {offset - 1} were lost in a crash; the journal continues at {end}")
                offset = end
