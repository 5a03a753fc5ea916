"""A bucket in an S3 server that runs as a child process. Answers can be lost or slow.

A process of its own, because delta-rs holds Python's lock while it waits for some answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.journal.lake_location import ObjectPath, parse_lake
from tests.paths import ROOT

KEY, SECRET = "AKIAPENSTOCKTEST", "s3cr3t-that-no-text-shows"
BUCKET = "lake"


class ObjectStore:
    """The server, with a bucket."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        self.endpoint = f"http://127.0.0.1:{int(self._from.readline())}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")).close()

    def break_answers(self, *lost: str, delay_s: float = 0.0) -> None:
        """Lose the answer to a request whose first line contains all words of a text, once each; delay every answer."""
        self._to.write(json.dumps({"lost": lost, "delay_s": delay_s}) + "\n")
        self._to.flush()
        assert self._from.readline() == "ok\n"

    def environment(self, **changed: str) -> dict[str, str]:
        given = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
        return given | {"AWS_ENDPOINT_URL": self.endpoint} | changed

    def credentials(self, folder: Path, **changed: str) -> Path:
        """A file of credentials."""
        file = folder / "credentials"
        file.write_text("".join(f"{name}={value}\n" for name, value in self.environment(**changed).items()))
        file.chmod(0o600)
        return file

    def lake(self, folder: Path) -> ObjectPath:
        """An empty lake of its own, with locks in a folder."""
        found = parse_lake(f"s3://{BUCKET}/{uuid.uuid4().hex}", str(self.credentials(folder)), folder / "lake")
        assert isinstance(found, ObjectPath)
        return found


@pytest.fixture(scope="session")
def s3_server() -> Iterator[ObjectStore]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-m", "tests.object_store_server"]
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        yield ObjectStore(process)
        process.kill()


@pytest.fixture
def object_store(s3_server: ObjectStore) -> Iterator[ObjectStore]:
    """The server of the session, without faults."""
    s3_server.break_answers()
    yield s3_server
    s3_server.break_answers()
