"""The threat model names limits and tests that exist."""

from __future__ import annotations

import ast
import re

import msgspec
import pytest

from penstock.core.limits import Limits
from penstock.server.config.sections import RelaySection
from tests.paths import ROOT

PAGE = (ROOT / "docs/explain/threat-model.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))
FIELDS = {"limits": Limits, "relay": RelaySection}


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_each_named_test_exists(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert not test or test in names


def test_each_named_limit_exists_and_each_attack_names_a_test() -> None:
    for section, name in re.findall(r"`(limits|relay)\.(\w+)`", PAGE):
        assert name in {field.encode_name for field in msgspec.structs.fields(FIELDS[section])}, f"{section}.{name}"
    attacks = [
        line for line in PAGE.splitlines() if line.startswith("| ") and line.count(" | ") == 3 and "---" not in line
    ]
    bare = [line for line in attacks if "tests/" not in line and not line.startswith("| attack |")]
    assert len(attacks) > 25 and bare == []
