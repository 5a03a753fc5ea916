"""Where the relay's time goes: its closed loop under cProfile.

Read the shares beside one another, as `hotspots.py` says.
"""

from __future__ import annotations

from penstock.bench.hotspots import HEADINGS, hottest
from penstock.bench.processes import BenchError
from penstock.bench.relay_rounds import Relays
from penstock.bench.relay_servers import RelayStage
from penstock.cli.output import print_line, print_note, print_table


def show(kinds: list[str], ways: list[str], seconds: float, size: int, topics: int, window: int) -> int:
    """Print the functions with the most time of their own, for one topic and for many."""
    for kind, count in [(kind, count) for kind, count in (("one", 1), ("many", topics)) if kind in kinds]:
        for way in ways:
            with RelayStage() as stage:
                path = stage.folder / "profile"
                server = stage.relay(way, path)
                try:
                    done = Relays(stage, size, window).flow(server, count, seconds)
                except BenchError as error:
                    print_note(f"error: {error}")
                    return 3
                server.stop()
                rows = hottest(path, done.count)
            print_line(f"{kind}, {way}: {done.count:,} messages under the profiler")
            print_table(HEADINGS, rows)
    return 0
