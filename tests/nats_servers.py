"""Three NATS servers on loopback, as a cluster needs them: JetStream with `sync_interval: always`. They are killed by their ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

BINARY = Path(sys.executable).with_name("nats-server")
NAMES = ("n1", "n2", "n3")

CONFIG = """
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{store}", sync_interval: {sync}, max_file_store: 1GB, max_memory_store: 16MB }}
cluster {{ name: test, listen: "127.0.0.1:{route}", routes: [{routes}] }}
{accounts}
"""
OPEN = """
accounts {
  SYS { users: [{user: sys, password: sys}] }
  APP { jetstream: enabled, users: [{user: app, password: app}] }
}
system_account: SYS
no_auth_user: app
"""
"""Every client may use the account of the cluster."""


class NatsServers:
    """The processes, by name."""

    def __init__(self, folder: Path, sync: str = "always", accounts: str = OPEN) -> None:
        self._folder = folder
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(2 * len(NAMES))]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            ports = [one.getsockname()[1] for one in sockets]
        self.ports = dict(zip(NAMES, ports, strict=False))
        routes = dict(zip(NAMES, ports[len(NAMES) :], strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in NAMES:
            (folder / f"{name}.conf").write_text(
                CONFIG.format(
                    name=name,
                    port=self.ports[name],
                    store=folder / name,
                    sync=sync,
                    accounts=accounts,
                    route=routes[name],
                    routes=", ".join(f'"nats://127.0.0.1:{port}"' for port in routes.values()),
                )
            )
            self.start(name)

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self.ports.values()]

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [BINARY, "-c", self._folder / f"{name}.conf"], stdout=log, stderr=log, cwd=self._folder
            )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
