"""A server whose lake is in an object store: what it seals is there, and what it cannot seal stays in the journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from tests.integration.serving import Http, envelope
from tests.object_store import BUCKET, SECRET, ObjectStore
from tests.server_process import ServerProcess

Start = Callable[..., ServerProcess]
NOWHERE = "http://127.0.0.1:1"


def _said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    main([*words])
    seen = capsys.readouterr()
    return seen.out + seen.err


@pytest.mark.promise("The lake", "an object store that does not answer costs no row, and `/health` and doctor say why")
def test_a_lake_in_an_object_store(
    object_store: ObjectStore, start_server: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = object_store.credentials(tmp_path, AWS_ENDPOINT_URL=NOWHERE)
    url = f"s3://{BUCKET}/{tmp_path.name}"
    server = start_server("--lake", url, config=f"lake_credentials: {file}\n")
    http = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    data = ("--data", str(server.data))

    health = http.get("/health").json
    assert health["status"] == "degraded"
    assert "cannot be used" in health["lake"]["trouble"]
    assert "FAILED" in _said(capsys, "doctor", *data).upper()
    for number in range(5):
        assert http.post("/v1/enqueue", {"to": "jobs/a", "envelope": envelope(f"e{number}")}).status == 200
    refused = http.post("/v1/journal/seal", {})
    assert refused.status == 503, refused.json
    assert http.get("/v1/journal").json["error"]["code"] == "LakeUnavailable"

    object_store.credentials(tmp_path)  # the operator corrects the file
    sealed = http.post("/v1/journal/seal", {})
    assert sealed.status == 200, sealed.json
    assert http.get("/health").json["lake"] == {"ok": True, "trouble": None}
    assert [one["name"] for one in http.get("/v1/lake").json["tables"]] == ["events"]
    query = "select count(*) as n from events where event = 'enqueue'"
    assert http.post("/v1/sql", {"query": query}).json["rows"] == [[5]]
    assert json.loads(_said(capsys, "sql", query, *data, "--json")) == {"n": 5}
    assert json.loads(_said(capsys, "lake", "ls", *data, "--json"))["tables"][0]["table"] == "events"
    assert "lake" in _said(capsys, "doctor", *data)
    assert not (server.data / "lake" / "events").exists()
    assert server.stop() == 0
    assert SECRET not in server.log() + _said(capsys, "config", "show", "--config", str(tmp_path / "config.yaml"))

    again = start_server(config=f"lake: {url}\nlake_credentials: {file}\n")
    http = Http(again.http, (again.data / "run" / "operator.token").read_text().strip())
    bounds = http.get("/v1/journal").json
    assert bounds["first"] == 0 < bounds["sealedEnd"]
    assert again.stop() == 0
    with pytest.raises(AssertionError, match=r"rows 0 to \d+ are not in"):
        start_server("--lake", str(tmp_path / "other"))
