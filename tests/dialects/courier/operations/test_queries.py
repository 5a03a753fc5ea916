"""Stats, peek, where and explain: scopes, shapes and names."""

from __future__ import annotations

import pytest

from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.operations import queries
from tests.dialects.courier.operations.operation_results import code, only, value
from tests.dialects.courier.talking import Broker, envelope


class TestReads:
    def test_only_what_the_scopes_show(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="enqueue", to="a", env=envelope("1"))
        peer.say(type_="enqueue", to="b", env=envelope("1"))
        reader = only("streams:b:read")
        machine, now = broker.machine, broker.now
        (row,) = queries.metrics_of(machine, now, reader, list(machine.channels))
        assert row["id"] == "b"
        (place,) = value(broker, queries.where(machine, now, reader, "1"))["places"]
        assert place["stream"] == "b"
        assert code(queries.where(machine, now, only("streams:c:read"), "1")) == "UnknownEnvelope"
        for read in (queries.stats, queries.explain):
            assert code(read(machine, now, reader, "a")) == "Forbidden"
            assert value(broker, read(machine, now, reader, "b"))
        assert code(queries.peek(machine, now, reader, "a", "ready", 1)) == "Forbidden"

    def test_dead_letters_are_shown_to_those_who_may_read_their_stream(self) -> None:
        broker = Broker()
        broker.control().say(type_="enqueue", to="a", env=envelope("1"))
        machine, now = broker.machine, broker.now
        for scope in ("streams:a:read", "streams:dlq/a:read"):
            assert code(queries.peek(machine, now, only(scope), "a", "dead", 1)) == "Forbidden"
        both = only("streams:a:read", "streams:dlq/a:read")
        assert value(broker, queries.peek(machine, now, both, "a", "dead", 1)) == {"rows": []}

    @pytest.mark.parametrize(("state", "limit"), [("gone", 1), ("ready", 0), ("ready", 1_001), ("ready", -1)])
    def test_peek_is_bounded(self, state: str, limit: int) -> None:
        broker = Broker()
        assert code(queries.peek(broker.machine, broker.now, ANONYMOUS, "a", state, limit)) == "InvalidRequest"

    def test_the_last_time_is_written_for_people(self) -> None:
        broker = Broker()
        broker.subscribe("a")
        assert value(broker, queries.stats(broker.machine, broker.now, ANONYMOUS, "a"))["lastTs"] is None
        broker.control().say(type_="enqueue", to="a", env=envelope("1"))
        stats = value(broker, queries.stats(broker.machine, broker.now, ANONYMOUS, "a"))
        assert stats["lastTs"] == "2025-10-09T08:53:20.000Z"
