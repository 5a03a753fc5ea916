"""The Stream Kernel in Python: pipes with back-pressure, joined, split, merged and found by what they can do.

`courier_pipe` puts Penstock behind such a pipe. `Hostess` and `Router` are the kernel's two address books, in process.
"""

from __future__ import annotations

from penstock.kernel.courier import courier_pipe
from penstock.kernel.hostess import Hostess, Manifest, Terminal
from penstock.kernel.kernel import Capabilities, Kernel
from penstock.kernel.pipe import Pipe, PipeClosedError, duplex
from penstock.kernel.router import Endpoint, Router, RouterEvent
from penstock.kernel.topology import topology_problems

__all__ = [
    "Capabilities",
    "Endpoint",
    "Hostess",
    "Kernel",
    "Manifest",
    "Pipe",
    "PipeClosedError",
    "Router",
    "RouterEvent",
    "Terminal",
    "courier_pipe",
    "duplex",
    "topology_problems",
]
