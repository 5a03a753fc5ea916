"""Reports cross the pipe unchanged."""

from __future__ import annotations

from penstock.core.relay.topic import RelayCounts
from penstock.server.relay.reports import (
    FACTS,
    RelayReady,
    RelayReport,
    RelayStopped,
    RelayTotals,
    ResumeRequested,
    SubscribersChanged,
    TopicExpired,
    TopicRegistered,
    decode,
    encode,
)

ASKED = ResumeRequested("hash", True, 3)
FACT = TopicRegistered("hash", "signer", 5)


def test_reports_survive_the_way() -> None:
    told: list[RelayReport] = [
        RelayReady("a", "b"),
        FACT,
        ASKED,
        RelayTotals(RelayCounts(messages=3), 1, 2, 3, 4, refused={"signer": 2}),
        RelayStopped(1, 2),
    ]
    assert decode(encode(told)) == told


def test_facts_are_what_a_restart_needs() -> None:
    assert isinstance(FACT, FACTS) and isinstance(TopicExpired("hash", "expired"), FACTS)
    assert not isinstance(ASKED, FACTS)
    assert not isinstance(SubscribersChanged("hash", True, 1), FACTS)
