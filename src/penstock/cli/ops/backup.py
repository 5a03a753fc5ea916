"""`penstock backup`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption
from penstock.cli.output import print_json, print_line


def backup(
    target: Annotated[
        Path, Parameter(help="A directory to make, or a file that ends in .tar, .tar.gz or .tgz.")
    ],
    /,
    *,
    place: DataOption = DATA_DEFAULT,
) -> int:
    """Copy a data directory, whole and at one point in time; the server may go on.

    Every row of the journal that was committed when the command began is in
    the copy, with the tables, the spaces and their tokens. The config file and
    the operator's token are not. Nothing is written over.

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
        print_line(
            f"copied {len(manifest.files)} files, {size} bytes to `{target}`: rows before {manifest.end}"
        )
    return 0
