"""The attackers reach their doors and survive every refusal; the control run uses the CPU that it is given."""

from __future__ import annotations

import socket
import time

from penstock.bench.soak.loads import Attackers, SoakJob, burn
from tests.server_process import ServerProcess


def test_each_attack_reaches_the_server_and_is_survived_by_both(server: ServerProcess) -> None:
    ports = (int(address.rpartition(":")[2]) for address in (server.control, server.http))
    job = SoakJob(seconds=0.2, connections=7, body=10_000, **dict(zip(("port", "http_port"), ports, strict=True)))
    for name in ("bodies", "spaces", "batches", "paused", "mistakes"):
        attackers = Attackers(job)
        attackers.run(getattr(attackers, name))
        assert attackers.tries >= 1
    with socket.create_connection(("127.0.0.1", job.port), 10) as sock:
        sock.sendall(b'{"type":"ping","reqId":1}\n')
        assert sock.recv(100)


def test_the_control_run_uses_its_share_of_a_core() -> None:
    before = time.process_time()
    burn(SoakJob(seconds=0.3, share=0.5))
    assert 0 < time.process_time() - before < 0.25
