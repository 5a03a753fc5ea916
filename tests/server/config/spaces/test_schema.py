"""The schema of a space file: mistakes with their path and line, and ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.config.spaces.schema import id_error
from tests.server.config.spaces.test_space_yaml import Problems


@pytest.mark.promise(
    "Configuration of a space",
    "an invalid file is rejected with every problem, its path and line, and no default replaces it",
)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty, expected a space and its participants"),
        ("- a", "got a list, expected a mapping"),
        ("space: {id: 7}", "space.id: got `7`, expected a text that is not empty (line 1)"),
        ("space: {id: a/b}", "space.id: got `a/b`, expected a name without `/`, `\\`, `..` and control characters (line 1)"),
        ("participants: [sam]", "participants: got a list, expected a mapping or nothing (line 1)"),
        ("participants: {sam: {tokens: secret}}", "participants.sam.tokens: got a value, expected a list"),
        ("participants: {sam: {tokens: [1234]}}", "participants.sam.tokens[0]: got a value, expected a text that is not empty (line 1)"),
        ("participants: {sam: {tokens: ['a b']}}", "participants.sam.tokens[0]: expected printable ASCII without spaces"),
        ("participants: {sam: {tokens: ['********']}}", "participants.sam.tokens[0]: expected printable ASCII without spaces, and more"),
        ("participants: {sam: {tokens: ['sha256:12']}}", "participants.sam.tokens[0]: expected 64 lower case"),
        ("participants: {sam: {capabilities: [chat]}}", "participants.sam.capabilities[0]: got `chat`, expected a mapping"),
        ("participants: {sam: {capabilities: [{knd: chat}]}}", "participants.sam.capabilities[0].kind: missing, expected a text (line 1)"),
        ("participants: {sam: {capabilities: [{kind: []}]}}", "participants.sam.capabilities[0].kind: got a list, expected a text, or"),
        ("defaults: {capabilities: [{kind: 5}]}", "defaults.capabilities[0].kind: got `5`, expected a text"),
        ("participants: {'../x': {}}", 'participants["../x"]: expected a name without'),
        ("participants: {'a\\b': {}}", 'participants["a\\b"]: expected a name without'),
        ("participants: {gateway: {}}", "participants.gateway: `gateway` is reserved by the gateway"),
        ("participants: {'system:x': {}}", 'participants["system:x"]: `system:x` is reserved'),
        ("participants: {operator: {}}", "participants.operator: `operator` is reserved"),
        ("participants: {Operator: {}}", "participants.Operator: `Operator` is reserved"),
        ("participants: {ada: {}, Ada: {}}", "participants.Ada: looks like the participant `ada`"),
        ("participants: {\u0430lice: {}}", "participants.\u0430lice: mixes letters of several scripts"),
        ("participants: {sam: {auto_connect: yes}}", "participants.sam.auto_connect: got `yes`, expected `true` or `false`"),
        ("participants: {lake: {type: pipeline, tokens: [x]}}", "participants.lake.tokens: a `pipeline` participant is virtual"),
        ("streams: {a: {target: b}}", "streams.a.owner: missing"),
        ("streams: {a: {owner: b, tagret: c}}", "streams.a.tagret: unknown key; did you mean `target`?"),
        ("streams: {a: {owner: b, journal: all}}", "streams.a.journal: got `all`, expected one of `counts`, `full`, `off`"),
        ("streams: {a: {owner: b, target: {c: d}}}", "streams.a.target: got a mapping, expected a text that is not empty or a list"),
        ("streams: {stream-3: {owner: b}}", "streams.stream-3: looks like an id that the gateway assigns"),
        ("gateway_logging: {enabled: on}", "gateway_logging.enabled: got `on`, expected `true` or `false`"),
        ("participants: {a: }\nparticipants: {b: }", "participants: duplicate key, again in line 2"),
        ("participants: {a: [}", "not valid YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_path_and_line(problems: Problems, text: str, problem: str) -> None:
    (found,) = problems(text)
    assert found.startswith(problem)
    assert "secret" not in found and "1234" not in found


@pytest.mark.promise(
    "Configuration of a space",
    "an invalid file is rejected with every problem, its path and line, and no default replaces it",
)
def test_all_problems_are_reported_at_once_and_nothing_is_written(problems: Problems, tmp_path: Path) -> None:
    found = problems("space: {id: 5}\nparticipants:\n  a: {tokens: [5]}\n  b: {capabilities: x}\nstreams: []")
    assert len(found) == 4
    assert found[2].endswith("(line 4)")
    assert not (tmp_path / "tokens").exists()


@pytest.mark.promise("Configuration of a space", "an id cannot leave its directory")
@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_an_id_that_is_let_through_is_one_name_in_one_directory(text: str) -> None:
    if id_error(text) is None:
        path = Path("/a/tokens") / f"{text}.token"
        assert path.parent == Path("/a/tokens") and path.name == f"{text}.token"
        assert len(path.name.encode()) <= 255 and "\0" not in path.name
