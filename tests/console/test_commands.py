"""Every command that the console shows exists."""

from __future__ import annotations

import re
import shlex

import pytest

from penstock.cli import build
from tests.paths import ROOT

SOURCES = ROOT / "console" / "src"
COMMAND = re.compile(r"""<Command text=(?:"([^"]+)"|\{`([^`]+)`\}|\{'([^']+)'\})""")


def shown_commands() -> list[str]:
    """The `penstock` commands in the pages."""
    texts = ["".join(found) for file in sorted(SOURCES.rglob("*.tsx")) for found in COMMAND.findall(file.read_text())]
    return [
        command.strip() for text in texts for command in text.split("&&") if command.strip().startswith("penstock ")
    ]


@pytest.mark.promise("SDK and command line", "every command that the console shows is valid")
def test_every_command_in_the_pages_is_valid() -> None:
    commands = shown_commands()
    assert len(commands) >= 6
    for command in commands:
        words = shlex.split(command)[1:]
        build(words).parse_args(words, exit_on_error=False)
