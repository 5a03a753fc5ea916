"""Where the server's time goes when it forwards frames: the closed loop of a fan-out against a server under cProfile.

Read the shares beside one another, as `hotspots.py` says.
"""

from __future__ import annotations

from penstock.bench.fanout_rounds import Fans
from penstock.bench.fanout_servers import FanStage, config
from penstock.bench.hotspots import HEADINGS, hottest
from penstock.bench.processes import BenchError
from penstock.cli.output import print_line, print_note, print_table


def show(kinds: list[str], seconds: float, size: int, participants: int, window: int) -> int:
    """Print the functions with the most time of their own, for frames to one target and for frames to everybody."""
    for kind in [kind for kind in ("targeted", "broadcast") if kind in kinds]:
        with FanStage() as stage:
            path = stage.folder / "profile"
            server = stage.penstock(path, config=config(participants))
            try:
                fans = Fans(stage, size, window)
                done = fans.flow(server, participants, seconds, is_targeted=kind == "targeted")
            except BenchError as error:
                print_note(f"error: {error}")
                return 3
            server.stop()
            rows = hottest(path, done.frames)
        print_line(
            f"{kind}: {done.frames:,} frames, {done.count:,} deliveries under the profiler; each is a frame"
        )
        print_table(HEADINGS, rows)
    return 0
