"""`penstock print systemd|container|alerts|dashboard|metrics|http|errors|cli`: deployment files and references of this version."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from penstock.cli.options import PLAIN, Output
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
    from penstock.server.ops.deployment import systemd_unit

    found = program or str(Path(sys.executable).with_name("penstock"))
    _out(systemd_unit(found, data=data, config=config, user=user), output)


_PAGES = {
    "container": ("ops.deployment:containerfile", "a Containerfile for a checkout", " > Containerfile"),
    "alerts": ("metrics.grafana:alert_rules", "alert rules for Prometheus", " > penstock-alerts.yaml"),
    "dashboard": ("metrics.grafana:dashboard", "a dashboard for Grafana", " > penstock-dashboard.json"),
    "metrics": ("ops.reference_pages:metrics_reference", "the reference of every metric, as Markdown", ""),
    "http": ("ops.reference_pages:http_reference", "the reference of every HTTP route, as Markdown", ""),
    "errors": ("config.reference:error_reference", "the reference of every error code, as Markdown", ""),
    "cli": ("penstock.cli.reference:cli_reference", "the reference of every command, as Markdown", ""),
}
"""Texts without options: the function that makes each, below `penstock.server`; what it is; the end of the example."""


def _add_page(name: str, place: str, what: str, example: str) -> None:
    def command(*, output: Output = PLAIN) -> None:
        module, _, function = place.partition(":")
        path = module if module.startswith("penstock.") else f"penstock.server.{module}"
        _out(getattr(importlib.import_module(path), function)(), output)

    command.__doc__ = f"Print {what}.\n\nFor example:\n\n  penstock print {name}{example}\n"
    print_.command(command, name=name)


for _name, _page in _PAGES.items():
    _add_page(_name, *_page)


def _out(text: str, output: Output) -> None:
    """Print the text unchanged, so that it can go into a file."""
    if output.as_json:
        print_json({"text": text})
    else:
        sys.stdout.write(text)
