"""Three NATS servers on loopback, as a cluster needs them: JetStream with `sync_interval: always`. They are killed by their ids."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.server.ops.cluster.local_servers import END_WITH_PARENT, PORT_TRIES, new_settings

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
START_S = 120.0
"""How long a server may take to listen, on a busy machine."""
LOOK_S = 0.02


def start_child(command: Sequence[object], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, even when this one is killed. The thread that calls it must live as long."""
    guard = [sys.executable, "-I", "-S", "-c", END_WITH_PARENT, str(os.getpid())]
    return subprocess.Popen([*guard, *map(str, command)], **options)


class NatsServers:
    """The processes, by name."""

    def __init__(self, folder: Path, sync: str = "always", accounts: str = OPEN) -> None:
        self._folder = folder
        self.ports: dict[str, int]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for tries_left in reversed(range(PORT_TRIES)):
            try:
                self._start_all(sync, accounts)
                return
            except BaseException as error:
                self.close()
                if not isinstance(error, AssertionError) or tries_left == 0:  # else another program took a port
                    raise

    def _start_all(self, sync: str, accounts: str) -> None:
        settings = new_settings()
        self.ports = settings.ports
        for name in NAMES:
            (self._folder / f"{name}.conf").write_text(
                CONFIG.format(
                    name=name,
                    port=self.ports[name],
                    store=self._folder / name,
                    sync=sync,
                    accounts=accounts,
                    route=settings.routes[name],
                    routes=", ".join(f'"nats://127.0.0.1:{port}"' for port in settings.routes.values()),
                )
            )
            self.start(name)
        for name in NAMES:
            self._until_it_listens(name)

    def _until_it_listens(self, name: str) -> None:
        until_s = time.monotonic() + START_S
        while True:
            assert self.processes[name].poll() is None, f"{name} ended:\n{self.log(name)}"
            try:
                socket.create_connection(("127.0.0.1", self.ports[name]), START_S).close()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < until_s, f"{name} does not listen:\n{self.log(name)}"
                time.sleep(LOOK_S)

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self.ports.values()]

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [BINARY, "-c", self._folder / f"{name}.conf"]
            self.processes[name] = start_child(command, stdout=log, stderr=log, cwd=self._folder)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def revive(self) -> None:
        """Start those again that do not run."""
        for name in NAMES:
            if name not in self.processes or self.processes[name].poll() is not None:
                self.start(name)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
