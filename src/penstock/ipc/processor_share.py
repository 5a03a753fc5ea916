"""How far a child process yields the processor to the server.

Linux groups processes by session for scheduling (autogroup): groups share the processor equally, and a nice value counts within its group
only. A child in a session of its own is a group, so its nice value alone has no effect on the server. The group has a nice value too.
"""
# size: two calls of the system.

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

GROUP = Path("/proc/self/autogroup")


def yield_processor(nice: int) -> None:
    """Give this process, and its group where it is one, a lower share of a busy processor."""
    os.nice(nice)
    if os.getsid(0) == os.getpid():  # otherwise the group is that of the process that started the server
        with suppress(OSError):  # no such group on this system
            GROUP.write_text(str(nice))
