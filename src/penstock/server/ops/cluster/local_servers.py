"""Three NATS servers on loopback for `penstock up --join local`: started, watched and ended with the server, kept in `DIR/nats`.

    servers.json    ports and passwords, the same after a restart
    url             what another node on this machine gives to `--join`; it holds no password
    creds           what it gives to `--nats-creds`: a command line would show the password to the users of the machine
    n1.conf, n1/, n1.log, and so on
    n1.log.1        the log of the one that ran before, which says why it ended

They sync each write, as a cluster needs it, but one machine holds all three: this is for trying a cluster out. They end even when the
server is killed, because the system sends them a signal then.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import sys
from pathlib import Path

import msgspec

from penstock.core.errors import PenstockError, Refusal
from penstock.journal.replicated.connection import NatsServersAddress, connect_servers
from penstock.journal.replicated.jetstream import ANSWER_S, FAILURES
from penstock.server.files.secret_files import make_private_folder, write_private
from penstock.server.logging import logs

NAMES = ("n1", "n2", "n3")
USER = "penstock"
READY_S = 60.0
"""How long the servers may take to elect a leader, on a busy machine."""
ASK_EVERY_S = 0.1
RESTART_S = 1.0
"""Before a server that ended is started again."""
STOP_S = 5.0
PORTS = range(20_000, 32_000)
"""Below the ports that systems give to outgoing connections, so that a restart finds its own ones free."""
PORT_TRIES = 5
"""How often new ports are chosen when another program takes one meanwhile."""
END_WITH_PARENT = (
    "import ctypes,os,sys\n"
    "prctl=getattr(ctypes.CDLL(None),'prctl',None)\n"
    "prctl and prctl(1,9)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "os.getppid()==int(sys.argv[1]) or sys.exit(1)\n"
    "os.execv(sys.argv[2],sys.argv[2:])\n"
)
"""Asks Linux for the signal, then becomes the server. A new interpreter does this because no thread runs in it."""

CONFIG = """\
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{store}", sync_interval: always, max_file_store: 64GB, max_memory_store: 16MB }}
cluster {{
  name: penstock-local
  listen: "127.0.0.1:{route}"
  authorization {{ user: route, password: "{route_password}", timeout: 5 }}
  routes: [{routes}]
}}
accounts {{
  SYS {{
    users: [{{user: system, password: "{system_password}"}}]
    exports: [{{service: "$SYS.REQ.SERVER.PING.VARZ", response_type: stream}}]
  }}
  PENSTOCK {{
    jetstream: enabled
    users: [{{user: {user}, password: "{password}"}}]
    imports: [{{service: {{account: SYS, subject: "$SYS.REQ.SERVER.PING.VARZ"}}}}]
  }}
}}
system_account: SYS
"""


class LocalSettings(msgspec.Struct):
    """The file `servers.json`."""

    ports: dict[str, int]
    routes: dict[str, int]
    password: str
    route_password: str
    system_password: str


class _EndedError(Exception):
    """A server ended before all were ready."""


class LocalServers:
    """The three servers of one data directory."""

    def __init__(self, data: Path) -> None:
        self.folder = data / "nats"
        self.creds = self.folder / "creds"
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._lock: int | None = None

    async def start(self) -> NatsServersAddress:
        """Start them and wait until they can keep messages. Raises PenstockError."""
        make_private_folder(self.folder)
        self._take_lock()
        file = self.folder / "servers.json"
        try:
            settings = msgspec.json.decode(file.read_bytes(), type=LocalSettings)
        except (OSError, msgspec.DecodeError):
            return await self._start_first(file)
        try:
            return await self._start_with(settings)
        except _EndedError as error:
            raise PenstockError(Refusal("Unreachable", str(error), hint=f"its log says why: {self._log()}")) from None

    async def _start_first(self, file: Path) -> NatsServersAddress:
        """Choose ports, and other ones if another program is faster."""
        for last in (*[False] * (PORT_TRIES - 1), True):
            settings = new_settings()
            try:
                address = await self._start_with(settings)
                write_private(file, msgspec.json.encode(settings))
                return address
            except _EndedError as error:
                await self._end_processes()
                if last:
                    hint = f"its log says why: {self._log()}"
                    raise PenstockError(Refusal("Unreachable", str(error), hint=hint)) from None
        raise AssertionError("the last attempt returns or raises")

    def _log(self) -> Path:
        return self.folder / f"{NAMES[0]}.log"

    def _log_before(self, name: str) -> Path:
        return self.folder / f"{name}.log.1"

    def _take_lock(self) -> None:
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            hint = "a second node joins them with the options that the first one prints, and has its own `--data`"
            message = f"another process runs the NATS servers of `{self.folder}`"
            raise PenstockError(Refusal("InvalidRequest", message, hint=hint)) from None

    async def _start_with(self, settings: LocalSettings) -> NatsServersAddress:
        urls = tuple(f"nats://127.0.0.1:{port}" for port in settings.ports.values())
        address = NatsServersAddress(urls, USER, settings.password)
        binary = server_binary()
        for name in NAMES:
            write_private(self.folder / f"{name}.conf", self._config(name, settings).encode())
            await self._spawn(name, binary)
        await self._ready(address)
        write_private(self.creds, f"{address.user}:{address.password}\n".encode())
        write_private(self.folder / "url", (address.shown + "\n").encode())
        self._watches = [asyncio.create_task(self._keep(name, binary)) for name in NAMES]
        return address

    def _config(self, name: str, settings: LocalSettings) -> str:
        password = settings.route_password
        routes = [f'"nats://route:{password}@127.0.0.1:{port}"' for port in settings.routes.values()]
        return CONFIG.format(
            name=name,
            port=settings.ports[name],
            route=settings.routes[name],
            routes=", ".join(routes),
            store=self.folder / name,
            user=USER,
            password=settings.password,
            route_password=password,
            system_password=settings.system_password,
        )

    async def _spawn(self, name: str, binary: str) -> None:
        file = self.folder / f"{name}.log"
        if file.exists() and file.stat().st_size:
            file.rename(self._log_before(name))
        with file.open("wb") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", END_WITH_PARENT, str(os.getpid())),
                *(binary, "-c", str(self.folder / f"{name}.conf")),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the server only, which needs them until it has drained
            )

    async def _ready(self, address: NatsServersAddress) -> None:
        """Until the servers have elected who leads them."""
        try:
            async with asyncio.timeout(READY_S):
                while not await self._has_leader(address):
                    ended = next((name for name, one in self._processes.items() if one.returncode is not None), None)
                    if ended is not None:
                        raise _EndedError(f"the NATS server `{ended}` of `{self.folder}` ended at once")
                    await asyncio.sleep(ASK_EVERY_S)
        except TimeoutError:
            raise _EndedError(f"the NATS servers of `{self.folder}` did not elect a leader in {READY_S:g} s") from None

    @staticmethod
    async def _has_leader(address: NatsServersAddress) -> bool:
        try:
            client = await connect_servers(address, "penstock local")
        except PenstockError:
            return False
        try:
            await client.jetstream(timeout=ANSWER_S).account_info()
        except FAILURES:
            return False
        finally:
            await client.close()
        return True

    async def _keep(self, name: str, binary: str) -> None:
        """Start a server again whenever it ends."""
        while True:
            code = await self._processes[name].wait()
            logs.warning("nats.exit", server=name, code=code, log=str(self._log_before(name)))
            await asyncio.sleep(RESTART_S)
            try:
                await self._spawn(name, binary)
            except OSError as error:  # the next round tries again: the process is still the one that ended
                logs.error("nats.start_failed", exc=error, server=name)

    async def stop(self) -> None:
        """End them, after everything that needs them has ended."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches = []
        await self._end_processes()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _end_processes(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self._processes.values():
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        self._processes.clear()


def free_ports(count: int) -> list[int]:
    """Ports that are free now, and that no outgoing connection gets meanwhile."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            port = PORTS.start + secrets.randbelow(len(PORTS))
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


def new_settings() -> LocalSettings:
    """Ports that are free now, and new passwords."""
    found = free_ports(2 * len(NAMES))
    ports, routes = found[: len(NAMES)], found[len(NAMES) :]
    return LocalSettings(
        dict(zip(NAMES, ports, strict=True)),
        dict(zip(NAMES, routes, strict=True)),
        *(secrets.token_hex(16) for _ in range(3)),
    )


def server_binary() -> str:
    """The program that the extra `penstock[cluster]` brings, else the one on the path."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        hint = "`pip install 'penstock[cluster]'` brings it"
        raise PenstockError(Refusal("Unsupported", "the program `nats-server` is not installed", hint=hint))
    return found
