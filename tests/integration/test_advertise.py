"""`penstock up --advertise`: a kernel's tools list the server while it runs."""

from __future__ import annotations

import json

import pytest

from tests.integration.serving import Http


@pytest.mark.promise("Stream Kernel", "the advertisement is renewed, merged and removed, and never damages the file")
def test_we_are_listed_while_we_run(start_server, tmp_path):
    file = tmp_path / "reports" / "router-endpoints.json"
    other = {"id": "somebody", "type": "inproc", "coordinates": "node:x", "metadata": {}}
    file.parent.mkdir()
    file.write_text(json.dumps([other]))
    server = start_server("--advertise", "reports/router-endpoints.json")
    first, entry = json.loads(file.read_text())
    assert first == other
    assert entry["coordinates"] == server.control
    assert entry["metadata"]["http"] == server.http
    assert Http(entry["metadata"]["http"]).get("/health").json["ok"]
    assert server.stop() == 0
    assert json.loads(file.read_text()) == [other]


def test_nothing_is_written_unless_asked(server):
    assert list(server.folder.rglob("router-endpoints.json")) == []
