"""What hostile JSON costs the real process on each door, compared with plain JSON of the same size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile_json import plain, shapes
from tests.integration.serving import TS, Http, connected

RATIO = 20
SIZE = 1_500_000
SHAPES = ("numbers", "keys", "depth", "deep objects", "escapes", "surrogates", "long string")

Door = Callable[[bytes], None]


def spent(pid: int) -> int:
    """CPU ticks of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def cost(pid: int, door: Door, payload: bytes) -> float:
    """CPU seconds for one body; the kernel counts in ticks, so a small cost counts as a few of them."""
    before = spent(pid)
    door(payload)
    return max(spent(pid) - before, 3) / os.sysconf("SC_CLK_TCK")


def envelope(number: int, payload: bytes, to: str = "") -> bytes:
    return b'{"id":"e%d","ts":"%b","type":"t"%b,"payload":%b}' % (number, TS.encode(), to.encode(), payload)


def many(payload: bytes, to: str = "") -> list[bytes]:
    return [envelope(number, payload, to) for number in range(SIZE // (len(payload) + 60))]


@pytest.mark.promise("Benchmarks and robustness", "no shape of JSON costs many times what plain JSON of its size costs")
def test_no_shape_of_json_is_expensive_on_any_door(start_server):
    server = start_server()
    http = Http(server.http)
    with connected(server.control) as peer:

        def array(payload: bytes) -> None:
            body = b'{"to":"q","envelopes":[%b]}' % b",".join(many(payload))
            assert http.ask("POST", "/v1/enqueue", body).status in (200, 400, 409)

        def single(payload: bytes) -> None:
            body = b'{"to":"q","envelope":%b}' % envelope(1, payload)
            assert http.ask("POST", "/v1/enqueue", body).status in (200, 400, 409, 413)

        def part(payload: bytes) -> None:
            body = b"\n".join(many(payload, ',"to":"q"'))
            assert http.ask("POST", "/v1/stage/app/1/parts/p", body).status in (200, 400)

        def line(payload: bytes) -> None:
            peer.write(b'{"type":"enqueue","reqId":1,"to":"q","env":[%b]}\n' % b",".join(many(payload)))
            assert peer.frame()["reqId"] == 1

        pid = server.process.pid
        for door, size in ((array, 3_000), (single, 700_000), (part, 3_000), (line, 3_000)):
            usual = cost(pid, door, plain(size))
            for name in SHAPES:
                took = cost(pid, door, shapes(size)[name])
                assert took < RATIO * usual, f"{name} at {door.__name__}: {took} s, plain JSON {usual} s"


def test_a_large_part_is_staged_whole(start_server):
    http = Http(start_server().http)
    lines = many(plain(3_000), ',"to":"q"')
    answer = http.ask("POST", "/v1/stage/app/1/parts/p", b"\n".join(lines))
    assert (answer.status, answer.json["staged"]) == (200, len(lines))
    bad = b"\n".join([*lines, b'{"to":"q","to":"q"}'])
    assert http.ask("POST", "/v1/stage/app/1/parts/p2", bad).error["ref"].startswith(f"lines[{len(lines)}]")
    assert http.post("/v1/stage/app/1/commit", {"parts": ["p"]}).json["enqueued"] == len(lines)
    assert http.stats("q")["depth"] == len(lines)
