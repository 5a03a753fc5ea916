"""A data directory as a killed server leaves it, for the tests of backup and restore."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.journal.disk import RealDisk
from tests.journal.histories import START_US, publish, put, reopened, sealer


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sealed and unsealed rows, a table, a token of a space, and files that no backup holds; tests that change it copy it."""
    data = tmp_path_factory.mktemp("quiet") / "penstock-data"
    disk = RealDisk(data / "journal")
    log, _ = reopened(disk)
    log.commit([[put(id_, seq=number) for number, id_ in enumerate("abc", 1)]], START_US)
    publish(disk, 3)
    log.rotate()
    sealer(data).seal(START_US, wants_live=True)
    log.commit([[put("d", seq=4)]], START_US)
    publish(disk, 4)  # and the log is not closed, as after a kill
    for number in range(3):
        rows = pa.table({"n": [number], "m": [0]})
        write_deltalake(str(data / "lake/mine"), rows, mode="append", partition_by=["n"])
    files = {
        "lake/_checkpoints/state": "can be lost",
        "lake/mine/.draft.parquet": "a draft",
        "spaces/workshop/tokens/ada.token": "secret",
        "run/endpoints.json": '{"pid":0,"http":null,"control":null}',
        "run/operator.token": "secret",
    }
    for name, text in files.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text)
    return data
