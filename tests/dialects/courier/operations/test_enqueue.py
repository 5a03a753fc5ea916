"""`POST /v1/enqueue`: checks of envelopes and their ids."""

from __future__ import annotations

import msgspec
import pytest

from penstock.dialects.courier.operations.enqueue import EnqueueRequest, enqueue
from penstock.dialects.courier.operations.outcomes import Result
from tests.dialects.courier.operations.operation_results import code, only, put, raw, value
from tests.dialects.courier.talking import Broker, envelope


class TestEnqueue:
    @pytest.mark.parametrize("request_", [EnqueueRequest("a"), EnqueueRequest("a", raw({}), [raw({})])])
    def test_takes_one_or_many_and_not_both(self, request_: EnqueueRequest) -> None:
        assert code(put(Broker(), request_)) == "InvalidRequest"

    def test_an_id_is_made_only_where_asked(self) -> None:
        broker = Broker()
        bare = {key: field for key, field in envelope().items() if key != "id"}
        assert code(put(broker, EnqueueRequest("a", raw(bare)))) == "InvalidEnvelope"
        assert code(put(broker, EnqueueRequest("a", raw(bare), assign_id=False), assign=True)) == ("InvalidEnvelope")
        first = value(broker, put(broker, EnqueueRequest("a", raw(bare), assign_id=True)))
        second = value(broker, put(broker, EnqueueRequest("a", raw(bare)), assign=True))
        assert first["id"] != second["id"]
        bodies = [msgspec.json.decode(record.body) for record in broker.machine.channels["a"].ready]
        assert [body["id"] for body in bodies] == [first["id"], second["id"]]

    def test_answers_wait_for_new_records(self) -> None:
        outcome = put(Broker(), EnqueueRequest("a", raw(envelope())))
        assert isinstance(outcome, Result)
        assert (outcome.fresh, outcome.gate) == (True, 1)

    def test_scope(self) -> None:
        broker = Broker()
        request = EnqueueRequest("a", raw(envelope()))
        outcome = enqueue(broker.machine, broker.now, only("streams:b:*"), request, assign=False)
        assert code(outcome) == "Forbidden"
        assert not broker.machine.known("a")
