"""The relay of the server that runs here: where it is, and the key that it trusts without being told."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.client.address import read_endpoints
from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice.signatures import SigningKey

DATA = Path("penstock-data")


class LocalRelay(NamedTuple):
    """What a publisher beside the server needs."""

    pub: str
    """Where readers subscribe."""
    push: str
    """Where publishers push."""
    signer: SigningKey
    """The server's own publisher's key, which its owner alone can read."""


def local_relay(data: Path | str = DATA) -> LocalRelay:
    """The relay of the server on a data directory; raises when none runs there."""
    run = Path(data) / "run"
    endpoints = read_endpoints(run / "endpoints.json")
    if endpoints is None or endpoints.pub is None or endpoints.pull is None:
        refusal = Refusal(
            "Unreachable", f"no server with a relay runs on `{data}`", hint="`penstock up` starts one"
        )
        raise PenstockError(refusal)
    return LocalRelay(endpoints.pub, endpoints.pull, load_signing_key(run / "publisher.key"))


def load_signing_key(file: Path | str) -> SigningKey:
    """A publisher's key from a file of 64 hexadecimal digits, as `penstock token signer-keygen` makes them."""
    try:
        return SigningKey(bytes.fromhex(Path(file).read_text("utf-8").strip()))
    except (OSError, ValueError) as error:
        hint = "`penstock token signer-keygen` makes one"
        raise PenstockError(
            Refusal("InvalidRequest", f"`{file}` holds no signing key: {error}", hint=hint)
        ) from None
