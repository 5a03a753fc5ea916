"""The OpenAPI document against the server that serves it."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Step
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.server.http.request import AnyQuery, NoQuery
from penstock.server.http.routes import ROUTES
from tests.integration.serving import Http, envelope
from tests.server_process import ServerProcess
from tests.tiers import first_of

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
STREAM = "jobs"
RULE = {"id": "r", "when": {"to": "in"}, "do": [{"action": "route", "to": "out"}]}
CONFIG = f"""
limits: {{pull_wait_max_ms: 20}}
schemas: {{dir: schemas}}
triggers: [{msgspec.json.encode(RULE).decode()}]
spaces: [{{space: {{id: demo, name: Demo}}, participants: {{ann: {{tokens: [ann-secret], capabilities: [{{kind: chat}}]}}}}}}]
"""
MEDIA_TYPE = "application/x-ndjson"
schemathesis.serializer.alias(MEDIA_TYPE, "text/plain")
EXAMPLES = first_of((6, 120), 1)
BOUNDED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Step.explicit, Step.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A server that does not let a pull wait, with something in every state."""
    folder = tmp_path_factory.mktemp("target")
    (folder / "schemas/some").mkdir(parents=True)
    (folder / "schemas/some/number@v1.json").write_text('{"type": "number"}')
    process = ServerProcess(folder, config=CONFIG)
    http = Http(process.http)
    operator = Http(process.http, (process.data / "run" / "operator.token").read_text().strip())
    operator.ask("PUT", "/v1/triggers/r", RULE)
    http.enqueue(STREAM, *"abcdef")
    http.enqueue(STREAM, "later", delayMs=600_000)
    a, b, _ = http.pull(STREAM, max=3, lease_ms=3_600_000)
    http.settle("a", "term", leaseId=a["leaseId"], reason="no")
    http.settle("b", "ack", leaseId=b["leaseId"])
    yield process
    process.kill()


@pytest.fixture(scope="module")
def described(target):
    return schemathesis.openapi.from_url(f"{target.http}/openapi.json")


@pytest.fixture(scope="module")
def session():
    with requests.Session() as kept:
        yield kept


READABLE = ("", *(f"streams={text}" for text in ("null", "0", "1", "0.0", "1.0", "-0.0", "-0")))
RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
ASKED = [(route, RIGHT) for route in ROUTES]
# Where nothing is sent but a piece of text in the path, nothing can be sent wrongly.
ASKED += [(route, WRONG) for route in ROUTES if route.body is not None or route.query not in (NoQuery, AnyQuery)]


@pytest.mark.promise("Benchmarks and robustness", "schemathesis finds no fault")
@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize(("route", "mode"), ASKED, ids=lambda part: getattr(part, "name", part).lower())
def test_whatever_is_sent_the_answer_is_one_that_was_promised(target, described, session, route, mode, examples):
    operation = described[route.path][route.method]
    seen: Counter[int] = Counter()

    @settings(BOUNDED, max_examples=examples)
    @given(operation.as_strategy(generation_mode=mode))
    def check(case):
        if mode is RIGHT and isinstance(case.body, dict) and "to" in case.body:
            # What a stream may be called is narrower than a schema can say; left to chance, all would be refused.
            case.body["to"] = STREAM
            for each in [case.body.get("envelope"), *(case.body.get("envelopes") or [])]:
                if isinstance(each, dict):
                    each.pop("to", None)
        if mode is RIGHT and route.name == "pull" and isinstance(case.body, dict):
            case.body["stream"] = STREAM  # likewise
        response = case.call_and_validate(session=session, checks=CHECKS)
        if mode is WRONG and response.status_code == 200 and route.name == "prometheus":
            # A URL is text: what was meant as a wrong type may read as a right value.
            assert response.request.path_url.partition("?")[2].lower() in READABLE
            return
        seen[response.status_code] += 1

    check()
    assert seen.total() >= 1
    if mode is RIGHT and route.name in ("enqueue", "send", "pull", "metrics", "schemas_validate"):
        assert seen[200], seen  # not only refusals were looked at
    if mode is WRONG:
        assert set(seen) <= {400, 401, 403, 404, 409, 413}, seen
    assert Http(target.http).get("/health").status == 200


