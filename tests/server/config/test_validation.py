"""Every mismatch between values and types, with its path, its nearest name and no secret."""

from typing import Any

import pytest
from msgspec import inspect

from penstock.server.config.sections import Sections
from penstock.server.config.validation import find_errors, shorten, suggestion

TYPE = inspect.type_info(Sections)


def errors(value: Any, secret: str = "") -> list[tuple[str, str]]:
    found = find_errors(value, TYPE, (), lambda path: bool(secret) and secret in path)
    return [(".".join(map(str, path)), message) for path, message in found]


def test_all_errors_are_found_at_once() -> None:
    value = {"streams": {"maxDepth": "x", "maxDepht": 1}, "listen": [], "nothing": 1}
    assert [path for path, _ in errors(value)] == [
        "streams.maxDepth",
        "streams.maxDepht",
        "listen",
        "nothing",
    ]


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ({"streams": {"retry": {"baseMs": "x"}}}, "streams.retry.baseMs", "got `x`, expected a whole number"),
        ({"streams": {"maxDepth": True}}, "streams.maxDepth", "got `true`, expected a whole number"),
        ({"streams": {"maxDepth": 1.0}}, "streams.maxDepth", "got `1.0`, expected a whole number"),
        ({"streams": {"maxDepth": -1}}, "streams.maxDepth", "got `-1`"),
        ({"streams": {"retry": 5}}, "streams.retry", "got `5`, expected"),
        ({"streams": {"overflow": "explode"}}, "streams.overflow", "got `explode`, expected one of"),
        ({"streams": {"perStreamCaps": {"": {}}}}, "streams.perStreamCaps", "holds an empty key"),
        ({"auth": {"tokens": [{}]}}, "auth.tokens.0.token", "missing, expected a text"),
        (
            {"pipeline": {"alerts": {"rules": [{"id": "a"}]}}},
            "pipeline.alerts.rules.0.kind",
            "missing, expected one of",
        ),
        (
            {"pipeline": {"alerts": {"rules": [{"kind": "storm", "id": "a"}]}}},
            "pipeline.alerts.rules.0.kind",
            "got `storm`, expected one of",
        ),
        (
            {"pipeline": {"alerts": {"rules": [{"kind": "rate", "id": "a", "abvoe": 1}]}}},
            "pipeline.alerts.rules.0.abvoe",
            "unknown key; did you mean `above`?",
        ),
    ],
)
def test_an_error_has_a_deep_path_and_says_what_is_expected(value: Any, path: str, message: str) -> None:
    found = dict(errors(value))
    assert path in found and found[path].startswith(message)


def test_a_valid_value_has_no_error() -> None:
    value = {
        "streams": {"retry": None, "perStreamCaps": {"a/*": {"retry": {"baseMs": 5}}}},
        "pipeline": {"nice": 0},
    }
    assert errors(value) == []


def test_a_secret_is_never_quoted() -> None:
    ((_, message),) = errors({"auth": {"tokens": [{"token": 12345, "scopes": ["admin:*"]}]}}, secret="token")
    assert "12345" not in message and message.startswith("got a value, expected")


def test_the_nearest_key_ignores_case_and_separators() -> None:
    assert suggestion("max_depth", ["maxDepth", "maxBytes"]) == "; did you mean `maxDepth`?"
    assert suggestion("zzz", ["a", "b"]) == "; known keys are `a`, `b`"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        ({}, "a mapping"),
        ([], "a list"),
        (False, "`false`"),
        ("a\nb", "`'a\\nb'`"),
        ("x" * 99, f"`{'x' * 40}…`"),
    ],
)
def test_values_are_quoted_short_and_printable(value: Any, text: str) -> None:
    assert shorten(value) == text
