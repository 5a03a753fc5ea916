"""`GET /v1/resources`: the server and its children, the disk with its reserve, and the bounds on memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.serving import Http
from tests.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("resources"), "--relay")
    yield process
    process.kill()


@pytest.mark.promise("Console", "disk, memory and processor time of each process are shown, and what is reserved")
def test_the_server_and_its_children_are_measured(server: ServerProcess) -> None:
    operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    first, *children = operator.get("/v1/resources").json["processes"]
    assert (
        first["name"] == "server" and first["memoryBytes"] > 10_000_000 and first["cpuS"] > 0 and first["threads"] >= 1
    )
    assert "relay" in [child["name"] for child in children]
    again = operator.get("/v1/resources").json
    assert again["processes"][0]["pid"] == first["pid"] and again["processes"][0]["cpuS"] >= first["cpuS"]
    disk = again["disk"]
    assert disk["path"] == str(server.data) and 0 < disk["freeBytes"] < disk["totalBytes"] and disk["reservedBytes"] > 0
    operator.enqueue("held", *(f"{number}" for number in range(100)))
    memory = {row["limit"]: row for row in operator.get("/v1/resources").json["memory"]}
    assert memory.keys() == {"memory_max", "pending_max", "outbox_total_max", "input_total_max"}
    assert 100 < memory["memory_max"]["used"] < memory["memory_max"]["bound"]


def test_resources_are_for_administrators(server: ServerProcess) -> None:
    assert Http(server.http).get("/v1/resources").status == 401
