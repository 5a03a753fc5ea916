"""The tree keeps the rules of `layout.py`, and each rule catches a planted mistake."""

import re
from functools import cache

import pytest

from tests.tidy import layout
from tests.tidy.layout import Sources

SRC = "src/penstock/"
LONG_ENOUGH = "x = 1\n" * layout.LINES_MIN


@cache
def verdicts() -> dict[str, list[str]]:
    return layout.judge(layout.tree(), layout.allowed())


@pytest.mark.parametrize("rule", layout.RULES)
def test_the_tree_keeps_the_rule(rule: str) -> None:
    problems = verdicts()[rule]
    assert not problems, "\n" + "\n".join(problems)


def test_the_allow_list_names_rules_that_exist() -> None:
    assert set(layout.allowed()) <= set(layout.RULES)


def test_an_entry_that_is_not_needed_fails() -> None:
    verdict = layout.judge({}, {"gerund_modules": ["src/penstock/core/settling.py"]})
    assert "remove it" in verdict["gerund_modules"][0]


def match(arm: str) -> str:
    return f"def f(x):\n    match x:\n        case 1: return 1\n        case _:\n            {arm}\n"


CONTRACT = '[[tool.importlinter.contracts]]\ncontainers = ["penstock.a"]\nexhaustive = %s\n'


PLANTED: list[tuple[str, Sources, str]] = [
    (
        "crowded_folders",
        {f"{SRC}core/m{n}.py": "" for n in range(layout.FOLDER_MAX + 1)},
        "src/penstock/core",
    ),
    (
        "prefixed_siblings",
        {f"{SRC}server/relay{name}.py": "" for name in ("", "_hub", "_process")},
        "src/penstock/server/relay_*",
    ),
    ("odd_sizes", {f"{SRC}core/crumb.py": "x = 1\n"}, "src/penstock/core/crumb.py"),
    ("odd_sizes", {f"{SRC}core/giant.py": "x = 1\n" * (layout.LINES_MAX + 1)}, "src/penstock/core/giant.py"),
    ("odd_sizes", {f"{SRC}core/crumb.py": "# size: short\n"}, "src/penstock/core/crumb.py"),
    ("repeated_classes", {f"{SRC}a.py": "class Frame: ...", f"{SRC}b.py": "class Frame: ..."}, "Frame"),
    ("gerund_modules", {f"{SRC}core/settling.py": LONG_ENOUGH}, "src/penstock/core/settling.py"),
    ("gerund_modules", {f"{SRC}core/lease_settling.py": LONG_ENOUGH}, "src/penstock/core/lease_settling.py"),
    (
        "repeated_modules",
        {f"{SRC}core/limits.py": "", f"{SRC}core/relay/limits.py": ""},
        f"{SRC}core/relay/limits.py",
    ),
    ("banned_identifiers", {f"{SRC}a.py": "class FrontDesk: ..."}, f"{SRC}a.py:FrontDesk"),
    ("banned_identifiers", {f"{SRC}a.py": "def tell_all(x): ..."}, f"{SRC}a.py:tell_all"),
    ("banned_identifiers", {f"{SRC}a.py": "self._crowd = 1"}, f"{SRC}a.py:_crowd"),
    ("banned_identifiers", {f"{SRC}a.py": "class A:\n    lane: int\n"}, f"{SRC}a.py:lane"),
    ("silent_defaults", {f"{SRC}a.py": match("purge()")}, f"{SRC}a.py:f"),
    (
        "prefix_dispatch",
        {f"{SRC}server/http/a.py": "route.name.startswith('space')"},
        f"{SRC}server/http/a.py:name",
    ),
    (
        "missing_mirrors",
        {f"{SRC}core/queue/settle.py": "x = 1\n" * layout.MIRRORED_MIN},
        f"{SRC}core/queue/settle.py",
    ),
    ("missing_mirrors", {f"{SRC}top.py": "x = 1\n" * layout.MIRRORED_MIN}, f"{SRC}top.py"),
    (
        "old_names",
        {f"{SRC}core/enqueue.py": "", f"{SRC}a.py": "from penstock.core import enqueue as intake"},
        f"{SRC}a.py:intake",
    ),
    ("dead_mentions", {f"{SRC}a.py": '"""See core/intake.py."""'}, f"{SRC}a.py:core/intake.py"),
    ("coy_prose", {"docs/a.md": "Nobody waits for it."}, "docs/a.md:nobody"),
    ("coy_prose", {f"{SRC}a.py": 'log("a misfit was `mended`")'}, f"{SRC}a.py:misfit"),
    ("long_lines", {"docs/a.md": "word " * 30}, "docs/a.md"),
    ("loose_contracts", {f"{SRC}a/b/c.py": "", f"{SRC}a/d/e.py": "", f"{SRC}a/f.py": ""}, "penstock.a"),
    (
        "loose_contracts",
        {
            f"{SRC}a/b/c.py": "",
            f"{SRC}a/d/e.py": "",
            f"{SRC}a/f.py": "",
            "pyproject.toml": CONTRACT % "false",
        },
        "penstock.a",
    ),
    ("over_budget", {f"{SRC}a.py": "x = 1\n" * (layout.SRC_LINES_MAX + 1)}, "src"),
    ("over_budget", {f"{SRC}bench/a.py": "x = 1\n" * (layout.BENCH_LINES_MAX + 1)}, "bench"),
]

