"""A bucket in Google's store and a container in Azure's, each served by a child process on this machine.

A process of its own, because delta-rs holds Python's lock while it waits for some answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.journal.lake_location import ObjectPath, parse_lake
from tests.paths import ROOT

ACCOUNT = "devstoreaccount1"
KEY = "dGVzdC1vbmx5LWtleS1vZi1hbi1hY2NvdW50LWluLW1lbW9yeQ=="
"""delta-rs uses this account when it is given an emulator."""
BUCKET = "lake"


class GoogleStore:
    """A bucket, and the file that says where it is."""

    scheme = "gs"

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def lake(self, folder: Path, bucket: str = BUCKET) -> ObjectPath:
        """An empty lake, with locks in a folder."""
        account = folder / "account.json"
        named = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        account.write_text(json.dumps({"gcs_base_url": self.endpoint, **named}))
        settings = {"GOOGLE_SERVICE_ACCOUNT": str(account), "allow_http": "true"}
        return lake_at(f"gs://{bucket}/{uuid.uuid4().hex}", settings, folder)


class AzureStore:
    """A container."""

    scheme = "abfss"

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def lake(self, folder: Path, bucket: str = BUCKET, key: str = KEY) -> ObjectPath:
        """An empty lake, with locks in a folder."""
        settings = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": key}
        settings["AZURE_STORAGE_USE_EMULATOR"] = "true"
        return lake_at(f"abfss://{bucket}@{ACCOUNT}.dfs.core.windows.net/{uuid.uuid4().hex}", settings, folder)


def lake_at(url: str, settings: dict[str, str], folder: Path) -> ObjectPath:
    """A lake whose file of credentials has these settings."""
    file = folder / "store.credentials"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    file.chmod(0o600)
    found = parse_lake(url, str(file), folder / "lake")
    assert isinstance(found, ObjectPath)
    return found


@contextmanager
def served(kind: str) -> Iterator[str]:
    """The URL of a server of this kind."""
    command = [sys.executable, "-m", "tests.cloud_server", kind]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@pytest.fixture(scope="module")
def google_store() -> Iterator[GoogleStore]:
    with served("gs") as endpoint:
        yield GoogleStore(endpoint)


@pytest.fixture(scope="module")
def azure_store() -> Iterator[AzureStore]:
    with served("azure") as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURITE_BLOB_STORAGE_URL", endpoint)  # delta-rs reads it
        yield AzureStore(endpoint)
