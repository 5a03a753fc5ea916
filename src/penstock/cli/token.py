"""`penstock token curve-keygen|signer-keygen`: keys for the relay of token streams."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_json, print_line
from penstock.core.errors import PenstockError, Refusal

token = App(name="token", help="Make keys for the relay of token streams.")

Out = Annotated[Path, Parameter(help="Directory to write to.")]
Name = Annotated[str, Parameter(help="How the files are called.")]


@token.command(name="curve-keygen")
def curve_keygen(*, out: Out = Path(), name: Name = "relay", output: Output = PLAIN) -> int:
    """Make a pair of CURVE keys: NAME.key is public, NAME.key_secret is yours alone.

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
    return _show(files, output)


@token.command(name="signer-keygen")
def signer_keygen(*, out: Out = Path(), name: Name = "publisher", output: Output = PLAIN) -> int:
    """Make a publisher's signing key: NAME.key is yours alone, its public half goes under `relay.signers`.

    For example:

      penstock token signer-keygen
      penstock token signer-keygen --out keys --name inference
    """
    from penstock.dialects.streamservice.signing import SigningKey
    from penstock.server.private_files import write_private

    _check(out, f"{name}.key")
    seed = secrets.token_bytes(32)
    file = out / f"{name}.key"
    write_private(file, seed.hex().encode() + b"\n")
    return _show({"public": SigningKey(seed).public.hex(), "secret_file": str(file)}, output)


def _check(out: Path, *names: str) -> None:
    """Never write over a key: whoever uses it would be shut out."""
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        if (out / name).exists():
            hint = "choose another --name or --out"
            raise PenstockError(Refusal("IdConflict", f"`{out / name}` is there already", hint=hint))


def _show(files: dict[str, str], output: Output) -> int:
    if output.as_json:
        print_json(files)
    else:
        for key, value in files.items():
            print_line(f"{key.replace('_', ' '):<12} {value}")
    return 0
