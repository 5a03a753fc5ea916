"""`penstock pipe`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.options import PLAIN, Output, flag, token_option
from penstock.cli.output import print_result
from penstock.core.errors import PenstockError, Refusal


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
