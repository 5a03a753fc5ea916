"""A test kit for programs that use Penstock.

    from penstock.testing import World

    world = World(seed=7)
    client = world.connect()
    client.send_line({"type": "subscribe", "stream": "jobs", "credit": 1})
    world.advance(ms=30_000)
    assert client.deliveries == []

`World` is the real server on a simulated clock, network and disk. Nothing sleeps and nothing is random: half an hour passes in
milliseconds, and a seed gives the same run every time, so to replay a failure is to run its seed again. An `Observer` sees every
message, commit and step of a world, and may check them.

`serve()` is the real server on free ports, for tests of programs that connect by themselves. `make_history()` fills a data
directory without a server, for tests of tables on many rows.

The package uses everything else of Penstock; only the benches use it.
"""

from penstock.testing.clients import LineClient, SocketClient, SpaceClient, make_space
from penstock.testing.disk import LyingDisk
from penstock.testing.history import make_history
from penstock.testing.server import MemoryServer, serve
from penstock.testing.world import Observer, World

__all__ = [
    "LineClient", "LyingDisk", "MemoryServer", "Observer", "SocketClient", "SpaceClient", "World", "make_history",
    "make_space", "serve",
]  # fmt: skip
