"""The reference and the shell completion of the command line, both made from the commands themselves."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from cyclopts import Parameter

from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_json

_HEAD = """\
# Commands

*Printed by `penstock print cli` from the commands in `src/penstock/cli`; do not edit.*

Every command has `--json` and `--help`. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 a check failed, 130 interrupted. An
error prints its code and a hint on stderr. Commands use the server on `./penstock-data` with its operator token, or
`PENSTOCK_URL` and `PENSTOCK_TOKEN`.
"""
_STARTED_AS = re.compile(r"^(penstock.*?) -m [\w.]+", re.M)
"""How this process was started; not part of a usage line."""
_EXAMPLE = re.compile(r"For example:\n\n((?:  .*\n|\n(?=  ))+)")


def cli_reference() -> str:
    """Every command with its options, in Markdown."""
    from penstock.cli import build

    names = [name for name in build().resolved_commands() if not name.startswith("-")]
    # A command that is named shows its docstring, not the line of the list.
    app = build([*names, *_CONFIG])
    text = str(app.generate_docs(output_format="markdown", recursive=True))
    body = text[text.index("## Table of Contents") :].replace("## Table of Contents\n", "", 1)
    body = _STARTED_AS.sub(r"\1", body)
    return _HEAD + _EXAMPLE.sub(_fenced, body).rstrip("\n") + "\n"


_CONFIG = ("check", "show", "doc", "reload")


def _fenced(match: re.Match[str]) -> str:
    lines = [line.removeprefix("  ") for line in match[1].rstrip("\n").split("\n")]
    return "For example:\n\n```text\n" + "\n".join(lines) + "\n```\n"


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")],
    *,
    output: Output = PLAIN,
) -> None:
    """Print a script with which a shell completes commands and options.

    For example:

      penstock completion bash > ~/.local/share/bash-completion/completions/penstock
      penstock completion zsh > ~/.zfunc/_penstock
      penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from penstock.cli import build

    script = build().generate_completion(shell=shell)
    if output.as_json:
        print_json({"shell": shell, "script": script})
    else:
        print(script, end="" if script.endswith("\n") else "\n")
