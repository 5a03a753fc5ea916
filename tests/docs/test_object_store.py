"""The page about the lake in an object store: its commands, next to a server whose lake is in one."""

from __future__ import annotations

from pathlib import Path

from tests.docs.documents import run_blocks
from tests.object_store import BUCKET, ObjectStore
from tests.server_process import ServerProcess

PAGE = "docs/how-to/object-store.md"


def test_the_commands_of_the_page_run(object_store: ObjectStore, tmp_path: Path) -> None:
    config = f"lake: s3://{BUCKET}/{tmp_path.name}\nlake_credentials: {object_store.credentials(tmp_path)}\n"
    server = ServerProcess(tmp_path, config=config)
    try:
        assert run_blocks(PAGE, server, 60, mark="store") == 1
    finally:
        server.kill()
