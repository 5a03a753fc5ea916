"""A journal over HTTP: ranges in several requests, retries, and errors of the server or of a proxy."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.ipc
import pytest

from penstock.client import admin
from penstock.client.admin import RemoteBounds, RemoteJournal, http_door
from penstock.core.errors import PenstockError
from tests.client.scripted_http import Scripted, ScriptedHttp, scripted_http

BOUNDS = {"journal": "ab", "shard": 0, "epoch": 3, "first": 2, "sealedEnd": 5, "end": 9}
BUSY = Scripted({"error": {"code": "Draining", "message": "the server stops"}}, 503)


@pytest.fixture
def scripted() -> Iterator[ScriptedHttp]:
    with scripted_http() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "BACK_OFF_S", 0.001)


def rows(first: int, end: int, following: int | None = None) -> Scripted:
    """An answer with rows, and where the next one begins."""
    batch = pa.record_batch({"offset": list(range(first, end))})
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return Scripted(sink.getvalue(), headers={"X-Penstock-Next": str(end if following is None else following)})


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def refused(remote: RemoteJournal) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        remote.bounds()
    return caught.value


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:9787", "unix:/run/penstock", "http://", "127.0.0.1:8787"])
def test_an_address_that_is_not_http_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(PenstockError, match="is not the URL of an HTTP") as caught:
        RemoteJournal(url)
    assert caught.value.code == "InvalidRequest" and "http://host:port" in (caught.value.refusal.hint or "")


def test_an_address_loses_its_path_and_keeps_its_scheme() -> None:
    url, make = http_door("https://host:8787/path?query", 7.0)
    assert url == "https://host:8787"
    connection = make()
    assert (connection.host, connection.port, connection.timeout) == ("host", 8787, 7.0)
    assert type(connection).__name__ == "HTTPSConnection"


def test_requests_carry_the_token_and_their_fields(scripted: ScriptedHttp) -> None:
    scripted.script("/v1/journal", Scripted(BOUNDS))
    scripted.script("/v1/journal/seal", Scripted({"sealedRows": 4, "sealedEnd": 9, "liveOffset": 9}))
    scripted.script("/v1/journal/readers", Scripted({"name": "spark", "offset": 7}))
    scripted.script("/v1/reload", Scripted({"changed": ["streams"], "restart": [], "closed": 1}))
    remote = RemoteJournal(scripted.url, "secret")
    assert remote.bounds() == RemoteBounds("ab", 0, 3, 2, 5, 9) and remote.end() == 9
    assert remote.seal() == {"sealedRows": 4, "sealedEnd": 9, "liveOffset": 9}
    remote.hold("spark", 7)
    assert remote.reload() == {"changed": ["streams"], "restart": [], "closed": 1}
    assert {asked.token for asked in scripted.asked} == {"Bearer secret"}
    assert [(asked.method, asked.body) for asked in scripted.asked[2:]] == [
        ("POST", None),
        ("POST", {"name": "spark", "offset": 7}),
        ("POST", None),
    ]
    RemoteJournal(scripted.url).bounds()
    assert scripted.asked[-1].token is None


def test_a_range_is_read_in_as_many_requests_as_it_takes(scripted: ScriptedHttp) -> None:
    scripted.script("/v1/journal/rows", rows(2, 5), rows(5, 6), rows(6, 9))
    assert offsets(RemoteJournal(scripted.url).batches(2, 9, ["offset"])) == list(range(2, 9))
    assert [asked.path.partition("?")[2] for asked in scripted.asked] == [
        "from=2&to=9&columns=offset",
        "from=5&to=9&columns=offset",
        "from=6&to=9&columns=offset",
    ]


def test_a_range_ends_where_the_journal_ends_and_an_empty_one_asks_nothing(scripted: ScriptedHttp) -> None:
    scripted.script("/v1/journal/rows", rows(2, 4), rows(4, 4))
    remote = RemoteJournal(scripted.url)
    assert offsets(remote.batches(2, 9)) == [2, 3]
    assert len(scripted.asked) == 2 and "columns" not in scripted.asked[0].path
    assert offsets(remote.batches(9, 9)) == [] and len(scripted.asked) == 2


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (Scripted({"error": {"code": "RangeGone", "message": "gone"}}, 410), "RangeGone", "gone"),
        (Scripted({"error": {"code": "NewerThanUs", "message": "new"}}, 403), "Forbidden", "new"),
        (Scripted(b"<html>", 401), "Unauthorized", "answered 401"),
        (Scripted(b"<html>", 404), "UnknownRoute", "answered 404"),
        (Scripted(b"<html>", 502), "Unreachable", "answered 502"),
        (Scripted(b"<html>", 504), "Timeout", "answered 504"),
        (Scripted(b"<html>"), "UnknownRoute", "not as a Penstock would"),
        (Scripted({"end": 9}), "UnknownRoute", "not as a Penstock would"),
        (Scripted(status=0), "Unreachable", "gave no HTTP answer"),
    ],
)
def test_an_error_has_the_code_of_the_server_or_of_its_status(
    scripted: ScriptedHttp, answer: Scripted, code: str, message: str
) -> None:
    scripted.script("/v1/journal", answer)
    error = refused(RemoteJournal(scripted.url))
    assert error.code == code and message in error.refusal.message
    assert len(scripted.asked) == 1


def test_the_fields_of_an_error_are_kept(scripted: ScriptedHttp) -> None:
    error = {"code": "RateLimited", "message": "slowly", "ref": "r1", "hint": "wait"}
    scripted.script("/v1/journal", Scripted({"error": error}, 429, {"Retry-After": "3"}))
    refusal = refused(RemoteJournal(scripted.url)).refusal
    assert (refusal.ref, refusal.hint, refusal.retry_after_ms) == ("r1", "wait", 3_000)
    scripted.script("/v1/journal", Scripted({"error": error}, 429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    assert refused(RemoteJournal(scripted.url)).refusal.retry_after_ms is None


def test_a_busy_server_is_tried_again_until_it_answers(scripted: ScriptedHttp) -> None:
    scripted.script("/v1/journal", BUSY, Scripted(status=0), BUSY, Scripted(BOUNDS))
    assert RemoteJournal(scripted.url, retry_s=10).bounds().end == 9
    assert len(scripted.asked) == 4


def test_retries_end_at_their_bound_and_the_error_says_so(scripted: ScriptedHttp) -> None:
    scripted.script("/v1/journal", BUSY)
    error = refused(RemoteJournal(scripted.url, retry_s=0.2))
    assert error.code == "Draining" and "tries and 0 s" in error.refusal.message
    assert 1 < len(scripted.asked) < 20


def test_a_wait_that_the_server_names_is_not_begun_when_it_is_too_long(scripted: ScriptedHttp) -> None:
    scripted.script("/v1/journal", BUSY._replace(headers={"Retry-After": "60"}))
    assert refused(RemoteJournal(scripted.url, retry_s=5)).code == "Draining"
    assert len(scripted.asked) == 1


@pytest.mark.parametrize(("code", "status"), [("Forbidden", 403), ("Internal", 500)])
def test_an_error_that_does_not_pass_is_not_tried_again(scripted: ScriptedHttp, code: str, status: int) -> None:
    scripted.script("/v1/journal", Scripted({"error": {"code": code, "message": "no"}}, status))
    error = refused(RemoteJournal(scripted.url, retry_s=10))
    assert (error.code, error.refusal.message) == (code, "no")
    assert len(scripted.asked) == 1
