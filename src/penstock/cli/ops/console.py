"""`penstock console`: the link to the console of the server that runs here."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.cli.options import PLAIN, Output, flag
from penstock.cli.output import print_note, print_result
from penstock.core.errors import PenstockError, Refusal


def console(
    *,
    data: Annotated[Path | None, Parameter(help="Data directory; default: ./penstock-data, or a gateway's.")] = None,
    open_: Annotated[bool, Parameter(name="--open"), flag("Also open a browser.")] = False,
    output: Output = PLAIN,
) -> None:
    """Print the link that signs in to the console with the rights of the operator.

    For example:

      penstock console
      penstock console --open
      penstock console --json
    """
    url, token = _find(data)
    link = f"{url}#token={token}"
    print_result({"console": url, "token": token, "link": link}, link, as_json=output.as_json)
    if not (files("penstock") / "console" / "index.html").is_file():
        print_note("the console is not built; `make setup` builds it with Node 20 or newer")
    if open_:
        import webbrowser

        if not webbrowser.open(link):
            print_note("cannot open a browser; copy the link")


def _find(data: Path | None) -> tuple[str, str]:
    from penstock.client import address

    places = [address.ENDPOINTS_FILE, *address.GATEWAY_FILES]
    if data is not None:
        places = [data / "run" / "endpoints.json"]
    for file in places:
        endpoints = address.read_endpoints(file)
        if endpoints is None or not endpoints.http:
            continue
        if endpoints.console is None:
            hint = "set `console.enabled: true` in the config file and restart"
            raise PenstockError(Refusal("UnknownRoute", "the local server has no console", hint=hint))
        token = address.operator_token(endpoints.http, file)
        if token is None:
            secret = file.with_name("operator.token")
            hint = "run as the user of the server, or sign in with a token of the scope `admin:*`"
            raise PenstockError(Refusal("Forbidden", f"`{secret}` cannot be read", hint=hint))
        return endpoints.console, token
    where = "here" if data is None else f"on `{data}`"
    hint = "start it with `penstock up`, or name its directory with --data"
    raise PenstockError(Refusal("Unreachable", f"no server runs {where}", hint=hint))
