"""What happens to the nodes and servers of a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.cluster.node import ALL, SimNode
from tests.simulation.cluster.servers import SERVERS

if TYPE_CHECKING:
    from tests.simulation.cluster.storm import Cluster

FAULTS_US = (500_000, 6_000_000)
RESTART_US = (500_000, 15_000_000)
LAG_US = (1_000_000, 9_000_000)
UNSYNCED_MAX = 30
"""Messages that a server may lose when it is killed."""


class Weather:
    """One fault after the other, of those that a cluster must survive, until it is calm."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._dice: Random = cluster.dice
        self.counts: dict[str, int] = {}
        self._faults: list[tuple[str, int, Callable[[SimNode], None]]] = [
            ("crash", 2, self._crash),
            ("power fails within a write", 1, self._crash_in_write),
            ("crash in a take-over", 1, self._crash_in_beginning),
            ("pause", 2, self._pause),
            ("pause at a write", 2, self._pause_at_write),
            ("deaf", 1, self._deafen),
            ("mute", 1, self._silence),
            ("cut", 1, self._cut),
            ("full disk", 1, self._fill),
            ("old keys", 1, self._lag),
            ("leave", 1, self._leave),
            ("move", 1, self._move),
            ("drain", 1, self._drain),
            ("step down", 1, self._step_down),
            ("kill a server", 1, self._kill_server),
            ("kill two servers", 1, self._kill_two),
            ("split", 1, self._split),
            ("split all", 1, self._split_all),
            ("power cut", 1, self._power_cut),
        ]

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self._faults]

    def restrict(self, names: Sequence[str]) -> None:
        """Let nothing happen but this."""
        self._faults = [fault for fault in self._faults if fault[0] in names]

    def begin(self) -> None:
        self._cluster.later(FAULTS_US, self._next)

    def _next(self) -> None:
        cluster = self._cluster
        if cluster.is_calm:
            return
        cluster.later(FAULTS_US, self._next)
        node = self._dice.choice(cluster.nodes)
        [(name, _, fault)] = self._dice.choices(self._faults, [weight for _, weight, _ in self._faults])
        self.counts[name] = self.counts.get(name, 0) + 1
        cluster.note("fault", name, node.name)
        fault(node)

    # Nodes

    def _crash(self, node: SimNode) -> None:
        node.crash()

    def _crash_in_write(self, node: SimNode) -> None:
        self._dice.choice(node.disks).steps_left = self._dice.randint(1, 20)

    def _crash_in_beginning(self, node: SimNode) -> None:
        node.dies_at_beginning = True

    def _pause(self, node: SimNode) -> None:
        """Rather one that owns a shard, and often for so long that another takes over and works on."""
        owners = sorted({cell.node.name for cells in self._cluster.serving for cell in cells})
        name = self._dice.choice([node.name, *owners, *owners])
        node = next(node for node in self._cluster.nodes if node.name == name)
        node.pause()
        self._cluster.later(self._dice.choice(((500_000, 8_000_000), (10_000_000, 25_000_000))), node.resume)

    def _pause_at_write(self, node: SimNode) -> None:
        node.stops_at_write = self._dice.choice(("before", "behind"))
        self._cluster.later((2_000_000, 20_000_000), node.resume)

    def _some(self, node: SimNode) -> frozenset[int]:
        return self._dice.choice((ALL, frozenset({node.home})))

    def _deafen(self, node: SimNode) -> None:
        node.deaf = self._some(node)
        self._cluster.later((1_000_000, 15_000_000), lambda: self._reconnect(node))

    def _silence(self, node: SimNode) -> None:
        node.mute = self._some(node)
        self._cluster.later((1_000_000, 15_000_000), lambda: self._reconnect(node))

    def _cut(self, node: SimNode) -> None:
        node.deaf = node.mute = self._some(node)
        self._cluster.later((1_000_000, 15_000_000), lambda: self._reconnect(node))

    @staticmethod
    def _reconnect(node: SimNode) -> None:
        node.deaf = node.mute = frozenset()

    def _fill(self, node: SimNode) -> None:
        node.fill_disk(self._dice.randrange(self._cluster.shards), self._dice.randint(0, 8_000))
        self._cluster.later((1_000_000, 12_000_000), node.free_disks)

    def _lag(self, node: SimNode) -> None:
        node.lag(self._dice.randint(*LAG_US))
        self._cluster.later((3_000_000, 15_000_000), lambda: node.lag(0))

    # What operators do

    def _leave(self, node: SimNode) -> None:
        node.deliver(node.leave)

    def _move(self, node: SimNode) -> None:
        """Name the owner of a shard, or leave it to the assignment."""
        shard = self._dice.randrange(self._cluster.shards)
        self._decide(f"move.{shard}", self._dice.choice((node.name.encode(), node.name.encode(), None)))

    def _drain(self, node: SimNode) -> None:
        """Have a node own nothing, or let it own shards again."""
        key = f"drain.{node.name}"
        self._decide(key, b"{}" if self._cluster.buckets.value(key) is None else None)

    def _decide(self, key: str, value: bytes | None) -> None:
        buckets = self._cluster.buckets
        for server in ALL:
            if buckets.put(server, key, value):
                return

    # Servers

    def _step_down(self, node: SimNode) -> None:
        self._dice.choice(self._cluster.streams).step_down()

    def _kill_server(self, node: SimNode) -> None:
        self._kill({self._dice.randrange(SERVERS)}, (2_000_000, 12_000_000))

    def _kill_two(self, node: SimNode) -> None:
        self._kill(set(self._dice.sample(range(SERVERS), 2)), (1_000_000, 12_000_000))

    def _kill(self, killed: set[int], span: tuple[int, int]) -> None:
        servers = self._cluster.servers
        servers.change([up and server not in killed for server, up in enumerate(servers.is_up)], servers.apart)
        for stream in self._cluster.streams:
            stream.lose_unsynced(min(killed), self._dice.randint(0, UNSYNCED_MAX))
        self._cluster.later(span, self.restore_servers)

    def _split(self, node: SimNode) -> None:
        self._part({self._dice.randrange(SERVERS)})

    def _split_all(self, node: SimNode) -> None:
        self._part(set(ALL))

    def _part(self, apart: set[int]) -> None:
        servers = self._cluster.servers
        servers.change(servers.is_up, apart)
        self._cluster.later((2_000_000, 15_000_000), self.restore_servers)

    def _power_cut(self, node: SimNode) -> None:
        for other in self._cluster.nodes:
            other.crash()
        self._cluster.servers.change([False] * SERVERS, set())
        self._cluster.later((1_000_000, 3_000_000), self.restore_servers)

    def restore_servers(self) -> None:
        self._cluster.servers.change([True] * SERVERS, set())

    # The end

    def clear(self) -> None:
        """Everything is in order again."""
        self.restore_servers()
        for node in self._cluster.nodes:
            self._reconnect(node)
            node.free_disks()
            node.lag(0)
            node.stops_at_write, node.dies_at_beginning = None, False
            for disk in node.disks:
                disk.steps_left = None
            node.resume()
            node.start()
