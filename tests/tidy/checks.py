"""The project's rules as functions: each takes text and returns the violations.

A checker never touches the disk, so `test_tidy.py` can run it on the tree and on planted mistakes alike.
Forbidden strings are assembled from pieces, because this file is part of the repository.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

README_LINES_MAX = 150
ROOT_ENTRIES_MAX = 20
COVERAGE_ROWS_MIN = 30

IMPURE_MODULES = {"asyncio", "logging", "os", "random", "secrets", "socket", "threading", "time"}
IMPURE_NAMES = {"uuid1", "uuid4"}
CLOCK_CALLS = {"now", "today", "utcnow"}
VAGUE_NAMES = {"base", "common", "handlers", "helpers", "manager", "types", "utils"}
UNORDERED_CALLS = {"frozenset", "set"}
# These keep the order of what they wrap, so a set inside is still iterated as a set.
ORDER_KEEPING_CALLS = {"enumerate", "iter", "list", "tuple", "zip"}

_MACHINE_PATH = re.compile(r"(?<![\w.*-])/(?:work|farm)/")
_REGISTRIES = [
    "pypi" + ".org",
    "python" + "hosted",
    "npmjs" + ".org",
    "npmjs" + ".com",
    "yarn" + "pkg.com",
    "debian" + ".org",
    "maven" + ".org",
]
_INDEX_SETTING = re.compile(
    r"--(?:extra-)?index" + r"-url|^\s*(?:extra-)?index" + r"-url\s*=|^\s*-i\s+\w+:|--find" + r"-links"
)
_UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")
_TEST_REFERENCE = re.compile(r"`([^`\s]+\.py)::([^`]+)`")
_TABLE_RULE = re.compile(r"^\|(?:\s*:?-+:?\s*\|)+\s*$")


class Problem(NamedTuple):
    """One broken rule; line 0 means the file as a whole."""

    line: int
    message: str


def impure_code(source: str) -> list[Problem]:
    """Imports and calls that would let a clock, dice or the outside world into pure code."""
    tree = ast.parse(source)
    clocks = {"datetime", "date"} | set(_aliases(tree, "datetime"))
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                impure = [name.name for name in names if _top(name.name) in IMPURE_MODULES]
                found += [Problem(node.lineno, f"pure code imports `{name}`") for name in impure]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if _top(module) in IMPURE_MODULES:
                    found.append(Problem(node.lineno, f"pure code imports from `{module}`"))
                impure = [name.name for name in names if name.name in IMPURE_NAMES]
                found += [Problem(node.lineno, f"pure code imports `{name}`") for name in impure]
            case ast.Attribute(attr=attr) if attr in IMPURE_NAMES:
                found.append(Problem(node.lineno, f"pure code uses `{attr}`; take `entropy` instead"))
            case ast.Call(func=ast.Attribute(attr=attr, value=value)):
                if attr in CLOCK_CALLS and _last_name(value) in clocks:
                    found.append(Problem(node.lineno, f"pure code calls `{attr}()`; take `now` instead"))
            case _:
                pass
    return sorted(found)


def set_iteration(source: str) -> list[Problem]:
    """Loops straight over a set: their order differs between runs, so equal seeds would differ too."""
    return sorted(
        Problem(iterable.lineno, "iterates over a set; wrap it in `sorted(...)` or keep a dict")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)
        for iterable in [node.iter]
        if _is_set(iterable)
    )


def vague_name(path: str) -> list[Problem]:
    """A module or package, given by its path, whose name says nothing about what it holds."""
    parts = path.removesuffix(".py").split("/")
    return [Problem(0, f"`{part}` is not a noun of this project") for part in parts if part in VAGUE_NAMES]


def missing_docstring(source: str) -> list[Problem]:
    """A pure module that does not open with what it owns."""
    if ast.get_docstring(ast.parse(source)):
        return []
    return [Problem(1, "the module does not start with a docstring")]


def machine_traces(text: str) -> list[Problem]:
    """Paths, package registries and index settings of the machine a file was written on."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if _MACHINE_PATH.search(line):
            found.append(Problem(number, "names a path of one machine"))
        found += [Problem(number, f"names the registry `{host}`") for host in _REGISTRIES if host in line]
        if _INDEX_SETTING.search(line):
            found.append(Problem(number, "chooses a package index; that is up to the machine"))
    return found


def unfinished_work(source: str) -> list[Problem]:
    """Markers of work that was left for later."""
    return [
        Problem(number, f"holds `{marker.group()}`: finish it or leave it out")
        for number, line in enumerate(source.splitlines(), 1)
        if (marker := _UNFINISHED.search(line))
    ]