HARMLESS: list[tuple[str, Sources]] = [
    (
        "crowded_folders",
        {f"{SRC}core/m{n}.py": "" for n in range(layout.FOLDER_MAX)} | {f"{SRC}core/__init__.py": ""},
    ),
    ("prefixed_siblings", {f"{SRC}server/relay_hub.py": "", f"{SRC}server/relay_process.py": ""}),
    (
        "odd_sizes",
        {f"{SRC}core/crumb.py": "# size: the one place for this value\n", f"{SRC}core/a.py": LONG_ENOUGH},
    ),
    ("repeated_classes", {f"{SRC}a.py": "class _Frame: ...", f"{SRC}b.py": "class _Frame: ..."}),
    ("gerund_modules", {f"{SRC}core/staging.py": LONG_ENOUGH, f"{SRC}core/settle.py": LONG_ENOUGH}),
    ("repeated_modules", {f"{SRC}core/queue/machine.py": "", f"{SRC}core/relay/machine.py": ""}),
    ("banned_identifiers", {f"{SRC}a.py": "challenge = planet = hearing = 1\ncure_of(x).cure"}),
    (
        "silent_defaults",
        {f"{SRC}a.py": "".join(map(match, ("assert_never(x)", "raise E", "return refusal", "pass")))},
    ),
    ("prefix_dispatch", {f"{SRC}server/http/a.py": "origin.startswith('https')"}),
    (
        "missing_mirrors",
        {
            f"{SRC}core/queue/settle.py": "x = 1\n" * layout.MIRRORED_MIN,
            "tests/core/queue/test_settle.py": "",
            f"{SRC}top.py": "x = 1\n" * layout.MIRRORED_MIN,
            "tests/test_top.py": "",
            f"{SRC}small.py": "x = 1\n",
        },
    ),
    ("old_names", {f"{SRC}a.py": "from penstock.core.x import Thing as OtherThing\nimport numpy as np"}),
    ("dead_mentions", {f"{SRC}core/a.py": '"""See core/a.py and examples/DIR/x.py."""'}),
    ("coy_prose", {"docs/a.md": "The server waits."}),
    ("coy_prose", {"docs/a.md": "It logs `schema.misfit`.", f"{SRC}a.py": 'log("journal.mended")'}),
    (
        "loose_contracts",
        {f"{SRC}a/b/c.py": "", f"{SRC}a/d/e.py": "", f"{SRC}a/f.py": "", "pyproject.toml": CONTRACT % "true"},
    ),
    ("long_lines", {"docs/a.md": "| " + "word " * 30 + "|\n```\n" + "x" * 200 + "\n```\n"}),
]


@pytest.mark.parametrize(("rule", "sources", "what"), PLANTED)
def test_a_rule_catches_a_planted_mistake(rule: str, sources: Sources, what: str) -> None:
    assert what in [found for found, _ in layout.RULES[rule](sources)]


@pytest.mark.parametrize(("rule", "sources"), HARMLESS)
def test_a_rule_passes_what_is_harmless(rule: str, sources: Sources) -> None:
    assert list(layout.RULES[rule](sources)) == []


def test_every_rule_has_a_planted_mistake() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(layout.RULES)


def test_the_files_to_read_first_are_short() -> None:
    text = layout.tree()["ARCHITECTURE.md"].partition("## Read these six files first")[2]
    files = re.findall(r"^\d\. `([\w/]+\.py)`", text, re.MULTILINE)
    assert len(files) == 6
    assert sum(len(layout.tree()[f"{SRC}{file}"].splitlines()) for file in files) < 1_500


def test_the_glossary_is_short() -> None:
    rows = layout.tree()["ARCHITECTURE.md"].partition("## Words")[2].partition("\n## ")[0].count("\n| ")
    assert rows - 2 <= 15, "a name that needs an entry does not explain itself"


def test_every_folder_is_in_the_tree_of_the_architecture() -> None:
    shown = layout.tree()["ARCHITECTURE.md"].partition("## The tree")[2].partition("\n## ")[0]
    packages = {path.split("/")[2] for path in layout.tree() if path.startswith(SRC) and path.count("/") > 2}
    assert [name for name in sorted(packages - {"console", "schemas"}) if f"{name}/" not in shown] == []
