"""The config section `relay`. A text under a field becomes its line in `docs/reference/config.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from penstock.core.relay.limits import RelayLimits
from penstock.server.config.validation import FieldError, shorten
from penstock.transports.zeromq_endpoints import endpoint_problem

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
JournalMode: TypeAlias = Literal["metadata", "full", "off"]

PUB = "tcp://127.0.0.1:5556"
"""Where clients subscribe when nobody says otherwise; a free port when it is taken."""
ANYBODY = "*"
_SIGNER = re.compile(r"[0-9a-f]{64}")
_CURVE_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class CurveFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CURVE: encryption on TCP, and whose keys may connect."""

    secret: Text
    """The server's `*.key_secret`, made by `penstock token curve-keygen`; it counts from the directory where `up` is run."""
    allowed: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """Public keys that may connect, 40 characters each; `"*"` lets everybody in who knows the server's public key."""


class RelaySection(RelayLimits, frozen=True, forbid_unknown_fields=True):
    """StreamService: the blind relay of token streams, in a process of its own."""

    enabled: bool | None = None
    """Whether it runs; left out, it does with `penstock up`."""
    pub: Text = PUB
    """Where clients subscribe: `tcp://HOST:PORT` or `ipc://PATH`; port 0 takes a free one."""
    pull: Text | None = None
    """Where publishers push; left out, the socket `push.sock` in the run directory, which is its owner's alone."""
    signers: dict[Text, Text] = msgspec.field(default_factory=dict)
    """Who may register topics: Ed25519 public keys by name, 64 hexadecimal digits each. The key in `run/publisher.key` may too."""
    curve: CurveFiles | None = None
    """Keys for TCP; an address that other machines reach needs them."""
    journal: JournalMode = "metadata"
    """What the journal has of streams: counts, the messages too, or nothing; then registrations do not survive a restart."""
    check_links: bool = False
    """Whether a message is taken only if it names the one before it. Keeps strangers' messages out of what is kept, but one
    that is lost on the way ends its stream here instead of at its reader."""


def relay_errors(relay: RelaySection) -> Iterator[FieldError]:
    """What no type can say of it."""
    for name, endpoint in (("pub", relay.pub), ("pull", relay.pull)):
        if endpoint is not None:
            problem = endpoint_problem(endpoint, has_curve=relay.curve is not None)
            if problem is None and endpoint.startswith("inproc:"):
                problem = "the relay is a process of its own: nobody reaches an address inside it"
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
        yield ("relay", "curve"), "counts for tcp:// only, and neither `pub` nor `pull` is one"
