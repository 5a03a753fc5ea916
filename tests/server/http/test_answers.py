"""Answers of the operations match the documented structs: no member is missing, mistyped or undocumented."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.server.http import answers, routes
from tests.server.http.driving import OPERATOR_TOKEN, HttpDriver, drive, envelope

RULE = {"id": "r", "when": {"to": "in"}, "do": [{"action": "route", "to": "out"}]}
MANY = {"to": "q", "envelopes": [envelope("b"), envelope("c")]}


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("POST", "/v1/enqueue", {"to": "q", "envelope": envelope("b")}, answers.ENQUEUED_ONE),
        ("POST", "/v1/enqueue", {"to": "q", "envelope": envelope("a")}, answers.ENQUEUED_ONE),
        ("POST", "/v1/enqueue", MANY, answers.ENQUEUED_MANY),
        ("POST", "/v1/send", {"to": "sam", "type": "t", "payload": 1}, answers.SENT),
        ("POST", "/v1/pull", {"stream": "q"}, answers.PULLED),
        ("POST", "/v1/redrive", {"stream": "q"}, answers.REDRIVEN),
        ("POST", "/v1/purge", {"stream": "q"}, answers.PURGED),
        ("GET", "/v1/stats?stream=q", None, answers.STATS),
        ("GET", "/v1/metrics", None, answers.METRICS),
        ("GET", "/v1/peek?stream=q", None, answers.PEEKED),
        ("GET", "/v1/snapshot?view=metrics:streams", None, answers.VIEW_ROWS),
        ("GET", "/v1/envelopes/a", None, answers.PLACES),
        ("GET", "/v1/streams/q/explain", None, answers.EXPLAINED),
        ("GET", "/v1/schemas", None, answers.SCHEMAS),
        ("GET", "/v1/stage/app", None, answers.STAGE_LAST),
        ("POST", "/v1/stage/app/0/abort", None, answers.STAGE_ABORTED),
        ("PUT", "/v1/triggers/r2", RULE | {"id": "r2"}, answers.TRIGGER_PUT),
        ("GET", "/v1/triggers", None, answers.TRIGGERS),
        ("GET", "/v1/triggers/r", None, answers.TRIGGER),
        ("POST", "/v1/triggers/try", {"to": "in", "envelope": envelope("t")}, answers.TRIGGERS_TRIED),
        ("DELETE", "/v1/triggers/r", None, answers.TRIGGER_REMOVED),
    ],
)
def test_an_answer_fits_its_struct(method: str, path: str, body: Any, kind: type[msgspec.Struct]) -> None:
    async def work(driver: HttpDriver) -> None:
        await driver.ask("POST", "/v1/enqueue", {"to": "q", "envelope": envelope("a")})
        plain, _, query = path.partition("?")
        await driver.ask("PUT", "/v1/triggers/r", RULE, token=OPERATOR_TOKEN)
        if plain == "/v1/redrive":  # it needs a dead letter
            pulled = (await driver.ask("POST", "/v1/pull", {"stream": "q"}))[1]["deliveries"][0]
            await driver.ask("POST", "/v1/settle", {"id": "a", "op": "term", "leaseId": pulled["leaseId"]})
        given = dict([query.split("=")]) if query else {}
        reply = await driver.handle(method, plain, body, query=given, token=OPERATOR_TOKEN)
        assert reply.status == 200, reply.body
        msgspec.json.decode(reply.body, type=kind)
        known = {field.encode_name for field in msgspec.structs.fields(kind)}
        assert set(msgspec.json.decode(reply.body)) <= known
        found = routes.find(method, plain)
        assert found is not None
        assert kind is found[0].answer or kind in (found[0].answer or ())  # type: ignore[operator]

    drive(work)


@pytest.mark.parametrize("missing", ["id", "seq"])
def test_a_missing_member_is_noticed(missing: str) -> None:
    body = {"id": "a", "seq": 1}
    del body[missing]  # type: ignore[misc]
    with pytest.raises(msgspec.ValidationError, match=missing):
        msgspec.convert(body, answers.ENQUEUED_ONE)
