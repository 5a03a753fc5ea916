"""`penstock up`."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from penstock.cli.options import PLAIN, Output


def up(
    *,
    config: Annotated[Path | None, Parameter(help="YAML file; see `penstock config doc`.")] = None,
    data: Annotated[str | None, Parameter(help="Data directory, or `none` for memory only.")] = None,
    http: Annotated[str | None, Parameter(help="HOST:PORT; port 0 takes a free one.")] = None,
    control: Annotated[str | None, Parameter(help="HOST:PORT, unix:PATH, or `off`.")] = None,
    pub: Annotated[
        str | None, Parameter(help="Where clients of token streams subscribe: an endpoint.")
    ] = None,
    pull: Annotated[
        str | None, Parameter(help="Where publishers of token streams push: an endpoint.")
    ] = None,
    advertise: Annotated[
        str | None, Parameter(help="A kernel's router-endpoints.json to keep our entry in.")
    ] = None,
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, Parameter()] = None,
    no_pipeline: Annotated[
        bool, Parameter(negative="", show_default=False, help="Do not run the Spark pipeline.")
    ] = False,
    no_relay: Annotated[
        bool, Parameter(negative="", show_default=False, help="Do not run the relay of token streams.")
    ] = False,
    demo: Annotated[
        bool, Parameter(negative="", show_default=False, help="Also start sample traffic.")
    ] = False,
    output: Output = PLAIN,
) -> int:
    """Run the server until Ctrl-C or SIGTERM.

    For example:

      penstock up --demo
      penstock up --data none --http 127.0.0.1:0 --control 127.0.0.1:0
      penstock up --config penstock.yaml --log-level debug
    """
    gc.disable()  # what is loaded now stays: looking through it for garbage costs a good part of the start
    from penstock.server.up import Options, main

    gc.freeze()
    gc.enable()
    options = Options(
        config=config,
        data=data,
        http=http,
        control=control,
        advertise=advertise,
        log_level=log_level,
        no_pipeline=no_pipeline,
        pub=pub,
        pull=pull,
        no_relay=no_relay,
        demo=demo,
        as_json=output.as_json,
    )
    return main(options)
