"""Whether NATS servers keep what they acknowledge: what a cluster needs of them, and what they say of themselves.

A server that syncs now and then loses acknowledged messages when the power fails, so a node does not join such servers. Servers describe
themselves to clients of the system account, and of accounts that import its service `VARZ`: else all of this is unverified, and a node says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError

from penstock.core.cluster.messages import MESSAGE_MAX
from penstock.core.errors import Refusal
from penstock.journal.replicated.jetstream import ANSWER_S, REPLICAS

VERSION_MIN = (2, 14, 5)
"""Older servers lose messages after some crashes."""
VARZ = "$SYS.REQ.SERVER.PING.VARZ"
ROOM = 64 * 1024
"""What a message needs besides its payload, and an answer that carries it."""


class _Storage(msgspec.Struct):
    sync_always: bool = False


class _Meta(msgspec.Struct):
    cluster_size: int = 0
    leader: str = ""


class _JetStream(msgspec.Struct):
    config: _Storage = msgspec.field(default_factory=_Storage)
    meta: _Meta | None = None


class ServerAbout(msgspec.Struct):
    """What a server says of itself."""

    server_name: str = ""
    version: str = "0"
    max_payload: int = 0
    jetstream: _JetStream = msgspec.field(default_factory=_JetStream)

    @property
    def peers(self) -> int:
        """How many servers its cluster has, as it knows."""
        return 0 if self.jetstream.meta is None else self.jetstream.meta.cluster_size


class _Answer(msgspec.Struct):
    data: ServerAbout


async def ask_servers(system: Client) -> list[ServerAbout]:
    """Every server that answers in time, to a client of the system account or of one that imports its service `VARZ`.

    Waits for as many answers as the servers say that their cluster has peers.
    """
    found: dict[str, ServerAbout] = {}
    inbox = system.new_inbox()
    subscription = await system.subscribe(inbox)
    await system.publish(VARZ, b"{}", reply=inbox)
    try:
        async with asyncio.timeout(ANSWER_S):
            while len(found) < max(REPLICAS, *(server.peers for server in found.values()), 0):
                message = await subscription.next_msg(timeout=ANSWER_S)
                if not message.data:
                    break  # no service answers this user
                server = msgspec.json.decode(message.data, type=_Answer).data
                found[server.server_name] = server
    except (TimeoutError, NatsError):
        pass
    await subscription.unsubscribe()
    return list(found.values())


def server_problem(servers: Iterable[ServerAbout]) -> Refusal | None:
    """Why these servers must not hold a cluster."""
    known = list(servers)
    if len(known) < REPLICAS:
        message = f"{len(known)} NATS servers answer, and {REPLICAS} are needed"
        return Refusal("Unsupported", message, hint="start three servers with JetStream in one NATS cluster")
    peers = max(server.peers for server in known)
    if len(known) < peers:
        message = f"{len(known)} of the {peers} NATS servers answer, so not all of them are checked"
        return Refusal(
            "Unsupported", message, hint="start the others, or remove them with `nats server cluster peer-remove`"
        )
    for server in known:
        name = f"the NATS server `{server.server_name}`"
        if not server.jetstream.config.sync_always:
            hint = "set `sync_interval: always` in its section `jetstream`, and restart it"
            return Refusal("Unsupported", f"{name} acknowledges messages before they are on disk", hint=hint)
        if _version(server.version) < VERSION_MIN:
            wanted = ".".join(map(str, VERSION_MIN))
            return Refusal(
                "Unsupported", f"{name} has version {server.version}", hint=f"upgrade it to {wanted} or newer"
            )
        if server.max_payload < MESSAGE_MAX * 4 // 3 + ROOM:
            hint = "raise its `max_payload` to 1 MiB or more"
            return Refusal("Unsupported", f"{name} takes messages of {server.max_payload} bytes", hint=hint)
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.partition("-")[0].split(".") if part.isdecimal())
