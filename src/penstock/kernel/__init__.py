"""The Stream Kernel in Python: pipes with back-pressure that can be connected, split, merged, and found by their capabilities.

`courier_pipe` connects a pipe to Penstock. `Hostess` and `Router` are the kernel's two registries, in process. The package knows nothing of
the server or the client.
"""

from __future__ import annotations

from penstock.kernel.courier import courier_pipe
from penstock.kernel.hostess import Hostess, Manifest, Terminal
from penstock.kernel.kernel import Capabilities, Kernel
from penstock.kernel.pipe import Pipe, PipeClosedError, duplex
from penstock.kernel.router import Endpoint, Router, RouterEvent
from penstock.kernel.topology import topology_problems

__all__ = [
    "Capabilities", "Endpoint", "Hostess", "Kernel", "Manifest", "Pipe", "PipeClosedError", "Router", "RouterEvent",
    "Terminal", "courier_pipe", "duplex", "topology_problems",
]  # fmt: skip
