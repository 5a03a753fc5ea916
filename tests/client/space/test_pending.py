"""Sent envelopes that wait for their echo or for an answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock.client.space.messages import SpaceError, read_message
from penstock.client.space.pending import PendingEnvelopes
from penstock.core.errors import PenstockError, Refusal


def arrival(kind: str, *, id_: str = "x", sender: str = "bob", correlated: str = "", payload: object = None):
    fields = {"kind": kind, "id": id_, "from": sender, "payload": payload}
    return read_message(json.dumps(fields | ({"correlation_id": [correlated]} if correlated else {})).encode())


def run(work):
    return asyncio.run(work())


def test_an_echo_confirms_and_ids_are_never_the_same():
    async def go():
        pending = PendingEnvelopes()
        first, second = pending.begin("echo"), pending.begin("echo")
        assert first.id != second.id
        assert pending.take(arrival("chat", id_=first.id))
        assert (await first.future).kind == "chat"
        assert not second.future.done()

    run(go)


def test_an_answer_is_a_correlated_envelope_and_not_the_echo():
    async def go():
        pending = PendingEnvelopes()
        asked = pending.begin("answer")
        pending.take(arrival("mcp/request", id_=asked.id))
        assert not asked.future.done()
        pending.take(arrival("mcp/response", correlated=asked.id))
        assert (await asked.future).kind == "mcp/response"

    run(go)


def test_where_the_gateway_answers_participants_are_ignored():
    async def go():
        pending = PendingEnvelopes()
        asked = pending.begin("gateway")
        pending.take(arrival("stream/open", sender="liar", correlated=asked.id))
        assert not asked.future.done()
        pending.take(arrival("stream/open", sender="gateway", correlated=asked.id))
        assert (await asked.future).sender == "gateway"

    run(go)


def test_a_correlated_error_of_the_gateway_fails_it():
    async def go():
        pending = PendingEnvelopes()
        asked = pending.begin("echo")
        error = {"error": "capability_violation", "message": "no"}
        pending.take(arrival("system/error", sender="gateway", correlated=asked.id, payload=error))
        with pytest.raises(SpaceError, match="capability_violation"):
            await asked.future

    run(go)


def test_a_lost_connection_fails_all_and_an_ended_one_is_forgotten():
    async def go():
        pending = PendingEnvelopes()
        lost, ended = pending.begin("echo"), pending.begin("echo")
        pending.end(ended)
        pending.fail(PenstockError(Refusal("Unreachable", "lost")))
        with pytest.raises(PenstockError, match="lost"):
            await lost.future
        assert not pending.take(arrival("chat", id_=ended.id))

    run(go)
