"""`penstock backup` and `restore`: copy a data directory at one point in time, and make one of such a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption
from penstock.cli.output import print_json, print_line


def backup(
    target: Annotated[Path, Parameter(help="A new directory, or a file that ends in .tar, .tar.gz or .tgz.")],
    /,
    *,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Copy a data directory at one point in time; the server may be running.

    The copy has every journal row that was committed when the command began,
    the tables, the spaces and their tokens. It lacks the config file and the
    operator's token. No file is overwritten.

    For example:

      penstock backup /backup/penstock-monday
      penstock backup /backup/monday.tar --data /var/lib/penstock
    """
    import penstock
    from penstock.cli.history.log import progress_bar
    from penstock.server.ops.backup import backup as make

    bar = None if place.as_json else progress_bar("copying")
    try:
        manifest = make(place.data, target, penstock.__version__, bar)
    finally:
        if bar is not None:
            bar(1, 1)
    size = sum(entry.bytes for entry in manifest.files.values())
    if place.as_json:
        print_json(
            {
                "target": str(target),
                "journal": manifest.journal,
                "end": manifest.end,
                "files": len(manifest.files),
                "bytes": size,
            }
        )
    else:
        print_line(f"copied {len(manifest.files)} files, {size} bytes to `{target}`: rows before {manifest.end}")
    return 0


def restore(
    source: Annotated[Path, Parameter(help="A backup made by `penstock backup`.")],
    /,
    *,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Restore a data directory from a backup, after checking every byte of it.

    The directory must be absent or empty. Rows committed after the backup are
    lost: the journal begins a new epoch, so that readers of those rows notice.

    For example:

      penstock restore /backup/penstock-monday
      penstock restore /backup/monday.tar --data /var/lib/penstock
    """
    from penstock.cli.history.log import progress_bar
    from penstock.server.ops.restore import restore as make

    bar = None if place.as_json else progress_bar("restoring")
    try:
        manifest, report = make(source, place.data, bar)
    finally:
        if bar is not None:
            bar(1, 1)
    if place.as_json:
        print_json(
            {
                "data": str(place.data),
                "journal": manifest.journal,
                "madeAt": manifest.made_at,
                "end": report.end,
                "sealedRows": report.sealed_rows,
                "segmentRows": report.segment_rows,
                "files": len(manifest.files),
            }
        )
    else:
        print_line(
            f"restored `{place.data}` as of {manifest.made_at}: {len(manifest.files)} files, rows before {report.end}, sound"
        )
    return 0
