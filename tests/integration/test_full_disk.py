"""A disk that is full or broken under a real server: console, tokens, readers, sealing and the queue itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client.admin import RemoteFigures
from tests.faulty_disk import FaultyServer, fill, small_disk
from tests.integration.serving import Answer, Http, until
from tests.server_process import ServerProcess

SIZE_MB = 32
"""The reserve of the journal takes 16 of them."""


def operator(server: ServerProcess) -> Http:
    return Http(server.http, token_of(server))


def token_of(server: ServerProcess) -> str:
    return (server.data / "run" / "operator.token").read_text().strip()


def mint(http: Http) -> Answer:
    return http.post("/v1/tokens", {"name": "ci", "scopes": ["streams:*:*"]})


def envelope(id_: str) -> dict[str, object]:
    body = {"id": id_, "ts": "2026-01-01T00:00:00Z", "type": "t", "payload": None}
    return {"to": "jobs", "envelopes": [body]}


def check_console(server: ServerProcess) -> None:
    """Signing in and out needs no disk."""
    page = {"Origin": server.http, "Sec-Fetch-Site": "same-origin"}
    http = Http(server.http)
    answer = http.post("/console/session", {"token": token_of(server)}, page)
    assert answer.status == 200, answer
    cookie = {**page, "Cookie": answer.headers["Set-Cookie"].partition(";")[0]}
    assert http.get("/console/session", headers=cookie).status == 200
    assert http.ask("DELETE", "/console/session", headers=cookie).status == 204
    assert http.get("/console/session", headers=cookie).code == "Unauthorized"
    until(lambda: "console.key_not_written" in server.log(), "the line of the log")


def check_tokens(server: ServerProcess, reason: str) -> None:
    """A token that cannot be written does not exist."""
    http = operator(server)
    refused = mint(http)
    assert refused.code == "JournalUnavailable" and reason in refused.error["message"]
    assert http.get("/v1/tokens").json["tokens"] == []
    assert Http(server.http).get("/v1/stats", stream="jobs").status == 200, "no token became required"


def check_readers(server: ServerProcess, reason: str) -> None:
    refused = operator(server).post("/v1/journal/readers", {"name": "nightly", "offset": 0})
    assert refused.code == "JournalUnavailable" and reason in refused.error["message"]


def check_health(server: ServerProcess) -> None:
    """A supervisor does not restart a server that takes acks, and doctor names the cause."""
    http = operator(server)
    answer = http.get("/health")
    assert (answer.status, answer.json["ok"], answer.json["status"]) == (503, False, "refusing")
    assert http.get("/health/live").status == 200
    disk = answer.json["parts"]["disk"]
    assert disk["state"] == "failed" and "the disk is full" in disk["reason"] and disk["action"]
    assert RemoteFigures(server.http, token_of(server)).read().health["status"] == "refusing"
    errors = [line for line in server.log().splitlines() if '"level":"error"' in line]
    assert any('"journal.refused"' in line for line in errors), server.log()


def expect(http: Http, *ids: str) -> None:
    """These envelopes are delivered, now or after a delay, and no others."""
    found: list[str] = []

    def is_complete() -> bool:
        found.extend(one["deliver"]["id"] for one in http.pull("jobs", max=9))
        return len(found) >= len(ids)

    until(is_complete, "the deliveries")
    assert sorted(found) == sorted(ids)


def check_recovery(server: ServerProcess, *ready: str) -> None:
    """Without a restart, and with everything that was acknowledged."""
    http = operator(server)
    until(lambda: http.post("/v1/enqueue", envelope("later")).status == 200, "the recovery")
    assert http.get("/health").json["journal"]["ok"] is True
    assert mint(http).status == 200 and http.ask("DELETE", "/v1/tokens/ci").status == 200
    assert http.post("/v1/journal/readers", {"name": "nightly", "offset": 0}).status == 200
    assert http.post("/v1/journal/seal", {}).status == 200
    expect(http, *ready)


@pytest.mark.promise("Operations", "on a disk that is full or broken, what cannot be written is refused by its cause")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "penstock-data", SIZE_MB):
        server = ServerProcess(tmp_path)
        try:
            http = operator(server)
            http.enqueue("jobs", "a", "b")
            fill(server.data / "ballast")
            check_tokens(server, "No space left on device")
            check_console(server)
            check_readers(server, "No space left on device")
            refused = http.post("/v1/journal/seal", {})
            assert refused.code == "JournalUnavailable" and "the disk is full" in refused.error["message"]
            assert "the disk is full" in http.get("/health").json["lake"]["trouble"]
            assert http.post("/v1/enqueue", envelope("c")).code == "JournalUnavailable"
            (delivery,) = http.pull("jobs", max=1)
            assert http.settle("a", "ack", leaseId=delivery["leaseId"]).status == 200
            assert http.get("/health").json["journal"]["trouble"] == "the disk is full"
            check_health(server)
            (server.data / "ballast").unlink()
            until(lambda: http.get("/health").status == 200, "the recovery that no client asks for")
            check_recovery(server, "b", "later")
            assert http.get("/health").json["lake"]["ok"] is True
            fill(server.data / "ballast")
            assert server.stop() == 0
            fill(server.data / "ballast")  # the space of the reserve too
            with pytest.raises(AssertionError, match=r"(?s)code 1.*No space left.*the disk is full"):
                ServerProcess(tmp_path)
            (server.data / "ballast").unlink()
            server = ServerProcess(tmp_path)
            assert operator(server).get("/health").json["journal"] == {
                "ok": True, "trouble": None, "epoch": 0, "notice": None
            }  # fmt: skip
        finally:
            if server.process.poll() is None:
                server.kill()


@contextmanager
def faulty(folder: Path) -> Iterator[FaultyServer]:
    server = FaultyServer(folder)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


@pytest.mark.promise("Operations", "on a disk that is full or broken, what cannot be written is refused by its cause")
@pytest.mark.parametrize(("error", "reason"), [("EIO", "Input/output error"), ("ENOSPC", "No space left on device")])
def test_a_disk_that_fails_one_file_at_a_time(tmp_path: Path, error: str, reason: str) -> None:
    with faulty(tmp_path) as server:
        http = operator(server)
        http.enqueue("jobs", "a", "b")
        with server.failing(error, "tokens.json"):
            check_tokens(server, reason)
        with server.failing(error, "console."):
            check_console(server)
        with server.failing(error, "reader-"):
            check_readers(server, reason)
        with server.failing(error, ".seg"):
            refused = http.post("/v1/enqueue", envelope("c"))
            assert refused.code == "JournalUnavailable"
            trouble = {"EIO": "the disk reports an error", "ENOSPC": "the disk is full"}[error]
            assert http.get("/health").json["journal"] == {
                "ok": False, "trouble": trouble, "epoch": 0, "notice": None
            }  # fmt: skip
            (delivery,) = http.pull("jobs", max=1)
            assert http.settle("a", "ack", leaseId=delivery["leaseId"]).code == "JournalUnavailable"
        (other,) = http.pull("jobs", max=1)
        assert http.settle("b", "ack", leaseId=other["leaseId"]).status == 200
        check_recovery(server, "later", "a")  # the lease of `a` ended with its refused settle
        server.kill()
    again = ServerProcess(tmp_path)
    try:
        expect(Http(again.http), "a", "later")
    finally:
        again.kill()


@pytest.mark.promise("Operations", "an error of a disk that comes with the close of a file loses nothing")
def test_a_disk_that_reports_its_error_when_a_file_is_closed(tmp_path: Path) -> None:
    with faulty(tmp_path) as server:
        http = operator(server)
        http.enqueue("jobs", "a")
        with server.failing("EIO", ".seg", "close"):
            http.post("/v1/journal/seal", {})  # ends the segment
            until(lambda: http.post("/v1/enqueue", envelope("b")).status == 200, "the next segment")
            assert http.get("/health/live").status == 200
            assert server.stop() == 0
        assert "Traceback" not in server.log().partition("server.drain")[2]
    again = ServerProcess(tmp_path)
    try:
        assert operator(again).get("/health").json["journal"]["ok"] is True
        expect(Http(again.http), "a", "b")
    finally:
        again.kill()
