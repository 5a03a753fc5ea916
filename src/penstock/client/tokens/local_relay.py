"""The relay of the server on this machine: its endpoints, and the signing key that it always trusts."""

# size: one look-up, which neither the reader nor the publisher needs

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.client.address import read_endpoints
from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice.signatures import SigningKey

DATA = Path("penstock-data")


class LocalRelay(NamedTuple):
    """The endpoints of a relay, and a key that it trusts."""

    pub: str
    """The endpoint for readers."""
    push: str
    """The endpoint for publishers."""
    signer: SigningKey
    """The server's own publisher key, from a file that only its owner can read."""


def local_relay(data: Path | str = DATA) -> LocalRelay:
    """The relay of the server on a data directory. Raises `Unreachable` when none runs there."""
    run = Path(data) / "run"
    endpoints = read_endpoints(run / "endpoints.json")
    if endpoints is None or endpoints.pub is None or endpoints.pull is None:
        refusal = Refusal("Unreachable", f"no server with a relay runs on `{data}`", hint="`penstock up` starts one")
        raise PenstockError(refusal)
    return LocalRelay(endpoints.pub, endpoints.pull, load_signing_key(run / "publisher.key"))


def load_signing_key(file: Path | str) -> SigningKey:
    """Read a publisher's key from a file of 64 hexadecimal digits, as `penstock token signer-keygen` prints it."""
    try:
        return SigningKey(bytes.fromhex(Path(file).read_text("utf-8").strip()))
    except (OSError, ValueError) as error:
        hint = "`penstock token signer-keygen` makes one"
        raise PenstockError(
            Refusal("InvalidRequest", f"`{file}` contains no signing key: {error}", hint=hint)
        ) from None
