"""Views for readers: scopes, addresses, and views that are computed on demand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.limits import Limits
from penstock.core.scopes import OPERATOR, Principal
from penstock.dialects.courier.operations import views
from tests.dialects.courier.operations.operation_results import code, only, value
from tests.dialects.courier.talking import Broker, filled


def rows(broker: Broker, who: Principal, name: str, addr: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = value(broker, views.snapshot(broker.machine, broker.now, who, name, addr))["rows"]
    return found


def test_a_view_needs_its_own_scope() -> None:
    broker = Broker()
    for who in (only("streams:*:read"), only("views:inflight:read")):
        assert code(views.snapshot(broker.machine, broker.now, who, "metrics:streams")) == "Forbidden"
    assert rows(broker, only("views:*:read"), "metrics:streams") == []


def test_a_reader_sees_only_rows_of_streams_that_it_may_read_or_subscribe_to() -> None:
    broker = Broker()
    filled(broker, "a", "1")
    filled(broker, "b", "1")
    filled(broker, "c", "1")
    reader = only("views:*:read", "streams:a:read", "streams:b:subscribe", "streams:c:enqueue")
    assert [row["addr"] for row in rows(broker, reader, "metrics:streams")] == ["a", "b"]
    assert [row["addr"] for row in rows(broker, OPERATOR, "metrics:streams")] == ["a", "b", "c"]


def test_an_address_limits_the_rows_by_a_pattern() -> None:
    broker = Broker()
    filled(broker, "jobs/1", "1")
    filled(broker, "mail", "1")
    assert [row["addr"] for row in rows(broker, OPERATOR, "metrics:streams", "jobs/*")] == ["jobs/1"]


@pytest.mark.parametrize("addr", ["", "a" * 513])
def test_an_address_without_a_bounded_length_is_rejected(addr: str) -> None:
    broker = Broker()
    assert code(views.snapshot(broker.machine, broker.now, OPERATOR, "inflight", addr)) == "InvalidRequest"


def test_a_lease_is_in_flight_until_it_is_settled() -> None:
    broker = Broker()
    filled(broker, "jobs", "1")
    peer = broker.control()
    (answer,) = peer.say(type_="pull", stream="jobs")
    (row,) = rows(broker, OPERATOR, "inflight")
    assert row["addr"] == "jobs#1"
    content = msgspec.json.decode(row["row"])
    assert (content["id"], content["attempt"]) == ("1", 1)
    peer.say(type_="settle", id="1", op="ack", stream="jobs", leaseId=answer["result"]["deliveries"][0]["leaseId"])
    assert rows(broker, OPERATOR, "inflight") == []


def test_a_refresh_for_followers_reads_a_bounded_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SLICE", 2)
    broker = Broker()
    for name in "abcde":
        filled(broker, name, "1")
    view = broker.machine.views.streams
    seen = []
    for _ in range(3):
        views.refresh_step(broker.machine, broker.now, view)
        seen.append(len(view.rows))
    assert seen == [2, 4, 5]


def test_a_full_view_takes_no_more_rows() -> None:
    broker = Broker(limits=Limits(view_rows_max=2))
    for name in "abc":
        filled(broker, name, "1")
    assert len(rows(broker, OPERATOR, "metrics:streams")) == 2
