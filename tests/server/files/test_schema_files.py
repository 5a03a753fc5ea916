"""The directory of schemas: broken files are reported by name, and nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.server.config.load import ConfigError, load, policy_for
from penstock.server.files.schema_files import (
    DETAILED_MAX,
    FILE_MAX,
    compile_schema,
    is_recursive,
    opened,
    read_schemas,
)
from tests.hostile_json import cpu_s


def write(folder: Path, name: str, data: object) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else msgspec.json.encode(data))


@pytest.mark.promise("Schemas, skills and observability", "a broken schema is reported by name; nothing is fetched")
@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a/b@v1.json", b"{", "is not JSON"),
        ("a/b@v1.json", b'{"type":"object","type":"string"}', "given twice"),
        ("a/b@v1.json", {"type": "nonsense"}, "is not a JSON Schema"),
        ("a/b@v1.json", 5, "is not a JSON Schema"),
        ("a/b@v1.json", {"pattern": "("}, "is not a JSON Schema"),
        ("a/b@v1.json", {"$ref": "#/nowhere"}, "is not a JSON Schema"),
        ("a/b@v1.json", {"$schema": "https://example.com/own"}, "is not a JSON Schema"),
        ("a/b@v1.json", {"$ref": "https://example.com/x"}, "refers to `https://example.com/x`"),
        ("a/b@v1.json", {"$ref": "file:///etc/passwd"}, "refers to `file:///etc/passwd`"),
        ("a/b@v1.json", {"anyOf": [{"$dynamicRef": "c.json"}]}, "refers to `c.json`"),
        ("a/b@v1.json", b'"' + b"x" * FILE_MAX + b'"', "has more than"),
        ("a/b@v1.json", b"[" * 100 + b"]" * 100, "deeper"),
        ("b@v1.json", {}, "is not called"),
        ("a/b.json", {}, "is not called"),
        ("a/b@v1.0.json", {}, "the same version"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, data: object, words: str) -> None:
    write(tmp_path, "a/b@v1.json" if name != "a/b@v1.json" else "z/z@v1.json", {})
    write(tmp_path, name, data)
    shelf, problems = read_schemas(tmp_path)
    assert len(shelf) == 1
    (problem,) = problems
    assert f"`{name}`" in problem or words == "the same version"
    assert words in problem and "\n" not in problem


def test_references_within_a_file_are_followed(tmp_path: Path) -> None:
    schema = {"$id": "https://example.com/b", "$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    write(tmp_path, "a/b@v1.json", schema)
    shelf, problems = read_schemas(tmp_path)
    assert problems == []
    (compiled,) = shelf.values()
    assert compiled.strict(1) == []
    assert [problem.path for problem in compiled.strict("x")] == ["payload"]


def test_opening_touches_schemas_and_not_data() -> None:
    closed = {
        "additionalProperties": False,
        "const": {"additionalProperties": False},
        "not": {"additionalProperties": False},
        "properties": {"additionalProperties": {"type": "string"}, "x": {"unevaluatedProperties": False}},
        "items": [{"additionalProperties": False}],
    }
    assert opened(closed) == {
        "const": {"additionalProperties": False},
        "not": {"additionalProperties": False},
        "properties": {"additionalProperties": {"type": "string"}, "x": {}},
        "items": [{}],
    }


class TestConfig:
    def problems(self, tmp_path: Path, text: str) -> list[str]:
        file = tmp_path / "c.yaml"
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load(file, {})
        return caught.value.errors

    @pytest.mark.promise("Schemas, skills and observability", "a broken schema is reported by name; nothing is fetched")
    def test_every_broken_file_is_a_problem_of_the_config(self, tmp_path: Path) -> None:
        write(tmp_path, "schemas/a/b@v1.json", {"type": "nonsense"})
        write(tmp_path, "schemas/a/c@v1.json", b"{")
        problems = self.problems(tmp_path, f"schemas:\n  dir: {tmp_path / 'schemas'}\n")
        assert len(problems) == 2
        assert all(problem.startswith("schemas.dir: `a/") for problem in problems)
        assert all(problem.endswith("(line 2)") for problem in problems)

    def test_a_missing_directory_is_one(self, tmp_path: Path) -> None:
        (problem,) = self.problems(tmp_path, "schemas: {dir: no/where}\n")
        assert "`no/where` is not a directory" in problem

    @pytest.mark.parametrize("mode", ["warn", "enforce"])
    def test_a_mode_needs_schemas(self, tmp_path: Path, mode: str) -> None:
        text = f"streams:\n  perStreamCaps:\n    jobs/*: {{schemaMode: {mode}}}\n"
        (problem,) = self.problems(tmp_path, text)
        assert "schemaMode: needs a directory of schemas: set `schemas.dir`" in problem

    def test_each_stream_has_its_mode(self, tmp_path: Path) -> None:
        write(tmp_path, "schemas/a/b@v1.json", {})
        file = tmp_path / "c.yaml"
        file.write_text(
            f"schemas: {{dir: {tmp_path / 'schemas'}}}\n"
            "streams: {schemaMode: warn, perStreamCaps: {jobs/*: {schemaMode: enforce}, raw/*: {schemaMode: 'off'}}}\n"
        )
        config = load(file, {})
        modes = [policy_for(config, name).schema_mode for name in ("x", "jobs/1", "raw/1")]
        assert modes == ["warn", "enforce", "off"]


SELF = {"type": "object", "properties": {"left": {"$ref": "#"}}}


def test_a_deep_payload_that_does_not_match_a_recursive_schema_costs_little(tmp_path: Path) -> None:
    """Details cost twice as much for each level: 60 levels would hold the loop for ever."""
    write(tmp_path, "a/b@v1.json", {"anyOf": [SELF, {**SELF, "title": "another"}]})
    compiled = compile_schema(tmp_path / "a/b@v1.json")
    payload: object = "no object"
    for _ in range(60):
        payload = {"left": payload}
    for check in (compiled.strict, compiled.tolerant):
        (problem,) = check(payload)
        assert problem.path == "payload" and "no details" in problem.message
        assert check({"left": {"left": {}}}) == []


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object"}, False),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {}}}, False),
        (SELF, True),
        (
            {
                "properties": {"a": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}},
            },
            True,
        ),
        ({"anyOf": [{"items": {"$ref": "#/anyOf/0"}}]}, True),
        ({"$defs": {"a~b": {"items": {"$ref": "#/$defs/a~0b"}}}, "$ref": "#/$defs/a~0b"}, True),
        ({"$anchor": "top", "items": {"$ref": "#top"}}, True),
    ],
)
def test_references_that_lead_back_are_found(schema: object, expected: bool) -> None:
    assert is_recursive(schema) is expected


def test_a_large_payload_that_does_not_match_costs_little(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(
        '{"anyOf":[{"type":"array","items":{"anyOf":[{"type":"object"},{"type":"number"}]}},{"type":"null"}]}'
    )
    compiled = compile_schema(path)
    assert not isinstance(compiled, str)
    assert "more than 500 values" in compiled.strict(["x"] * 50_000)[0].message
    assert "anyOf" in compiled.strict(["x"] * DETAILED_MAX)[0].rule
    assert compiled.strict([1] * 50_000) == []
    few = cpu_s(lambda: compiled.strict(["x"] * 400))
    assert cpu_s(lambda: compiled.strict(["x"] * 50_000)) < 3 * few, "100 times as many values"