def fixed_sleeps(source: str) -> list[Problem]:
    """Sleeps for a fixed time, which make a test slow on a good day and wrong on a bad one."""
    if "sleep" not in source:  # to parse every file of the tests costs seconds
        return []
    tree = ast.parse(source)
    modules = {"time", "asyncio"} | set(_module_aliases(tree, {"time", "asyncio"}))
    functions = {
        alias for module in ("time", "asyncio") for alias, name in _aliases(tree, module).items() if name == "sleep"
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(attr="sleep", value=ast.Name(id=name)) if name in modules:
                pass
            case ast.Name(id=name) if name in functions:
                pass
            case _:
                continue
        arguments = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "delay")]
        if any(_is_positive_literal(argument) for argument in arguments):
            found.append(Problem(node.lineno, "sleeps for a fixed time; wait for the event itself"))
    return sorted(found)


def raw_transport_writes(source: str) -> list[Problem]:
    """Writes to a transport that go around the outbox, and so around its bounds."""
    if "transport" not in source:
        return []
    return sorted(
        Problem(node.lineno, f"calls `.{node.func.attr}()` on a transport; go through the outbox")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"write", "writelines"}
        and _last_name(node.func.value).endswith("transport")
    )


def coverage_rows(markdown: str) -> list[tuple[int, str]]:
    """The rows of every table in a Markdown text, without their headers, as (line number, row)."""
    lines = [line.strip() for line in markdown.splitlines()]
    rules = {index for index, line in enumerate(lines) if _TABLE_RULE.match(line)}
    return [
        (index + 1, line)
        for index, line in enumerate(lines)
        if line.startswith("|") and index not in rules and index + 1 not in rules
    ]


def coverage_gaps(markdown: str, read: Callable[[str], str | None]) -> list[Problem]:
    """Rows of the coverage table without a test, or with one that does not exist.

    `read` returns the text of a file in the repository, or `None` where there is no such file.
    """
    rows = coverage_rows(markdown)
    found = []
    if len(rows) < COVERAGE_ROWS_MIN:
        found.append(Problem(0, f"{len(rows)} rows, at least {COVERAGE_ROWS_MIN} expected"))
    for number, row in rows:
        references = _TEST_REFERENCE.findall(row)
        if not references:
            found.append(Problem(number, "the row names no test; write `path::name` in backticks"))
        for path, name in references:
            source = read(path)
            if source is None:
                found.append(Problem(number, f"there is no file `{path}`"))
            elif name.partition("[")[0] not in _test_names(source):
                found.append(Problem(number, f"`{path}` defines no `{name}`"))
    return found


def long_readme(text: str) -> list[Problem]:
    """A README that became a manual."""
    count = len(text.splitlines())
    if count < README_LINES_MAX:
        return []
    return [Problem(0, f"{count} lines, must stay under {README_LINES_MAX}: move detail to docs/")]


def crowded_root(paths: Iterable[str]) -> list[Problem]:
    """Too many visible entries at the root for a newcomer to take in."""
    entries = sorted({path.split("/")[0] for path in paths if not path.startswith(".")})
    if len(entries) <= ROOT_ENTRIES_MAX:
        return []
    return [Problem(0, f"{len(entries)} entries, at most {ROOT_ENTRIES_MAX}: {', '.join(entries)}")]


def _top(module: str) -> str:
    return module.partition(".")[0]


def _last_name(node: ast.expr) -> str:
    """The last word of a dotted name: `c` of `a.b.c`; empty for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _aliases(tree: ast.Module, module: str) -> dict[str, str]:
    """What `from module import name as alias` binds, as alias -> name."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def _module_aliases(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """The names that `import module as name` binds for one of the modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.asname for alias in node.names if alias.name in modules and alias.asname)


def _is_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)) if name in UNORDERED_CALLS:
            return True
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in ORDER_KEEPING_CALLS:
            return any(_is_set(argument) for argument in arguments)
        case _:
            return False


def _is_positive_literal(node: ast.expr) -> bool:
    """Whether an expression is made of numbers alone, and not just a zero."""
    if any(isinstance(part, ast.Name | ast.Attribute | ast.Call) for part in ast.walk(node)):
        return False
    return not (isinstance(node, ast.Constant) and node.value == 0)


@cache
def _test_names(source: str) -> set[str]:
    """Every name a test reference may use: functions, classes, methods, and stateful tests by assignment."""
    names = set()
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name, body=body):
                methods = [part for part in body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
                names |= {name, *(f"{name}::{method.name}" for method in methods)}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute(attr="TestCase")):
                names |= {name, f"{name}::runTest"}
            case _:
                pass
    return names
