"""Every command that the console shows exists."""

from __future__ import annotations

import re
import shlex

import pytest

from penstock.cli import build
from tests.paths import ROOT

SOURCES = ROOT / "console" / "src"
TOLD = re.compile(r"""<Command text=(?:"([^"]+)"|\{`([^`]+)`\}|\{'([^']+)'\})""")


def told() -> list[str]:
    """What the pages offer for copying, a command a line."""
    texts = ["".join(found) for file in sorted(SOURCES.rglob("*.tsx")) for found in TOLD.findall(file.read_text())]
    return [
        command.strip() for text in texts for command in text.split("&&") if command.strip().startswith("penstock ")
    ]


@pytest.mark.promise("SDK and command line", "every command that the console shows is valid")
def test_every_command_that_a_page_offers_can_be_typed() -> None:
    commands = told()
    assert len(commands) >= 6
    for command in commands:
        words = shlex.split(command)[1:]
        build(words).parse_args(words, exit_on_error=False)
