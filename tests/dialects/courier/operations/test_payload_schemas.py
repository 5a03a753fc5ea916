"""Schemas of payloads: the grammar, the rule of evolution, and each mode on every protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Refusal
from penstock.core.queue.policy import Policy
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, SendRequest, enqueue, send
from penstock.dialects.courier.operations.outcomes import Result
from penstock.dialects.courier.operations.payload_schemas import Registry, Version, parse_version
from penstock.dialects.courier.wire.staged_envelopes import source_of
from penstock.server.courier.stage_store import Staging
from penstock.server.files.schema_files import read_schemas
from tests.dialects.courier.talking import Broker, envelope

ENFORCED, WARNED = Policy(schema_mode="enforce"), Policy(schema_mode="warn")
POLICIES = {"strict": ENFORCED, "agents/strict/inbox": ENFORCED, "lenient": WARNED}


def put(folder: Path, name: str, schema: object) -> None:
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(schema))


def task(**more: object) -> dict[str, object]:
    """A closed object with a number, and what a version adds."""
    return {
        "type": "object",
        "required": ["n"],
        "properties": {"n": {"type": "integer", "minimum": 1}, **more},
        "additionalProperties": False,
    }


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    put(tmp_path, "xeno/task@v1", task())
    put(tmp_path, "xeno/task@v1.2", task(note={"type": "string"}))
    put(tmp_path, "xeno/task@v3", task(size={"type": "integer"}))
    put(tmp_path, "deep/ly/nested@v1", {"properties": {"rows": {"items": task()}}})
    shelf, problems = read_schemas(tmp_path)
    assert problems == []
    return Registry(shelf, lambda name: POLICIES.get(name, Policy()))


@pytest.fixture
def broker(registry: Registry) -> Broker:
    made = Broker(policies=POLICIES)
    made.machine.schemas = registry
    return made


def body(payload: object, schema: str | None = None) -> bytes:
    return msgspec.json.encode({**envelope(), "payload": payload, "schema": schema})


class TestNames:
    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("xeno/sprint-assign@v1", Version("xeno/sprint-assign", 1)),
            ("a/b@v0", Version("a/b", 0)),
            ("a/b/c.d_e@v12.34", Version("a/b/c.d_e", 12, 34)),
            ("a/b@v1.0", Version("a/b", 1)),
        ],
    )
    def test_are_read(self, text: str, version: Version) -> None:
        assert parse_version(text) == version

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "a",
            "a/b",
            "a@v1",
            "a/b@1",
            "a/b@v",
            "a/b@v01",
            "a/b@v1.",
            "a/b@v1.2.3",
            "/a@v1",
            "a//b@v1",
            "a/../b@v1",
            "./b@v1",
            "a/b@v1\n",
            "a b/c@v1",
            "a/b@v1234567",
            "a/" + "b" * 300 + "@v1",
            "a/b@v-1",
        ],
    )
    def test_invalid_names_are_reported(self, text: str) -> None:
        assert parse_version(text) is None

    @given(st.integers(0, 999_999), st.integers(0, 999_999))
    def test_come_out_as_they_went_in(self, major: int, minor: int) -> None:
        version = Version("a/b", major, minor)
        assert parse_version(str(version)) == version


class TestEvolution:
    @pytest.mark.promise(
        "Schemas, skills and observability",
        "older and newer minor versions are accepted, a newer major version is rejected",
    )
    @pytest.mark.parametrize(
        ("schema", "payload", "finding", "against"),
        [
            # The newest minor of the major judges every minor of it.
            ("xeno/task@v1", {"n": 1, "note": "x"}, "fits", "xeno/task@v1.2"),
            ("xeno/task@v1.1", {"n": 1}, "fits", "xeno/task@v1.2"),
            ("xeno/task@v1.2", {"n": 1, "later": 1}, "misfit", "xeno/task@v1.2"),
            # A newer minor may bring more, but what is known must still fit.
            ("xeno/task@v1.3", {"n": 1, "later": 1}, "fits", "xeno/task@v1.2"),
            ("xeno/task@v1.3", {"n": "1", "later": 1}, "misfit", "xeno/task@v1.2"),
            # Another major is another schema.
            ("xeno/task@v3", {"n": 1, "size": 2}, "fits", "xeno/task@v3"),
            ("xeno/task@v3", {"n": 1, "note": "x"}, "misfit", "xeno/task@v3"),
            ("xeno/task@v4", {"n": 1}, "newer", None),
            ("xeno/task@v2", {"n": 1}, "unknown", None),
            ("xeno/other@v1", {"n": 1}, "unknown", None),
            ("xeno/task", {"n": 1}, "malformed", None),
            (None, {"n": 1}, "missing", None),
        ],
    )
    def test_which_version_judges(
        self, registry: Registry, schema: str | None, payload: object, finding: str, against: str | None
    ) -> None:
        verdict = registry.judge(body(payload, schema))
        assert (verdict["finding"], verdict["against"]) == (finding, against)
        assert verdict["ok"] is (finding == "fits")
        assert (verdict["message"] is None) is verdict["ok"]

    @pytest.mark.promise(
        "Schemas, skills and observability",
        "older and newer minor versions are accepted, a newer major version is rejected",
    )
    def test_a_newer_minor_is_read_tolerantly_in_depth_too(self, registry: Registry) -> None:
        payload = {"rows": [{"n": 1, "later": True}]}
        assert not registry.judge(body(payload, "deep/ly/nested@v1"))["ok"]
        assert registry.judge(body(payload, "deep/ly/nested@v1.1"))["ok"]

    def test_the_version_of_the_envelope_is_another_thing(self, registry: Registry) -> None:
        raw = msgspec.json.encode({**envelope(), "schema": "xeno/task@v1", "version": 99, "payload": {"n": 1}})
        assert registry.judge(raw)["ok"]

    def test_problems_name_the_place_and_the_rule(self, registry: Registry) -> None:
        verdict = registry.judge(body({"rows": [{"n": 1}, {"n": 0}]}, "deep/ly/nested@v1"))
        (problem,) = verdict["problems"]
        assert problem["path"] == "payload.rows[1].n"
        assert problem["rule"] == "#/properties/rows/items/properties/n/minimum"

    def test_problems_are_bounded(self, registry: Registry) -> None:
        verdict = registry.judge(body({"rows": [{"n": 0}] * 200}, "deep/ly/nested@v1"))
        assert len(verdict["problems"]) == 20


def code(outcome: object) -> str:
    assert isinstance(outcome, Refusal), outcome
    return outcome.code


class TestModes:
    def enqueue(self, broker: Broker, stream: str, payload: object, schema: str | None) -> Any:
        request = EnqueueRequest(stream, msgspec.Raw(body(payload, schema)))
        return enqueue(broker.machine, broker.now, ANONYMOUS, request, assign=False)

    @pytest.mark.promise(
        "Schemas, skills and observability", "`schemaMode: off`, `warn` and `enforce` apply to every protocol"
    )
    @pytest.mark.parametrize(
        ("schema", "payload", "expected"),
        [
            ("xeno/task@v1", {"n": 0}, "SchemaMismatch"),
            ("xeno/task@v9", {"n": 1}, "UnknownSchema"),
            ("no/such@v1", {"n": 1}, "UnknownSchema"),
            ("nonsense", {"n": 1}, "UnknownSchema"),
            (None, {"n": 1}, "UnknownSchema"),
        ],
    )
    def test_enforce_refuses_and_warn_counts(
        self, broker: Broker, registry: Registry, schema: str | None, payload: object, expected: str
    ) -> None:
        said: list[tuple[str, str]] = []
        registry._notice = lambda stream, text: said.append((stream, text))
        assert code(self.enqueue(broker, "strict", payload, schema)) == expected
        assert "strict" not in broker.machine.channels, "a refused request makes no stream"
        assert (registry.refused, registry.warned, said) == (1, 0, [])
        assert isinstance(self.enqueue(broker, "lenient", payload, schema), Result)
        assert (registry.refused, registry.warned) == (1, 1)
        assert [stream for stream, _ in said] == ["lenient"]
        assert isinstance(self.enqueue(broker, "off", payload, schema), Result)
        assert (registry.refused, registry.warned, len(said)) == (1, 1, 1)

    def test_a_good_one_is_taken_everywhere(self, broker: Broker, registry: Registry) -> None:
        for stream in ("strict", "lenient", "off"):
            assert isinstance(self.enqueue(broker, stream, {"n": 1}, "xeno/task@v1"), Result)
        assert (registry.refused, registry.warned) == (0, 0)

    def test_a_refusal_names_the_place_and_the_rule(self, broker: Broker) -> None:
        refusal = self.enqueue(broker, "strict", {"n": "x"}, "xeno/task@v1")
        assert refusal.ref == "payload.n"
        assert "`payload.n`" in refusal.message and "#/properties/n/type" in refusal.message
        assert refusal.status == 422

    def test_a_warning_does_not_quote_the_payload(self, broker: Broker, registry: Registry) -> None:
        said: list[str] = []
        registry._notice = lambda stream, text: said.append(text)
        self.enqueue(broker, "lenient", {"n": "secret"}, "xeno/task@v1")
        assert said == ["`payload.n` breaks `#/properties/n/type` of `xeno/task@v1.2`"]

    def test_other_schemas_count_from_the_next_envelope_on(self, broker: Broker, registry: Registry) -> None:
        registry.replace({})
        assert code(self.enqueue(broker, "strict", {"n": 1}, "xeno/task@v1")) == "UnknownSchema"
        assert registry.catalogue() == []


class TestWaysIn:
    """A misfit is refused wherever it comes in, and changes nothing."""

    @pytest.mark.promise(
        "Schemas, skills and observability", "`schemaMode: off`, `warn` and `enforce` apply to every protocol"
    )
    def test_control_lines(self, broker: Broker) -> None:
        peer = broker.control()
        good = {**envelope("a"), "schema": "xeno/task@v1"}
        bad = {**envelope("b"), "schema": "xeno/task@v1", "payload": {}}
        for number, env in enumerate((good, bad, {**good, "id": "c"}, [{**good, "id": "d"}, bad])):
            peer.send({"type": "enqueue", "to": "strict", "env": env, "reqId": number})
        broker.run()
        answers = peer.heard()
        assert [answer["reqId"] for answer in answers] == [0, 1, 2, 3]
        assert [answer.get("code") for answer in answers] == [None, "SchemaMismatch", None, "SchemaMismatch"]
        assert answers[3]["ref"] == "envelopes[1].payload"
        assert list(broker.machine.channels["strict"].live) == ["a", "c"]

    @pytest.mark.promise(
        "Schemas, skills and observability", "`schemaMode: off`, `warn` and `enforce` apply to every protocol"
    )
    def test_send(self, broker: Broker) -> None:
        for schema, fits in ((None, False), ("xeno/task@v1", True)):
            request = SendRequest("strict", "note", msgspec.Raw(b'{"n":1}'), schema=schema)
            outcome = send(broker.machine, broker.now, ANONYMOUS, request)
            assert isinstance(outcome, Result) is fits
        (record,) = broker.machine.channels["agents/strict/inbox"].live.values()
        assert msgspec.json.decode(record.body)["schema"] == "xeno/task@v1"

    @pytest.mark.promise(
        "Schemas, skills and observability", "`schemaMode: off`, `warn` and `enforce` apply to every protocol"
    )
    def test_staged_parts(self, broker: Broker) -> None:
        staging = Staging(broker.runtime)
        source = source_of("app", "1", ANONYMOUS)
        assert not isinstance(source, Refusal)
        good = {"to": "strict", "type": "note", "schema": "xeno/task@v1", "payload": {"n": 1}}
        lines = [msgspec.json.encode(line) for line in (good, {**good, "payload": {"n": 0}})]
        assert isinstance(staging.part(broker.now, source, "p", "", lines[0]), Result)
        refusal = staging.part(broker.now, source, "p", "", b"\n".join(lines))
        assert code(refusal) == "SchemaMismatch"
        assert isinstance(refusal, Refusal) and refusal.ref == "lines[1].payload.n"

    def test_dead_letters_come_back_whatever_the_schemas_say_by_then(self, broker: Broker, registry: Registry) -> None:
        peer = broker.control()
        peer.say(type_="enqueue", to="strict", env={**envelope("a"), "schema": "xeno/task@v1"})
        peer.say(type_="subscribe", stream="strict", credit=1)
        peer.say(type_="term", id="a")
        registry.replace({})
        (answer,) = peer.say(type_="redrive", stream="strict", reqId=1)
        assert answer["result"]["moved"] == 1


class TestAsking:
    @pytest.mark.promise(
        "Schemas, skills and observability",
        "`schema.validate`, `/v1/schemas` and `penstock schema` validate envelopes",
    )
    def test_lists_and_validates_over_control(self, broker: Broker) -> None:
        peer = broker.control()
        (answer,) = peer.say(type_="schema.list", reqId=1)
        rows = answer["result"]["schemas"]
        assert rows[1] == {"name": "xeno/task", "versions": ["v1", "v1.2", "v3"]}
        env = {**envelope(), "schema": "xeno/task@v1"}
        (answer,) = peer.say(type_="schema.validate", env=env, reqId=2)
        assert answer["result"]["ok"] is True
        (answer,) = peer.say(type_="schema.validate", env={**env, "payload": 5}, reqId=3)
        assert answer["result"]["finding"] == "misfit"
        assert broker.machine.channels == {}

    @pytest.mark.parametrize("env", [5, [], {}, {"schema": 5, "payload": 1}])
    def test_an_invalid_envelope_is_reported(self, broker: Broker, env: object) -> None:
        (answer,) = broker.control().say(type_="schema.validate", env=env, reqId=1)
        assert answer["code"] == "InvalidEnvelope"

    def test_without_schemas_nothing_can_be_validated(self) -> None:
        peer = Broker().control()
        assert peer.say(type_="schema.list", reqId=1)[0]["result"] == {"schemas": []}
        (answer,) = peer.say(type_="schema.validate", env=envelope(), reqId=2)
        assert answer["code"] == "UnknownSchema"
