"""The page `docs/reference/coverage.md`, printed from the `promise` markers on the tests.

    python -m tests.tidy.promises > docs/reference/coverage.md

A test that fails when a promise is broken carries `@pytest.mark.promise(section, text)`. Tests with equal texts share a row. The tests are
parsed, not imported, so printing the page needs neither Spark nor a browser.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.paths import ROOT

SECTIONS = (
    "Foundations",
    "Invariants",
    "Streams",
    "Delivery",
    "Idempotency",
    "Queue protocols",
    "Views",
    "Security",
    "SDK and command line",
    "Stream Kernel",
    "Defects of the upstream program, fixed here",
    "Journal",
    "The lake",
    "Spark: source and sinks",
    "Spark: pipeline",
    "Limits, reload and HTTP details",
    "Schemas, skills and observability",
    "Benchmarks and robustness",
    "Hold under hostile conditions",
    "Triggers",
    "The document's testing strategy",
    "Tenants",
    "Capabilities and log files of a gateway",
    "Configuration of a space",
    "Space client",
    "Targeted delivery: the proposal, line by line",
    "MEW gateway",
    "Documentation of spaces",
    "Token streams: bytes, keys and signatures",
    "Token streams: publisher and reader",
    "Relay",
    "Cluster",
    "Administration",
    "Console",
    "Operations",
    "Cells",
    "Documentation",
    "Tail and SQL for administrators",
)
"""In the order of the page. A marker that names another section is an error, so a typo cannot hide a promise."""

HEAD = """# Promises and their tests

Each row is a promise and the tests that fail when it is broken. `make test` and `make test-more` run them.
This page is printed from the `promise` markers on the tests; CONTRIBUTING.md has the command.
"""

Page = dict[str, dict[str, list[str]]]
"""Section, promise, tests."""


def marks_of(node: ast.expr) -> Iterator[tuple[str, str]]:
    """The promises of one decorator, or of the list in `TestX.pytestmark = [...]`."""
    match node:
        case ast.List(elts=elements):
            for element in elements:
                yield from marks_of(element)
        case ast.Call(func=ast.Attribute(attr="promise"), args=[ast.Constant(value=section), ast.Constant(value=text)]):
            yield str(section), str(text)
        case ast.Call(func=ast.Attribute(attr="promise")):
            raise ValueError(f"line {node.lineno}: a promise takes two literals: its section and its text")


def promises_of(source: str) -> Iterator[tuple[str, str, str]]:
    """Every (section, promise, name of the test) in one test file, in the order of the file."""
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _decorated(node, node.name)
            case ast.ClassDef():
                yield from _decorated(node, node.name)
                for part in node.body:
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield from _decorated(part, f"{node.name}::{part.name}")
            case ast.Assign(targets=[ast.Attribute(attr="pytestmark", value=ast.Name(id=name))], value=value):
                yield from ((section, text, name) for section, text in marks_of(value))
            case _:
                pass


def _decorated(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str
) -> Iterator[tuple[str, str, str]]:
    for decorator in node.decorator_list:
        yield from ((section, text, name) for section, text in marks_of(decorator))


def gather(files: Iterable[tuple[str, str]]) -> Page:
    """The promises of all test files, given as (path, source)."""
    page: Page = {section: {} for section in SECTIONS}
    for path, source in files:
        for section, text, name in promises_of(source):
            if section not in page:
                raise ValueError(f"{path}: `{name}` names the section `{section}`, which is not in SECTIONS")
            page[section].setdefault(text, []).append(f"{path}::{name}")
    return page


def render(page: Page) -> str:
    """The page as Markdown."""
    parts = [HEAD]
    for section, rows in page.items():
        parts.append(f"\n## {section}\n\n| promise | tests |\n| --- | --- |\n")
        for text, tests in rows.items():
            cell = text.replace("|", "\\|")
            parts.append(f"| {cell} | {', '.join(f'`{test}`' for test in tests)} |\n")
    return "".join(parts)


def sources(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Every test file as (path from the root, source)."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(render(gather(sources())), end="")
