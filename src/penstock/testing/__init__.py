"""A test kit: the real server on a simulated clock, network and disk.

    from penstock.testing import World

    world = World(seed=7)
    client = world.connect()
    client.send_line({"type": "subscribe", "stream": "jobs", "credit": 1})
    world.advance(ms=30_000)
    assert client.deliveries == []

Nothing sleeps and nothing is random: half an hour passes in milliseconds, and a seed gives the same run every time.
`storm(seed)` is a world with busy actors and bad weather in which every invariant is checked at every step, `space_storm` one
of spaces; `python -m penstock.testing --seed N` shows one of them.

`serve()` is the other kind: the real server with its real doors on free ports, for tests of programs that connect to one.
"""

from penstock.testing.checks import Broken
from penstock.testing.clients import LineClient, SocketClient
from penstock.testing.memory_server import MemoryServer, serve
from penstock.testing.storm import storm
from penstock.testing.world import World

__all__ = ["Broken", "LineClient", "MemoryServer", "SocketClient", "World", "serve", "storm"]
