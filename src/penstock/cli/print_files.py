"""`penstock print systemd|container|alerts|dashboard|metrics|http|errors|cli`: deployment files and references of this version."""

from __future__ import annotations

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


@print_.command
def container(*, output: Output = PLAIN) -> None:
    """Print a Containerfile for a checkout.

    For example:

      penstock print container > Containerfile
    """
    from penstock.server.ops.deployment import containerfile

    _out(containerfile(), output)


@print_.command
def alerts(*, output: Output = PLAIN) -> None:
    """Print alert rules for Prometheus.

    For example:

      penstock print alerts > penstock-alerts.yaml
    """
    from penstock.server.metrics.alert_rules import alert_rules

    _out(alert_rules(), output)


@print_.command
def dashboard(*, output: Output = PLAIN) -> None:
    """Print a dashboard for Grafana.

    For example:

      penstock print dashboard > penstock-dashboard.json
    """
    from penstock.server.metrics.grafana import dashboard as board

    _out(board(), output)


@print_.command
def metrics(*, output: Output = PLAIN) -> None:
    """Print the reference of every metric, as Markdown.

    For example:

      penstock print metrics
    """
    from penstock.server.ops.reference_pages import metrics_reference

    _out(metrics_reference(), output)


@print_.command
def http(*, output: Output = PLAIN) -> None:
    """Print the reference of every HTTP route, as Markdown.

    For example:

      penstock print http
    """
    from penstock.server.ops.reference_pages import http_reference

    _out(http_reference(), output)


@print_.command
def errors(*, output: Output = PLAIN) -> None:
    """Print the reference of every error code, as Markdown.

    For example:

      penstock print errors
    """
    from penstock.server.config.reference import error_reference

    _out(error_reference(), output)


@print_.command
def cli(*, output: Output = PLAIN) -> None:
    """Print the reference of every command, as Markdown.

    For example:

      penstock print cli
    """
    from penstock.cli.reference import cli_reference

    _out(cli_reference(), output)


def _out(text: str, output: Output) -> None:
    """Print the text unchanged, so that it can go into a file."""
    if output.as_json:
        print_json({"text": text})
    else:
        sys.stdout.write(text)
