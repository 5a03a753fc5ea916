"""Spark's checkpoints on disk, as far as a crash can leave one unusable: here is what makes it usable again.

Spark writes the offsets of a batch under a temporary name and renames them. Where the process ends in between, before the very first batch, the
temporary file stays, and a query with state refuses the checkpoint for ever: "should be empty on batch 0". Nothing was read then, so nothing is lost.
"""

from __future__ import annotations

from pathlib import Path

OFFSETS = "offsets"
"""Where a checkpoint has a file for each batch that was planned, named by its number."""


def repair_checkpoint(checkpoint: Path) -> list[str]:
    """Remove what an interrupted first batch left; the names of what was removed. A checkpoint with a batch is not touched."""
    try:
        files = sorted((checkpoint / OFFSETS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    if any(file.name.isdigit() for file in files):
        return []
    left = [file for file in files if file.name.startswith(".") and file.is_file()]
    for file in left:
        file.unlink(missing_ok=True)
    return [file.name for file in left]
