"""`penstock gateway start`: the words of upstream's command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from penstock.cli.options import PLAIN, Output

gateway = App(name="gateway", help="Run a MEW space alone.")


@gateway.command
def start(
    *,
    port: Annotated[
        int, Parameter(name=["--port", "-p"], help="Port to listen on; 0 takes a free one.")
    ] = 8080,
    space_config: Annotated[
        Path, Parameter(name=["--space-config", "-s"], help="The space's YAML file.")
    ] = Path("space.yaml"),
    log_level: Annotated[
        Literal["error", "warn", "info", "debug"], Parameter(name=["--log-level", "-l"])
    ] = "info",
    host: Annotated[
        str, Parameter(help="Address to listen on; `0.0.0.0` or `::` for all. Tokens are always needed.")
    ] = "localhost",
    no_auto_start: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Do not mention participants that somebody else has to start; we never start any.",
        ),
    ] = False,
    output: Output = PLAIN,
) -> int:
    """Run one MEW space until Ctrl-C or SIGTERM, with its journal beside its tokens.

    For example:

      penstock gateway start --space-config .mew/space.yaml
      penstock gateway start --port 9000 --log-level warn --no-auto-start
    """
    from penstock.server.gateway import GatewayOptions, main

    return main(
        GatewayOptions(
            space_config, port, host, log_level, auto_start=not no_auto_start, as_json=output.as_json
        )
    )
