"""`penstock cluster status|nodes|move|drain|leave`: who owns what, and who should."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from penstock.cli.ops.cluster.place import ANYWHERE, THERE, ClusterAccess, ClusterPlace, NatsPlace, operate
from penstock.cli.options import EXIT_CHECK, flag
from penstock.cli.output import ago, print_json, print_note, print_result, print_table
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.core.cluster.status import ClusterStatus

Node = Annotated[str, Parameter(help="The name of a node.")]
Wait = Annotated[float, Parameter(name="--wait", help="Seconds to wait until it is done; 0 does not wait.")]
MOVE_WAIT_S = 30.0
DRAIN_WAIT_S = 120.0


def status(*, place: ClusterPlace = ANYWHERE) -> int:
    """Show the owner of each shard; exit code 3 when a shard has none, or its log is damaged.

    For example:

      penstock cluster status --url http://127.0.0.1:8787
      penstock cluster status --join nats://10.0.0.1,10.0.0.2,10.0.0.3 --json
    """
    found = ClusterAccess(place).status()
    if place.as_json:
        print_json(found)
    else:
        columns = ("shard", "owner", "state", "epoch", "offset", "since", "note")
        print_table(columns, [_row(found, number) for number in range(len(found.shards))])
    missing, halted = found.unowned, found.halted
    if missing and not place.as_json:
        print_note(
            f"no node owns {_listed(missing)}: a take-over needs up to 20 s; then see docs/how-to/cluster-broker.md"
        )
    if halted and not place.as_json:
        print_note(f"the log of {_listed(halted)} is damaged: see docs/how-to/repair-a-shard.md")
    return EXIT_CHECK if missing or halted else 0


def _row(found: ClusterStatus, number: int) -> tuple[object, ...]:
    shard = found.shards[number]
    since = ago(time.time() - shard.since / 1_000_000) if shard.since else None
    note = shard.reason
    if shard.wanted is not None and shard.wanted != shard.owner:
        note = f"to move to `{shard.wanted}`" + (f"; {note}" if note else "")
    return shard.shard, shard.owner, shard.state, shard.epoch, shard.offset, since, note or None


def _listed(shards: list[int]) -> str:
    return f"shard {shards[0]}" if len(shards) == 1 else f"the shards {', '.join(map(str, shards))}"


def nodes(*, place: ClusterPlace = ANYWHERE) -> int:
    """Show the nodes: their versions, addresses and shards; exit code 3 when one is gone.

    For example:

      penstock cluster nodes
      penstock cluster nodes --join nats://10.0.0.1,10.0.0.2,10.0.0.3
    """
    found = ClusterAccess(place).status()
    if place.as_json:
        print_json(found.nodes)
    else:
        rows = [
            (
                node.node,
                node.state,
                len(node.owns),
                _shards(node.owns),
                node.control or node.http,
                node.version,
                _when(node.started),
            )
            for node in found.nodes
        ]
        print_table(("node", "state", "owns", "shards", "address", "version", "started"), rows)
        for node in found.nodes:
            if not node.verified and node.state != "gone":
                print_note(f"`{node.node}` could not verify the NATS servers; `penstock cluster check` says why")
    return EXIT_CHECK if any(node.state == "gone" for node in found.nodes) else 0


def _shards(owns: list[int]) -> str | None:
    return ",".join(map(str, owns)) or None


def _when(us: int) -> str | None:
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="seconds") if us else None


def move(
    shard: Annotated[int, Parameter(help="The shard, 0 to 15.")],
    node: Annotated[str | None, Parameter(help="The node that should own it.")] = None,
    /,
    *,
    auto: Annotated[bool, flag("Leave the shard to the cluster again.")] = False,
    wait: Wait = MOVE_WAIT_S,
    place: ClusterPlace = ANYWHERE,
) -> int:
    """Have a node own a shard, while it lives and is not drained.

    For example:

      penstock cluster move 3 b
      penstock cluster move 3 --auto
    """
    if (node is None) != auto:
        hint = "name a node, or add --auto"
        raise PenstockError(Refusal("InvalidRequest", "give one of: a node, --auto", hint=hint))
    access = ClusterAccess(place)
    began = time.monotonic()
    access.move(shard, node)
    if node is None or wait <= 0:
        text = f"shard {shard} is left to the cluster" if node is None else f"shard {shard} will move to `{node}`"
        print_result({"shard": shard, "node": node, "done": node is None}, text, as_json=place.as_json)
        return 0
    done = access.until(lambda found: _owns(found, shard, node), wait)
    took_s = round(time.monotonic() - began, 1)
    if done is None:
        message = f"shard {shard} did not reach `{node}` within {wait:g} s"
        hint = "it moves when it can: `penstock cluster status` shows where it is"
        raise PenstockError(Refusal("Timeout", message, hint=hint))
    value = {"shard": shard, "node": node, "done": True, "seconds": took_s}
    print_result(value, f"`{node}` owns shard {shard}, after {took_s:g} s", as_json=place.as_json)
    return 0


def _owns(found: ClusterStatus, shard: int, node: str) -> bool:
    row = found.shards[shard]
    return row.owner == node and row.state == "owning"


def drain(
    node: Node,
    /,
    *,
    undo: Annotated[bool, flag("Let the node own shards again.")] = False,
    wait: Wait = DRAIN_WAIT_S,
    place: ClusterPlace = ANYWHERE,
) -> int:
    """Have a node hand over its shards, and own none until `--undo`. It goes on to serve clients.

    For example:

      penstock cluster drain a
      penstock cluster drain a --undo
    """
    access = ClusterAccess(place)
    access.drain(node, on=not undo)
    if undo or wait <= 0:
        text = f"`{node}` may own shards" if undo else f"`{node}` hands over its shards"
        print_result({"node": node, "drained": not undo, "done": undo}, text, as_json=place.as_json)
        return 0
    done = access.until(lambda found: not _owned(found, node) and not found.unowned, wait)
    _require_drained(done, node, wait)
    print_result(
        {"node": node, "drained": True, "done": True},
        [f"`{node}` owns no shard", f"when it may again: `penstock cluster drain {node} --undo`"],
        as_json=place.as_json,
    )
    return 0


def _owned(found: ClusterStatus, node: str) -> list[int]:
    return next((row.owns for row in found.nodes if row.node == node), [])


def _require_drained(done: ClusterStatus | None, node: str, wait: float) -> None:
    if done is None:
        message = f"`{node}` still owns shards after {wait:g} s, or a shard has no owner"
        hint = "`penstock cluster status` shows which; the others need room and a live node"
        raise PenstockError(Refusal("Timeout", message, hint=hint))


def leave(node: Node, /, *, wait: Wait = DRAIN_WAIT_S, place: NatsPlace = THERE) -> int:
    """Take a node out of the cluster: hand over its shards, wait until its process has ended, and forget it.

    End the process with SIGTERM when the command asks for it. Its data directory may be deleted afterwards.

    For example:

      penstock cluster leave c --join nats://10.0.0.1,10.0.0.2,10.0.0.3
    """
    found = operate(place, lambda one: one.status())
    if all(row.node != node for row in found.nodes):
        print_result({"node": node, "left": True}, f"there is no node `{node}`: it has left", as_json=place.as_json)
        operate(place, lambda one: one.forget(node))
        return 0
    if _state(found, node) != "gone":
        operate(place, lambda one: one.drain(node, on=True))
        drained = operate(place, lambda one: one.until(lambda now: not _owned(now, node) and not now.unowned, wait))
        _require_drained(drained, node, wait)
        print_note(f"`{node}` owns no shard: end its process now, with SIGTERM")
        if operate(place, lambda one: one.until(lambda now: _state(now, node) in ("gone", None), wait)) is None:
            message = f"the process of `{node}` still runs after {wait:g} s; the node stays drained"
            hint = f"end it with SIGTERM, then run this command again; or `penstock cluster drain {node} --undo`"
            raise PenstockError(Refusal("Timeout", message, hint=hint))
    operate(place, lambda one: one.forget(node))
    print_result({"node": node, "left": True}, f"`{node}` has left the cluster", as_json=place.as_json)
    return 0


def _state(found: ClusterStatus, node: str) -> str | None:
    return next((row.state for row in found.nodes if row.node == node), None)
