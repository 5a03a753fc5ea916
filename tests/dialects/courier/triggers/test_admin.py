"""Changing triggers at run time."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.scopes import OPERATOR
from penstock.dialects.courier.operations.outcomes import Outcome, Result
from penstock.dialects.courier.triggers import admin
from penstock.dialects.courier.triggers.config import Trigger
from penstock.server.engine.machines import install_rules
from tests.core.rules.test_firing import activity, cooled, put, rule
from tests.dialects.courier.talking import Broker, HandJournal


def test_a_second_change_of_a_rule_waits_until_the_first_is_written() -> None:
    journal = HandJournal()
    broker = Broker(journal=journal)

    def give(**more: Any) -> Outcome:
        trigger = msgspec.convert(rule(**more), Trigger)
        outcome = admin.put(broker.machine, broker.now, OPERATOR, "r", trigger)
        broker.runtime.apply(broker.now)
        broker.run()
        return outcome

    assert isinstance(give(), Result)
    refused = admin.remove(broker.machine, broker.now, OPERATOR, "r")
    assert getattr(refused, "code", None) == "JournalUnavailable"
    assert getattr(give(enabled=False), "code", None) == "JournalUnavailable"
    journal.refuse()
    broker.run()
    assert broker.machine.triggers.texts == {}
    assert isinstance(give(), Result)
    journal.commit()
    broker.run()
    assert isinstance(give(enabled=False), Result)


def test_a_reload_keeps_the_counts_of_rules_that_were_given_at_run_time() -> None:
    broker = Broker()
    trigger = msgspec.convert(cooled(), Trigger)
    assert isinstance(admin.put(broker.machine, broker.now, OPERATOR, "r", trigger), Result)
    put(broker, "s", "a")
    install_rules(broker.machine, [])
    put(broker, "s", "b")
    assert (activity(broker).run, activity(broker).suppressed) == (1, 1)
