"""`penstock up`, `gateway start`, `stdio` and `pipe`: run a server, or a way into one, until it is stopped."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from penstock.cli.options import PLAIN, Output, flag, token_option
from penstock.cli.output import print_result
from penstock.core.errors import PenstockError, Refusal


def up(
    *,
    config: Annotated[Path | None, Parameter(help="YAML file; see `penstock config doc`.")] = None,
    data: Annotated[str | None, Parameter(help="Data directory, or `none` for memory only.")] = None,
    http: Annotated[str | None, Parameter(help="HOST:PORT; port 0 binds a free one.")] = None,
    control: Annotated[str | None, Parameter(help="HOST:PORT, unix:PATH, or `off`.")] = None,
    pub: Annotated[str | None, Parameter(help="Endpoint where clients subscribe to token streams.")] = None,
    pull: Annotated[str | None, Parameter(help="Endpoint where publishers push token streams.")] = None,
    lake: Annotated[str | None, Parameter(help="Path or URL of the tables, such as s3://bucket/lake.")] = None,
    advertise: Annotated[
        str | None, Parameter(help="A kernel's router-endpoints.json to register this server in.")
    ] = None,
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, Parameter()] = None,
    no_pipeline: Annotated[bool, flag("Do not run the Spark pipeline.")] = False,
    no_relay: Annotated[bool, flag("Do not run the relay of token streams.")] = False,
    demo: Annotated[bool, flag("Also start sample traffic.")] = False,
    cells: Annotated[
        int | None, Parameter(help="Hold the streams in so many processes, 1 to 16, to use more than one core.")
    ] = None,
    join: Annotated[
        str | None,
        Parameter(help="Be a node of a cluster: the URLs of its NATS servers, or `local` to start three here."),
    ] = None,
    cluster: Annotated[str | None, Parameter(help="With --join: the name of the cluster; default: penstock.")] = None,
    node: Annotated[str | None, Parameter(help="With --join: the name of this node, which no other has.")] = None,
    advertise_host: Annotated[
        str | None, Parameter(help="With --join: the host in the URLs that clients learn.")
    ] = None,
    nats_creds: Annotated[
        Path | None,
        Parameter(
            env_var="PENSTOCK_NATS_CREDS",
            help="With --join: a file of nsc, of the seed of an nkey, or with one line `user:password`.",
        ),
    ] = None,
    nats_system_creds: Annotated[
        Path | None,
        Parameter(
            env_var="PENSTOCK_NATS_SYSTEM_CREDS",
            help="With --join: the same for the system account, to check how the servers keep messages.",
        ),
    ] = None,
    nats_ca: Annotated[
        Path | None, Parameter(help="With --join: the certificates that the servers are checked with.")
    ] = None,
    unsafe_servers: Annotated[
        bool, flag("With --join: accept NATS servers that may lose what they acknowledge.")
    ] = False,
    output: Output = PLAIN,
) -> int:
    """Run the server until Ctrl-C or SIGTERM.

    For example:

      penstock up --demo
      penstock up --data none --http 127.0.0.1:0 --control 127.0.0.1:0
      penstock up --config penstock.yaml --log-level debug
      penstock up --lake s3://my-bucket/lake
      penstock up --cells 4
      penstock up --join local --node a
      penstock up --join nats://10.0.0.1:4222,nats://10.0.0.2:4222 --cluster shop --node a
    """
    gc.disable()  # imported code is never garbage, and collecting during the imports slows the start
    from penstock.server.up import Options, main

    gc.freeze()
    gc.enable()
    options = Options(
        config=config,
        data=data,
        http=http,
        control=control,
        lake=lake,
        advertise=advertise,
        log_level=log_level,
        no_pipeline=no_pipeline,
        pub=pub,
        pull=pull,
        no_relay=no_relay,
        demo=demo,
        cells=cells,
        join=join,
        cluster=cluster,
        node=node,
        advertise_host=advertise_host,
        nats_creds=nats_creds,
        nats_system_creds=nats_system_creds,
        nats_ca=nats_ca,
        unsafe_servers=unsafe_servers,
        as_json=output.as_json,
    )
    return main(options)


gateway = App(name="gateway", help="Run a MEW space alone.")


@gateway.command
def start(
    *,
    port: Annotated[int, Parameter(name=["--port", "-p"], help="Port to listen on; 0 binds a free one.")] = 8080,
    space_config: Annotated[Path, Parameter(name=["--space-config", "-s"], help="The space's YAML file.")] = Path(
        "space.yaml"
    ),
    log_level: Annotated[Literal["error", "warn", "info", "debug"], Parameter(name=["--log-level", "-l"])] = "info",
    host: Annotated[
        str, Parameter(help="Address to listen on; `0.0.0.0` or `::` for all. Tokens are always required.")
    ] = "localhost",
    config: Annotated[Path | None, Parameter(help="A config file with the section `limits`.")] = None,
    no_auto_start: Annotated[bool, flag("Do not list participants to start; the gateway never starts any.")] = False,
    output: Output = PLAIN,
) -> int:
    """Run one MEW space until Ctrl-C or SIGTERM, with its journal in the folder of its tokens.

    For example:

      penstock gateway start --space-config .mew/space.yaml
      penstock gateway start --port 9000 --log-level warn --no-auto-start
      penstock gateway start --config limits.yaml
    """
    from penstock.server.gateway import GatewayOptions, main

    return main(GatewayOptions(space_config, port, host, log_level, not no_auto_start, output.as_json, config))


def stdio(
    *,
    server: Annotated[
        str | None, Parameter(help="Use this server instead: tcp://host:port, unix:/path or http://host:port.")
    ] = None,
    token: Annotated[str | None, token_option("With --server: the token; without it, say hello with one.")] = None,
    output: Output = PLAIN,
) -> int:
    """Speak Control v1 on stdin and stdout, with a queue in memory or that of a server, until the input ends.

    The output is always JSON lines, so --json changes nothing.

    For example:

      echo '{"type":"hello","version":"v1"}' | penstock stdio
      echo '{"type":"stats","stream":"jobs","reqId":1}' | penstock stdio --server tcp://127.0.0.1:9787
    """
    from penstock.client import address
    from penstock.server.stdio import main

    return main(server=None if server is None else address.parse(server), token=token)


def pipe(
    *,
    listen: Annotated[
        list[str] | None, Parameter(help="tcp://HOST:PORT or ws://HOST:PORT/path; port 0 binds a free one.")
    ] = None,
    connect: Annotated[list[str] | None, Parameter(help="Pipe server of a host to connect to, likewise.")] = None,
    tap: Annotated[
        str | None, Parameter(help="Only copy the envelopes of this stream: no lease, and no input.")
    ] = None,
    server: Annotated[
        str | None,
        Parameter(
            name=["--server", "--url"],
            env_var="PENSTOCK_URL",
            help="The server's tcp://host:port, unix:/path or http://host:port; default: the one on ./penstock-data.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        token_option("Give every pipe the rights of this token; without it each peer authenticates with its own."),
    ] = None,
    public: Annotated[bool, flag("Allow addresses that other machines can reach.")] = False,
    output: Output = PLAIN,
) -> None:
    """Carry Control v1 inside the frames of Stream Kernel pipes, for a running server, until Ctrl-C.

    For example:

      penstock pipe --listen tcp://127.0.0.1:9788
      penstock pipe --listen ws://127.0.0.1:9789/courier --tap agents/jen/inbox
      penstock pipe --connect tcp://127.0.0.1:40000 --server tcp://127.0.0.1:9787
    """
    from penstock.client import address
    from penstock.server.ops.kernel.pipe import PipeOptions, PipeReady, addresses, run

    if not listen and not connect:
        hint = "add --listen tcp://127.0.0.1:9788, or --connect with the URL of a host's pipe server"
        raise PenstockError(Refusal("InvalidRequest", "no pipe to listen on or connect to", hint=hint))
    options = PipeOptions(
        addresses(listen or [], is_public=public),
        addresses(connect or []),
        address.parse(address.discover(server)),
        token,
        tap,
        public,
    )

    def ready(at: PipeReady) -> None:
        what = f"copies of `{at.tap}` from" if at.tap else "Control v1 of"
        lines = [f"{place} carries {what} {at.server}" for place in (*at.listen, *at.connect)]
        shown = {"listen": at.listen, "connect": at.connect, "server": at.server, "tap": at.tap}
        print_result(shown, lines, as_json=output.as_json)

    asyncio.run(run(options, ready))
