"""`penstock cluster create|check|repair`, and the group of all commands about clusters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from penstock.cli.ops.cluster import directory, members
from penstock.cli.ops.cluster.place import THERE, NatsPlace, operate, servers_of
from penstock.cli.options import EXIT_CHECK, flag, print_text
from penstock.cli.output import is_confirmed, print_json, print_line, print_note, print_result
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.core.cluster.status import ClusterStatus

cluster = App(name="cluster", help="Make, watch and change a cluster; divide a data directory into shards.")
for command in (members.status, members.nodes, members.move, members.drain, members.leave):
    cluster.command(command)
cluster.command(directory.import_, name="import")
cluster.command(directory.export)

SIGNS = {"ok": "ok     ", "warning": "warning", "error": "error  "}
MIB = 1024 * 1024
SHARD_MIB = 1024
WAIT_S = 60.0
SHARD_MIB_MIN = 16
"""Room for two of the longest commits and the reserves."""


@cluster.command
def create(
    *,
    shard_mib: Annotated[
        int, Parameter(help="MiB of the log of each of 16 shards, on each of three servers.")
    ] = SHARD_MIB,
    print_permissions: Annotated[bool, flag("Only print the NATS account that the nodes need.")] = False,
    unsafe_servers: Annotated[bool, flag("Use servers that may lose what they acknowledge.")] = False,
    place: NatsPlace = THERE,
) -> int:
    """Make a cluster on NATS servers: two buckets, a store of files, and a stream for each shard. It may be repeated.

    For example:

      penstock cluster create --print-permissions --cluster prod
      penstock cluster create --join nats://10.0.0.1,10.0.0.2,10.0.0.3 --nats-creds penstock.creds --cluster prod
    """
    if print_permissions:
        from penstock.server.ops.cluster.permissions import account_config

        print_text(account_config(place.cluster) + "\n", "config", place)
        return 0
    if shard_mib < SHARD_MIB_MIN:
        message = f"the log of a shard needs {SHARD_MIB_MIN} MiB or more, not {shard_mib}"
        raise PenstockError(Refusal("InvalidRequest", message, hint="leave `--shard-mib` out for 1024"))
    address = servers_of(place)
    from penstock.journal.replicated.cluster_keys import ClusterSettings
    from penstock.journal.replicated.cluster_keys import create as create_cluster
    from penstock.journal.replicated.server_check import ask_servers, server_problem
    from penstock.server.ops.cluster.operator import connected_servers, patiently

    async def make() -> tuple[ClusterSettings, bool]:
        async with connected_servers(address, place.cluster) as client:
            known = await ask_servers(client)
            problem = server_problem(known) if known else None
            if problem is not None and not unsafe_servers:
                raise PenstockError(problem)
            made = await patiently(lambda: create_cluster(client, place.cluster, bytes_max=shard_mib * MIB))
            return made, bool(known) and problem is None

    settings, is_verified = asyncio.run(make())
    if not is_verified:
        print_note("the servers are not verified to keep what they acknowledge: `penstock cluster check` says why")
    if settings.bytes_max != shard_mib * MIB and shard_mib != SHARD_MIB:
        print_note(f"the cluster exists with {settings.bytes_max // MIB} MiB a shard, which `create` does not change")
    value = {"cluster": place.cluster, "shards": settings.shards, "shardBytes": settings.bytes_max}
    creds = " --nats-creds FILE" if place.nats_creds else ""
    start = f"penstock up --join {address.shown}{creds} --cluster {place.cluster} --node NAME"
    lines = [
        f"cluster `{place.cluster}`: {settings.shards} shards of {settings.bytes_max // MIB} MiB, three copies each",
        "next, on each machine, with a NAME of its own:",
        f"  {start}",
    ]
    print_result({**value, "verified": is_verified, "next": start}, lines, as_json=place.as_json)
    return 0


@cluster.command
def check(*, place: NatsPlace = THERE) -> int:
    """Check the NATS servers, the streams, the nodes, and who else may publish; exit code 3 when an error is found.

    For example:

      penstock cluster check --join nats://10.0.0.1,10.0.0.2,10.0.0.3 --nats-creds penstock.creds --cluster prod
    """
    address = servers_of(place)
    from penstock.server.ops.cluster.operator import connected_servers
    from penstock.server.ops.cluster.survey import ClusterFinding, survey

    async def look() -> list[ClusterFinding]:
        async with connected_servers(address, place.cluster) as client:
            return [finding async for finding in survey(client, address, place.cluster)]

    findings = asyncio.run(look())
    has_error = any(finding.level == "error" for finding in findings)
    if place.as_json:
        print_json({"ok": not has_error, "findings": findings})
    else:
        for finding in findings:
            print_line(f"{SIGNS[finding.level]}  {finding.about}: {finding.message}")
            if finding.hint:
                print_line(f"         hint: {finding.hint}")
    return EXIT_CHECK if has_error else 0


@cluster.command
def repair(
    shard: Annotated[int, Parameter(help="The shard, 0 to 15.")],
    /,
    *,
    from_node: Annotated[
        str | None, Parameter(name="--from", help="The node whose spool is used. Default: the one with the most rows.")
    ] = None,
    wait: Annotated[float, Parameter(help="Seconds to wait until the shard has an owner; 0 does not wait.")] = WAIT_S,
    yes: Annotated[bool, flag("Do not ask.")] = False,
    place: NatsPlace = THERE,
) -> int:
    """Write a new log of a damaged shard from the spool of a node. The old log stays. Read docs/how-to/repair-a-shard.md first.

    For example:

      penstock cluster repair 5 --join nats://10.0.0.1,10.0.0.2,10.0.0.3
      penstock cluster repair 5 --from b --yes
    """
    notice = f"rows of shard {shard} that no spool of the chosen node has are given up"
    if not is_confirmed(notice, yes=yes):
        print_note("nothing was changed")
        return 1
    node, rows = operate(place, lambda found: found.repair(shard, from_node))
    value = {"shard": shard, "node": node, "rows": rows}
    if wait <= 0:
        text = f"`{node}` writes a new log of shard {shard} from its {rows} rows"
        print_result({**value, "done": False}, text, as_json=place.as_json)
        return 0

    def is_whole(status: ClusterStatus) -> bool:
        return not status.shards[shard].troubles and status.shards[shard].owner is not None

    if operate(place, lambda found: found.until(is_whole, wait)) is None:
        message = f"shard {shard} has no owner {wait:g} s after the repair was asked for"
        hint = f"the log of `{node}` says why: `cluster.repair_failed` or `cluster.repair_refused`"
        raise PenstockError(Refusal("Timeout", message, hint=hint))
    text = f"shard {shard} has a new log, from the {rows} rows of `{node}`"
    print_result({**value, "done": True}, text, as_json=place.as_json)
    return 0
