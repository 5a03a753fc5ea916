"""Makes `fixtures/data-<version>.tar.gz`: a data directory with journal, lake and checkpoints as this version writes them.

Run it once for a release, with `python -m tests.spark.keeping`, and keep the file: later versions must open it.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from penstock.ipc.pipeline import AlertsSection
from penstock.server.open_cell import version
from penstock.spark import location
from penstock.spark.pipeline import steps
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.queries import CHECKPOINTS, start_query
from penstock.spark.pipeline.watch import AlertWatch
from penstock.spark.session import make_session
from tests.spark.journal_builder import JournalBuilder, work

FIXTURES = Path(__file__).parent / "fixtures"


def keep() -> Path:
    """Write the file; returns where it is."""
    file = FIXTURES / f"data-{version()}.tar.gz"
    spark = make_session("keeping", master="local[2]", conf={"spark.ui.enabled": "false"})
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        story = JournalBuilder(data)
        work(story, 1)
        story.seal()
        work(story, 1, each=4)
        story.close()
        journal = location.open_one(data)
        ingest = Ingest(spark, journal, data / "lake", steps.built_in())
        watch = AlertWatch(spark, journal, data / "lake", AlertsSection(), None)
        for name, part in (("ingest", ingest), ("watch", watch)):
            checkpoint = data / "lake" / CHECKPOINTS / name
            start_query(
                spark, journal, name, part.on_batch, checkpoint, start=0, rows_max=60, pause_ms=None
            ).awaitTermination()
        with tarfile.open(file, "w:gz") as archive:
            archive.add(data, "data", filter=_nobodys)
    spark.stop()
    return file


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Nothing of the machine that made it: no owner, no time, no locks."""
    if "_locks" in entry.name:
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


if __name__ == "__main__":
    print(keep())
