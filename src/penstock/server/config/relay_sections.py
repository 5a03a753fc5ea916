"""The config section `relay`. A text under a field becomes its line in `docs/reference/config.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from penstock.core.relay.bounds import RelayLimits
from penstock.server.config.validation import FieldError, shorten
from penstock.transports.zeromq_endpoints import endpoint_problem

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
JournalMode: TypeAlias = Literal["metadata", "full", "off"]

PUB = "tcp://127.0.0.1:5556"
"""Default address for subscribers; if the port is in use, the relay binds a free one."""
ANYBODY = "*"
_SIGNER = re.compile(r"[0-9a-f]{64}")
_CURVE_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class CurveFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CURVE: encryption on TCP, and the keys that may connect."""

    secret: Text
    """The server's `*.key_secret`, made by `penstock token curve-keygen`; relative to the working directory of `up`."""
    allowed: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """Public keys that may connect, 40 characters each; `"*"` admits every client that knows the server's public key."""


class RelaySection(RelayLimits, frozen=True, forbid_unknown_fields=True):
    """StreamService: the relay of token streams, in a process of its own. It cannot read the messages."""

    enabled: bool | None = None
    """Whether the relay runs; by default it does with `penstock up`."""
    pub: Text = PUB
    """Address for subscribers: `tcp://HOST:PORT` or `ipc://PATH`; port 0 binds a free one."""
    pull: Text | None = None
    """Address for publishers; by default the socket `push.sock` in the run directory, which only its owner can reach."""
    signers: dict[Text, Text] = msgspec.field(default_factory=dict)
    """Ed25519 public keys that may register topics, by name, 64 hexadecimal digits each; the key in `run/publisher.key` may too."""
    curve: CurveFiles | None = None
    """Keys for TCP; required for an address that other machines can reach."""
    journal: JournalMode = "metadata"
    """What the journal keeps of streams: counts, also the messages, or nothing. With `off`, registrations do not survive a restart."""
    check_links: bool = False
    """Whether the relay rejects a message that does not name the preceding one. This keeps forged messages out of the history, but a
    message lost on the way to the relay ends its stream."""


def relay_errors(relay: RelaySection) -> Iterator[FieldError]:
    """Find the errors that types cannot express."""
    for name, endpoint in (("pub", relay.pub), ("pull", relay.pull)):
        if endpoint is not None:
            problem = endpoint_problem(endpoint, has_curve=relay.curve is not None)
            if problem is None and endpoint.startswith("inproc:"):
                problem = "`inproc:` is not reachable: the relay runs in a process of its own"
            if problem is not None:
                yield ("relay", name), problem
    for name, key in relay.signers.items():
        if not _SIGNER.fullmatch(key):
            yield ("relay", "signers", name), f"got {shorten(key)}, expected 64 lower case hexadecimal digits"
    if relay.curve is None:
        return
    if not Path(relay.curve.secret).is_file():
        yield ("relay", "curve", "secret"), f"there is no file `{relay.curve.secret}`"
    for index, key in enumerate(relay.curve.allowed):
        if key != ANYBODY and not _CURVE_KEY.fullmatch(key):
            yield ("relay", "curve", "allowed", index), "expected the 40 characters of a public key, or `*`"
    if not any(endpoint and endpoint.startswith("tcp:") for endpoint in (relay.pub, relay.pull)):
        yield ("relay", "curve"), "applies to tcp:// only, and neither `pub` nor `pull` uses it"
