"""`penstock restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption
from penstock.cli.output import print_json, print_line


def restore(
    source: Annotated[Path, Parameter(help="What `penstock backup` made.")],
    /,
    *,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Make a data directory of a backup, after checking every byte of it; then start a server on it.

    The directory must not be there, or be empty. What was committed after the
    backup is gone: the journal begins a new epoch, so that readers who saw
    those rows notice.

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
