"""Helpers for tests of operations: read an outcome, limit a principal, enqueue one envelope."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.queue.settle import Denied
from penstock.core.scopes import ANONYMOUS, Principal, require
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, enqueue
from penstock.dialects.courier.operations.outcomes import Outcome, Result
from tests.dialects.courier.talking import Broker


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def code(outcome: Outcome) -> str:
    if isinstance(outcome, Denied):
        return outcome.refusal.code
    assert isinstance(outcome, Refusal), outcome
    return outcome.code


def value(broker: Broker, outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome, Result), outcome
    broker.runtime.apply(broker.now)
    broker.run()
    return outcome.value()


def only(*scopes: str, agent: str | None = None) -> Principal:
    return Principal("limited", agent=agent, scopes=require(scopes))


def put(broker: Broker, request: EnqueueRequest, *, assign: bool = False) -> Outcome:
    return enqueue(broker.machine, broker.now, ANONYMOUS, request, assign=assign)
