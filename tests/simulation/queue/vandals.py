"""An actor that sends only invalid requests, and those requests."""

from __future__ import annotations

from typing import Any

from penstock.testing.clients import Frame
from tests.simulation.queue.actors import TS, Caller


class Vandal(Caller):
    """Says nothing but what must be refused."""

    vandal = True
    pace_ms = 60

    def act(self) -> None:
        line = self.line()
        bad = self.dice.choice(_BAD)
        if isinstance(bad, bytes):
            line.send_line(bad)
        else:
            env = {**_ENV, **bad.get("env", {})} if isinstance(bad.get("env"), dict) else bad.get("env")
            fields = {"stream": self.stream(), **bad, **({"env": env} if "env" in bad else {})}
            line.request(fields.pop("kind"), **fields)


_ENV: Frame = {"id": "v", "ts": TS, "type": "t", "payload": None}
_BAD: list[Any] = [
    b"{",
    b"[]",
    b"\xff\xfe",
    b"null",
    b'{"type":"enqueue","to":"s","env":{"id":"v","id":"v","ts":"' + TS.encode() + b'","type":"t","payload":1}}',
    b'{"type":"enqueue","to":"s","env":' + b"[" * 100 + b"]" * 100 + b"}",
    {"kind": "dance"},
    {"kind": "enqueue", "to": "s"},
    {"kind": "enqueue", "to": "s", "env": 5},
    {"kind": "enqueue", "to": "s", "env": []},
    {"kind": "enqueue", "to": "s", "env": {"id": ""}},
    {"kind": "enqueue", "to": "s", "env": {"id": 7}},
    {"kind": "enqueue", "to": "s", "env": {"ts": "yesterday"}},
    {"kind": "enqueue", "to": "s", "env": {"ts": "2026-01-01T00:00:00"}},
    {"kind": "enqueue", "to": "s", "env": {"to": "elsewhere"}},
    {"kind": "enqueue", "to": "s", "env": {"tags": [1]}},
    {"kind": "enqueue", "to": "s*", "env": {}},
    {"kind": "enqueue", "to": "s", "env": {}, "delayMs": -1},
    {"kind": "enqueue", "to": "s", "env": {}, "delayMs": 10**12},
    {"kind": "enqueue", "to": "s", "env": {"payload": "x" * 5_000}},
    {"kind": "subscribe", "credit": -1},
    {"kind": "subscribe", "credit": 10**9},
    {"kind": "subscribe", "auto": 10**9},
    {"kind": "subscribe", "batch": 0},
    {"kind": "subscribe", "leaseMs": 1},
    {"kind": "subscribe", "subId": "x" * 10_000},
    {"kind": "grant", "n": 1},
    {"kind": "grant", "n": 1.5},
    {"kind": "unsubscribe", "subId": "nobody"},
    {"kind": "ack", "id": "p1-1"},
    {"kind": "nack", "id": "p1-2", "delayMs": -5},
    {"kind": "extend", "id": "p1-3", "ms": 1},
    {"kind": "term", "id": 5},
    {"kind": "pull", "max": 0},
    {"kind": "pull", "waitMs": -1},
    {"kind": "settle", "id": "p1-4", "op": "dance", "leaseId": "x"},
    {"kind": "settle", "id": "p1-5", "op": "ack", "leaseId": "not.a.lease"},
    {"kind": "settle", "id": "p1-6", "op": "ack", "stream": "nowhere"},
    {"kind": "settle", "id": "p1-7", "op": "ack", "stream": None},
    {"kind": "peek", "state": "everything"},
    {"kind": "peek", "max": 0},
    {"kind": "stats", "stream": "nowhere"},
    {"kind": "explain", "stream": "nowhere"},
    {"kind": "redrive", "stream": "nowhere"},
    {"kind": "redrive", "max": 0},
    {"kind": "where", "id": "nobody"},
    {"kind": "snapshot", "view": "none"},
    {"kind": "hello", "version": "v9"},
]
