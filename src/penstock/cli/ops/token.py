"""`penstock token new|ls|revoke`: tokens of the server; `curve-keygen|signer-keygen`: keys of its relay.

While a server runs, these commands send it a request and the change takes effect at once. Otherwise they change the file in the data
directory, which takes effect at the next start.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from penstock.cli.options import PLAIN, Output, flag, token_option
from penstock.cli.output import is_confirmed, print_json, print_line, print_note, print_result, print_table
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.client.admin import RemoteTokens
    from penstock.server.admin.tokens import OfflineTokens

token = App(name="token", help="Create, list and revoke tokens; create keys for the relay.")

Out = Annotated[Path, Parameter(help="Directory to write to.")]
Name = Annotated[str, Parameter(help="Name of the files.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TokenOptions(Output):
    """Options that find the tokens."""

    data: Annotated[Path, Parameter(help="Data directory of the server.")] = Path("penstock-data")
    url: Annotated[
        str | None,
        Parameter(env_var="PENSTOCK_URL", help="http://host:port; default: the server on the data directory."),
    ] = None
    token: Annotated[str | None, token_option("An administrator's token; default: the local operator's.")] = None


HERE = TokenOptions()


def _tokens(place: TokenOptions) -> RemoteTokens | OfflineTokens:
    """The tokens of the server that runs, or of the file in its data directory."""
    from penstock.client import address
    from penstock.client.admin import RemoteTokens

    file = place.data / "run" / "endpoints.json"
    endpoints = address.read_endpoints(file)
    url = place.url
    if endpoints is not None and endpoints.http and url in (None, endpoints.control):
        url = endpoints.http
    if url is not None:
        return RemoteTokens(url, place.token or address.operator_token(url, file))
    from penstock.server.admin.tokens import OfflineTokens

    return OfflineTokens(place.data)


def _is_running(tokens: RemoteTokens | OfflineTokens) -> bool:
    return not hasattr(tokens, "data")


@token.command
def new(
    name: Annotated[str, Parameter(help="Name of the token in lists and logs, and for `revoke`.")],
    *,
    scope: Annotated[
        list[str], Parameter(help="A scope, such as `streams:jobs/*:enqueue`; may be repeated.", negative="")
    ],
    agent: Annotated[str | None, Parameter(help="The agent that the token acts for.")] = None,
    tenant: Annotated[str | None, Parameter(help="The tenant of the token.")] = None,
    expires: Annotated[
        str | None, Parameter(help="When it expires: 2026-12-31T12:00:00Z, or from now on: 12h, 30d. Default: never.")
    ] = None,
    yes: Annotated[bool, flag("Do not ask before the first token ends anonymous access.")] = False,
    place: TokenOptions = HERE,
) -> int:
    """Create a token and print it once: only its digest is stored.

    From the first token on every client needs one; revoking the last token undoes that. On a terminal the command asks first.

    For example:

      penstock token new sam --agent sam --scope 'streams:agents/sam/*:*' --scope 'streams:*:enqueue'
      penstock token new ops --scope 'admin:*'
      penstock token new ci --scope 'streams:builds/*:*' --expires 30d --json
    """
    from penstock.cli.history.journal import moment_us

    wanted: dict[str, Any] = {"name": name, "scopes": scope, "agent": agent, "tenant": tenant}
    if expires is not None:
        wanted["expires_at"] = datetime.fromtimestamp(moment_us(expires, is_ahead=True) / 1_000_000, UTC)
    tokens = _tokens(place)
    if not tokens.listed()["required"]:
        when = "now" if _is_running(tokens) else "from the next start on"
        notice = f"the first token ends anonymous access: every client needs a token {when}; revoking the last token undoes that"
        if not is_confirmed(notice, yes=yes):
            print_note("no token was created")
            return 1
    made = tokens.mint(**wanted)
    if place.as_json:
        print_json(made)
        return 0
    print_line(made["token"])
    if not made.get("kept", True):
        print_note("the server has no data directory: the token is valid until it stops")
    return 0


@token.command
def ls(*, place: TokenOptions = HERE) -> None:
    """List the tokens with their agents and scopes, never the tokens themselves.

    For example:

      penstock token ls
      penstock token ls --json
    """
    tokens = _tokens(place)
    found = tokens.listed()
    if place.as_json:
        print_json(found)
        return
    _print_tokens(found)
    if not _is_running(tokens):
        print_note("no server is running, so the tokens of a config file are not shown")


def _print_tokens(found: dict[str, Any]) -> None:
    if not found["tokens"]:
        print_line("no tokens: every client on this machine may use the queue without one")
        return
    rows = [{**row, "scopes": ", ".join(row["scopes"])} for row in found["tokens"]]
    keys = ("name", "agent", "tenant", "scopes", "origin", "created_at", "expires_at", "last_used_at")
    print_table((*keys[:-3], "made", "expires", "last used"), [[row.get(key) for key in keys] for row in rows])


@token.command
def revoke(name: str, *, place: TokenOptions = HERE) -> None:
    """Revoke a token and close its connections.

    For example:

      penstock token revoke ci
    """
    done = _tokens(place).revoke(name)
    if place.as_json:
        print_json(done)
        return
    print_line(f"{name} is revoked; {done['closed']} connections were closed")
    if not done["required"]:
        print_note("no token is left, so every client on this machine may use the queue without one")


@token.command(name="curve-keygen")
def curve_keygen(*, out: Out = Path(), name: Name = "relay", output: Output = PLAIN) -> None:
    """Create a pair of CURVE keys: NAME.key is public, NAME.key_secret is secret.

    For example:

      penstock token curve-keygen
      penstock token curve-keygen --out keys --name alice
    """
    from zmq.auth import create_certificates, load_certificate

    _check(out, f"{name}.key", f"{name}.key_secret")
    before = os.umask(0o077)
    try:
        public_file, secret_file = create_certificates(out, name)
    finally:
        os.umask(before)
    public, _ = load_certificate(public_file)
    files = {"public": public.decode(), "public_file": str(public_file), "secret_file": str(secret_file)}
    _show(files, output)


@token.command(name="signer-keygen")
def signer_keygen(*, out: Out = Path(), name: Name = "publisher", output: Output = PLAIN) -> None:
    """Create a publisher's signing key: NAME.key is secret, its public half goes into `relay.signers`.

    For example:

      penstock token signer-keygen
      penstock token signer-keygen --out keys --name inference
    """
    from penstock.dialects.streamservice.signatures import SigningKey
    from penstock.server.files.secret_files import write_private

    _check(out, f"{name}.key")
    seed = secrets.token_bytes(32)
    file = out / f"{name}.key"
    write_private(file, seed.hex().encode() + b"\n")
    _show({"public": SigningKey(seed).public.hex(), "secret_file": str(file)}, output)


def _check(out: Path, *names: str) -> None:
    """Never overwrite a key: its users would lose access."""
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        if (out / name).exists():
            hint = "choose another --name or --out"
            raise PenstockError(Refusal("IdConflict", f"`{out / name}` already exists", hint=hint))


def _show(files: dict[str, str], output: Output) -> None:
    shown = {key.replace("_", " "): value for key, value in files.items()}
    print_result(files, shown, as_json=output.as_json)
