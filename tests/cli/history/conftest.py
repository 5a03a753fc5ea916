"""A server with rows of every kind, part of them sealed, and commands on its directory."""

from __future__ import annotations

import json

import pytest

from penstock.cli import main
from tests.integration.serving import Http
from tests.server_process import ServerProcess


@pytest.fixture(scope="package")
def busy(tmp_path_factory):
    """A server with something of everything, part of it sealed: `b` was enqueued before the seal, and acked after it."""
    process = ServerProcess(tmp_path_factory.mktemp("busy"))
    http = Http(process.http)
    http.enqueue("jobs/a", "a", "b", "c")
    http.post("/v1/enqueue", {"to": "mail", "envelope": {**envelope("m", "mail.new"), "corr": "k1", "from": "sam"}})
    a, b, c = http.pull("jobs/a", max=3)
    http.settle("a", "ack", leaseId=a["leaseId"])
    http.settle("b", "nack", leaseId=b["leaseId"], reason="busy")
    http.settle("c", "term", leaseId=c["leaseId"], reason="broken")
    assert main(["log", "seal", "--data", str(process.data)]) == 0
    (b,) = http.pull("jobs/a", max=1)
    http.settle("b", "ack", leaseId=b["leaseId"])
    yield process
    process.kill()


@pytest.fixture
def cli(busy, capsys, monkeypatch):
    """A command on that server's directory; with `--json`, what it printed as values."""
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)

    def run(*words, data=busy.data, code=0):
        capsys.readouterr()
        where = [] if data is None else ["--data", str(data)]
        assert main([*words, *where]) == code, capsys.readouterr()
        out = capsys.readouterr().out
        return [json.loads(line) for line in out.splitlines()] if "--json" in words else out

    return run


@pytest.fixture
def story(cli):
    """The part of the journal that the fixture wrote, whatever other tests add behind it."""
    rows = cli("log", "cat", "--id", "b", "--channel", "jobs/a", "--json")
    return ["--to", str(rows[-1]["offset"] + 1)]


def envelope(id_, kind="note"):
    return {"id": id_, "ts": "2026-01-01T00:00:00Z", "type": kind, "payload": {"n": 1}}