REQUESTS = {
    "enqueue": {"to": STREAM, "envelope": envelope("new")},
    "send": {"to": STREAM, "type": "t", "payload": 1},
    "pull": {"stream": STREAM, "lease_ms": 3_600_000},
    "settle": {"id": "c", "op": "extend", "stream": STREAM},
    "redrive": {"stream": STREAM},
    "drop": {"stream": STREAM, "ids": ["unwanted"]},
    "purge": {"stream": STREAM},
    "schemas_validate": {"envelope": {"schema": "some/number@v1", "payload": 1}},
    "stage_commit": {"parts": []},
    "journal_readers": {"name": "nightly", "offset": 0},
    "trigger_put": RULE,
    "trigger_try": {"to": "in", "envelope": envelope("tried")},
    "space_send": {"kind": "chat", "payload": {"text": "hello"}},
    "space_invite": {"participant": "bob", "capabilities": ["chat"]},
    "space_kick": {"participant": "ann"},
    "token_mint": {"name": "made", "scopes": ["streams:*:read"]},
    "sql": {"query": "show tables"},
}
LINES = {"stage_part": msgspec.json.encode({"to": STREAM, "type": "t", "payload": 1}).decode()}
QUERIES = {"stats": {"stream": STREAM}, "peek": {"stream": STREAM, "state": "inflight"}}
QUERIES["snapshot"] = {"view": "inflight"}
VALUES = {"id": "a", "stream": STREAM, "app": "some-app", "batch": 0, "part": "p", "rule": "r"}
VALUES |= {"space": "demo", "name": "made", "file": "index.html"}
ELSEWHERE = ("console_file", "connection_close", "cluster", "cluster_move", "cluster_drain")
"""Routes that need a built console, a connection or a cluster: `tests/server/http/test_console.py`, `tests/server/admin/`, `test_cluster.py`."""


@pytest.mark.promise("Queue protocols", "every HTTP route accepts valid requests")
@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route.socket is None and route.name not in ELSEWHERE],
    ids=lambda route: route.name,
)
def test_every_documented_route_answers_as_documented(target, described, session, route):
    operation = described[route.path][route.method]
    token = (target.data / "run" / "operator.token").read_text().strip()
    operator = Http(target.http, token)
    if route.name == "token_revoke":
        operator.post("/v1/tokens", REQUESTS["token_mint"])
    if route.name == "drop":
        operator.enqueue(STREAM, "unwanted")
    body = REQUESTS.get(route.name) or LINES.get(route.name, schemathesis.core.NOT_SET)
    if route.name == "console_sign_in":
        body = {"token": token}
    case = operation.Case(
        path_parameters={name: value for name, value in VALUES.items() if f"{{{name}}}" in route.path},
        query=QUERIES.get(route.name, {}),
        body=body,
        media_type={dict: "application/json", str: MEDIA_TYPE}.get(type(body)),
        headers={"Authorization": f"Bearer {token}"},
    )
    response = case.call_and_validate(session=session, checks=CHECKS)
    assert response.status_code == (204 if route.name == "console_sign_out" else 200), response.text
    if route.name == "token_mint":
        operator.ask("DELETE", "/v1/tokens/made")  # else the other tests would need one


@pytest.mark.promise("Queue protocols", "every HTTP route accepts valid requests")
def test_every_served_route_is_documented_and_every_documented_one_is_served(target):
    http = Http(target.http)
    document = http.get("/openapi.json").json
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert documented == {(route.method, route.path) for route in ROUTES}
    for method, path in documented:
        for name, value in VALUES.items():
            path = path.replace(f"{{{name}}}", str(value))
        status = http.ask(method, path).status
        assert status not in ((405, 500) if path.startswith("/console/") else (404, 405, 500)), (method, path)


def test_references_point_somewhere(target):
    text = Http(target.http).get("/openapi.json").body.decode()
    schemas = Http(target.http).get("/openapi.json").json["components"]["schemas"]
    references = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert references and references <= set(schemas)
