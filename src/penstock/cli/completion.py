"""`penstock completion bash|zsh|fish`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_json


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that completes.")],
    *,
    output: Output = PLAIN,
) -> int:
    """Print the script that lets a shell complete commands and options. It is made from the commands themselves.

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
    return 0
