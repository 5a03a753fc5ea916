"""Followers of views over HTTP: where they resume, and what server-sent events reject."""

from __future__ import annotations

import pytest

from penstock.core.errors import Refusal
from penstock.core.scopes import OPERATOR, Principal
from penstock.dialects.courier.sessions.view_feed import LiveQuery
from penstock.server.courier.event_streams import EventStream, last_event, open_events
from tests.dialects.courier.talking import Broker


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ("0", 0),
        ("17", 17),
        ("9" * 18, int("9" * 18)),
        ("9" * 19, None),
        ("-1", None),
        ("x", None),
        ("²", None),
        ("", None),
    ],
)
def test_only_a_whole_number_of_bounded_length_is_a_version(header: str, version: int | None) -> None:
    assert last_event(header) == version
    assert last_event(None) is None


def test_a_browser_resumes_where_its_last_connection_ended() -> None:
    query = LiveQuery("inflight", since=3)
    assert isinstance(open_events(Broker().runtime, OPERATOR, query, "0", "peer"), EventStream)
    assert query.since == 0
    query = LiveQuery("inflight", since=0)
    assert isinstance(open_events(Broker().runtime, OPERATOR, query, "not a version", "peer"), EventStream)
    assert query.since == 0


@pytest.mark.parametrize(
    ("query", "code"),
    [(LiveQuery("inflight", credit=1), "InvalidCredit"), (LiveQuery("nothing"), "UnknownView")],
)
def test_what_events_cannot_do_is_refused(query: LiveQuery, code: str) -> None:
    refusal = open_events(Broker().runtime, OPERATOR, query, None, "peer")
    assert isinstance(refusal, Refusal) and refusal.code == code


def test_a_principal_without_the_right_is_refused() -> None:
    refusal = open_events(Broker().runtime, Principal("plain"), LiveQuery("inflight"), None, "peer")
    assert isinstance(refusal, Refusal) and refusal.code == "Forbidden"


def test_the_head_of_events_forbids_caching_and_buffering() -> None:
    for line in (b"text/event-stream", b"Cache-Control: no-store", b"X-Accel-Buffering: no"):
        assert line in EventStream.head
