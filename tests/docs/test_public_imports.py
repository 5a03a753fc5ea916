"""Documents and examples import only public paths, so copied code keeps working when modules move."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.documents import BLOCK
from tests.paths import ROOT

PUBLIC = {"client", "kernel", "relay", "spark", "streamservice", "testing"}
"""Modules of `penstock` whose names are stable."""
IMPORT = re.compile(r"^\s*(?:from\s+(penstock[\w.]*)\s+import|import\s+(penstock[\w.]*))", re.M)


def private_imports(code: str) -> list[str]:
    """The modules of Penstock that a piece of code imports and that have no stable path."""
    modules = [one or other for one, other in IMPORT.findall(code)]
    return [module for module in modules if module != "penstock" and module.removeprefix("penstock.") not in PUBLIC]


def pieces() -> Iterator[tuple[str, str]]:
    """All Python code that documents and examples show, with its file."""
    for file in [
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("examples/**/*.md")),
    ]:
        for block in BLOCK.finditer(file.read_text()):
            yield str(file.relative_to(ROOT)), block["code"]
    for file in sorted(ROOT.glob("examples/**/*.py")):
        yield str(file.relative_to(ROOT)), file.read_text()
    for file in sorted(ROOT.glob("examples/**/*.ipynb")):
        for cell in json.loads(file.read_text())["cells"]:
            yield str(file.relative_to(ROOT)), "".join(cell["source"])


@pytest.mark.promise("SDK and command line", "documents and examples import only public paths")
def test_documents_and_examples_import_only_public_paths():
    assert [(file, module) for file, code in pieces() for module in private_imports(code)] == []


def test_a_private_import_would_be_found():
    code = "import penstock\n\nfrom penstock.core.queue.policy import Policy\nimport penstock.server.up\n"
    assert private_imports(code) == ["penstock.core.queue.policy", "penstock.server.up"]
    assert private_imports("from penstock.testing import World\nfrom penstock import connect\n") == []


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_module_says_what_it_exports(name):
    module = importlib.import_module(f"penstock.{name}")
    assert len(module.__all__) == len(set(module.__all__)) > 1
    assert [missing for missing in module.__all__ if not hasattr(module, missing)] == []


def test_code_is_found_in_every_kind_of_document():
    assert {Path(file).suffix for file, _ in pieces()} >= {".md", ".py", ".ipynb"}
    assert all(ast.parse(code) for file, code in pieces() if file.endswith(".py"))
