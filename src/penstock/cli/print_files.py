"""`penstock print` and `penstock completion`: deployment files, references of this version, and the completion of a shell."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from penstock.cli.options import PLAIN, Output, print_text
from penstock.cli.output import print_json

print_ = App(name="print", help="Print deployment files, alert rules, a dashboard and references.")


@print_.command
def systemd(
    *,
    program: Annotated[str | None, Parameter(help="Path of the installed command; default: the running one.")] = None,
    data: Annotated[str, Parameter(help="The data directory.")] = "/var/lib/penstock",
    config: Annotated[str | None, Parameter(help="The config file.")] = None,
    user: Annotated[str, Parameter(help="User of the server.")] = "penstock",
    output: Output = PLAIN,
) -> None:
    """Print a hardened systemd unit with time for a drain.

    For example:

      penstock print systemd > /etc/systemd/system/penstock.service
      penstock print systemd --program /opt/penstock/bin/penstock --config /etc/penstock.yaml
    """
    from penstock.server.ops.reference_pages import systemd_unit

    found = program or str(Path(sys.executable).with_name("penstock"))
    print_text(systemd_unit(found, data=data, config=config, user=user), "text", output)


_PAGES = {
    "container": ("ops.reference_pages:containerfile", "a Containerfile for a checkout", " > Containerfile"),
    "alerts": ("metrics.grafana:alert_rules", "alert rules for Prometheus", " > penstock-alerts.yaml"),
    "dashboard": ("metrics.grafana:dashboard", "a dashboard for Grafana", " > penstock-dashboard.json"),
    "metrics": ("ops.reference_pages:metrics_reference", "the reference of every metric, as Markdown", ""),
    "http": ("ops.reference_pages:http_reference", "the reference of every HTTP route, as Markdown", ""),
    "errors": ("config.reference:error_reference", "the reference of every error code, as Markdown", ""),
    "cli": ("penstock.cli.print_files:cli_reference", "the reference of every command, as Markdown", ""),
}
"""Texts without options: the function that makes each, below `penstock.server`; what it is; the end of the example."""


def _add_page(name: str, place: str, what: str, example: str) -> None:
    def command(*, output: Output = PLAIN) -> None:
        module, _, function = place.partition(":")
        path = module if module.startswith("penstock.") else f"penstock.server.{module}"
        print_text(getattr(importlib.import_module(path), function)(), "text", output)

    command.__doc__ = f"Print {what}.\n\nFor example:\n\n  penstock print {name}{example}\n"
    print_.command(command, name=name)


for _name, _page in _PAGES.items():
    _add_page(_name, *_page)


_STARTED_AS = re.compile(r"^(penstock.*?) -m [\w.]+", re.M)
"""How this process was started; not part of a usage line."""
_EXAMPLE = re.compile(r"For example:\n\n((?:  .*\n|\n(?=  ))+)")


def cli_reference() -> str:
    """Every command with its options, in Markdown."""
    from penstock.cli import CONFIG_COMMANDS, build

    names = [name for name in build().resolved_commands() if not name.startswith("-")]
    # A command that is named shows its docstring, not the line of the list.
    app = build([*names, *CONFIG_COMMANDS])
    text = str(app.generate_docs(output_format="markdown", recursive=True))
    body = text[text.index("## Table of Contents") :].replace("## Table of Contents\n", "", 1)
    body = _STARTED_AS.sub(r"\1", body)
    head = (Path(__file__).parent / "templates" / "commands_page.txt").read_text("utf-8")
    return head + _EXAMPLE.sub(_fenced, body).rstrip("\n") + "\n"


def _fenced(match: re.Match[str]) -> str:
    lines = [line.removeprefix("  ") for line in match[1].rstrip("\n").split("\n")]
    return "For example:\n\n```text\n" + "\n".join(lines) + "\n```\n"


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")], *, output: Output = PLAIN
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
