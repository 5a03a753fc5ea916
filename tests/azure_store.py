"""A container in Azurite, Microsoft's emulator of Azure's blob storage, as a child process.

Azurite has 370 packages, so `make setup` does not install it: `npm install --prefix build/azurite azurite` does.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.journal.lake_location import ObjectPath, parse_lake
from tests.paths import ROOT

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has; its documentation shows the key."""
CONTAINER = "lake"
FOLDERS = os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / "build/azurite/node_modules/.bin")])
POLL_S = 0.1
START_S = 60.0
VERSION = "2021-12-02"


class AzureStore:
    """The emulator, with a container."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"

    def create(self, container: str) -> None:
        """Create a container; raises `OSError` while the emulator does not answer."""
        moment = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": moment, "x-ms-version": VERSION}
        signed = "\n".join(f"{name}:{value}" for name, value in headers.items())
        text = "PUT" + "\n" * 12 + f"{signed}\n/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.endpoint}/{ACCOUNT}/{container}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).close()

    def lake(self, folder: Path, container: str = CONTAINER, key: str = KEY) -> ObjectPath:
        """An empty lake, with locks in a folder."""
        file = folder / "azure.credentials"
        named = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": key}
        named["AZURE_STORAGE_USE_EMULATOR"] = "true"
        file.write_text("".join(f"{name}={value}\n" for name, value in named.items()))
        file.chmod(0o600)
        url = f"abfss://{container}@{ACCOUNT}.dfs.core.windows.net/{uuid.uuid4().hex}"
        found = parse_lake(url, str(file), folder / "lake")
        assert isinstance(found, ObjectPath)
        return found


@pytest.fixture(scope="module")
def azure_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureStore]:
    """The emulator; without it, its tests are left out."""
    program = shutil.which("azurite-blob", path=FOLDERS)
    if program is None:
        pytest.skip("no Azurite: `npm install --prefix build/azurite azurite` installs it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    folder = tmp_path_factory.mktemp("azurite")
    command = [program, "--blobPort", str(port), *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        store = AzureStore(port)
        try:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    store.create(CONTAINER)
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < deadline, "Azurite does not start"
                    time.sleep(POLL_S)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AZURITE_BLOB_STORAGE_URL", store.endpoint)  # delta-rs reads it
                yield store
        finally:
            process.kill()
