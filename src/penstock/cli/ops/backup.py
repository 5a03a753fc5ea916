"""`penstock backup` and `restore`: copy a data directory at one point in time, and make one of such a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption
from penstock.cli.output import print_result


def backup(
    target: Annotated[Path, Parameter(help="A new directory, or a file that ends in .tar, .tar.gz or .tgz.")],
    /,
    *,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """Copy a data directory at one point in time; the server may be running.

    The copy has every journal row that was committed when the command began,
    the tables, the spaces and their tokens. It lacks the config file and the
    operator's token. No file is overwritten.

    For example:

      penstock backup /backup/penstock-monday
      penstock backup /backup/monday.tar --data /var/lib/penstock
    """
    import penstock
    from penstock.server.journal.lifecycle import progress_bar
    from penstock.server.ops.backup import backup as make

    with progress_bar("copying", is_wanted=not place.as_json) as bar:
        manifest = make(place.data, target, penstock.__version__, bar)
    size = sum(entry.bytes for entry in manifest.files.values())
    end, count = manifest.end, len(manifest.files)
    result = {"target": str(target), "journal": manifest.journal, "end": end, "files": count, "bytes": size}
    text = f"copied {count} files, {size} bytes to `{target}`: rows before {end}"
    print_result(result, text, as_json=place.as_json)


def restore(
    source: Annotated[Path, Parameter(help="A backup made by `penstock backup`.")],
    /,
    *,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """Restore a data directory from a backup, after checking every byte of it.

    The directory must be absent or empty. Rows committed after the backup are
    lost: the journal begins a new epoch, so that readers of those rows notice.

    For example:

      penstock restore /backup/penstock-monday
      penstock restore /backup/monday.tar --data /var/lib/penstock
    """
    from penstock.server.journal.lifecycle import progress_bar
    from penstock.server.ops.backup import restore as make

    with progress_bar("restoring", is_wanted=not place.as_json) as bar:
        manifest, report = make(source, place.data, bar)
    made_at, end, count = manifest.made_at, report.end, len(manifest.files)
    result = {
        "data": str(place.data),
        "journal": manifest.journal,
        "madeAt": made_at,
        "end": end,
        "sealedRows": report.sealed_rows,
        "segmentRows": report.segment_rows,
        "files": count,
    }
    text = f"restored `{place.data}` as of {made_at}: {count} files, rows before {end}, sound"
    print_result(result, text, as_json=place.as_json)
