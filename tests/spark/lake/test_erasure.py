"""Which rows belong to an agent, a conversation or an envelope."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from penstock.spark.lake.erasure import Erasure

OURS = [
    {"sender": "sam"},
    {"peer": "agents/sam"},
    {"holder": "agents/sam/inbox"},
    {"channel": "agents/sam/inbox"},
    {"channel": "dlq/agents/sam/inbox"},
    {"address": "agents/sam/inbox"},
    {"targets": ["ann", "sam"]},
    {"agents": ["ann", "sam"]},
    {"body": b'{"from": "sam"}'},
    {"body": b'{"to":["ann" , "sam"]}'},
    {"body": b'{"payload":{"text":"ask agents/sam, please"}}'},
    {"meta": '{"target":["sam"]}'},
    {"extra": '{"to":"agents/sam/inbox"}'},
    {"body": rb'{"reply":"agents\/sam\/inbox"}'},
    {"body": rb'{"text":"ask\nagents/sam"}'},
]
OTHERS = [
    {"sender": "same"},
    {"sender": "agents/sam-2"},
    {"channel": "sam"},
    {"channel": "jobs/sam"},
    {"targets": ["samuel"]},
    {"body": b'{"payload":{"text":"sam"}}'},
    {"body": b'{"to":["ann"],"payload":["sam"]}'},
    {"body": b'{"to":"agents/samuel/inbox"}'},
    {"body": b'{"text":"superagents/sam/inbox"}'},
    {"topic_hash": "sam"},
]


@pytest.mark.parametrize(("row", "is_ours"), [(row, True) for row in OURS] + [(row, False) for row in OTHERS])
def test_rows_of_an_agent_are_not_those_of_others(row, is_ours):
    rows = pa.Table.from_pylist([row, {}])
    assert Erasure(agent={"sam", "s.m"}).owned(rows).to_pylist() == [is_ours, False]
    assert Erasure(corr={"sam"}).owned(pa.Table.from_pylist([row])).to_pylist() == [False]


def test_a_name_is_found_however_json_writes_it():
    texts = [
        json.dumps({"to": "zoë"}),
        json.dumps({"to": "zoë"}, ensure_ascii=False),
        r'{"to":"zo\u00EB"}',
        '{"to":"zoe"}',
    ]
    assert Erasure(agent={"zoë"}).owned(pa.table({"meta": texts})).to_pylist() == [True, True, True, False]


def test_conversations_and_envelopes_are_found_by_their_columns():
    rows = pa.table({"id": ["c", "m", "x", None], "corr": [None, "c", "m", None]})
    assert Erasure(corr={"c"}).owned(rows).to_pylist() == [True, True, False, False]
    assert Erasure(id={"m"}).owned(rows).to_pylist() == [False, True, False, False]


def test_rows_of_tables_go_with_their_row_of_the_journal():
    erasure = Erasure(id={"m"}, doomed={"j": {1}, "k": set()}, gone={"j": {2}, "k": {3}})
    rows = pa.table({"journal": ["j", "j", "j", "k", "k"], "offset": [1, 2, 3, 1, 3]})
    assert erasure.marked(rows).to_pylist() == [True, True, False, False, True]
    assert json.loads(erasure.record()) == {"rows": 1, "by": {"id": 1}}
