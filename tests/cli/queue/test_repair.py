"""`penstock redrive`, `drop` and `purge`, as an operator repairs a stream by hand."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import ok


@pytest.fixture
def operator(cli, server):
    """Commands with the token of the operator, which the CLI finds by itself next to `./penstock-data`."""
    token = (server.data / "run" / "operator.token").read_text().strip()
    return lambda *words, **more: cli(*words, PENSTOCK_TOKEN=token, **more)


def dead(cli, stream, *ids):
    """Make dead letters."""
    for id_ in ids:
        ok(cli("enqueue", "--to", stream, "--type", "t", "--id", id_, "--payload", "1"))
    taken = ok(cli("subscribe", stream, "--max", str(len(ids)), "--json"))
    assert len(taken.splitlines()) == len(ids)
    for id_ in ids:
        ok(cli("inbox", "--as", stream.removeprefix("agents/").removesuffix("/inbox"), "--max", "1"))
        ok(cli("done", id_, "--stream", stream, "--op", "term", "--reason", "no such file"))


@pytest.mark.promise("SDK and command line", "`redrive`, `drop` and `purge` act on a stream or on one id")
def test_dead_letters_are_repaired_one_by_one(operator, stream):
    name = stream.replace("/", "-")
    stream = f"agents/{name}/inbox"
    ids = [f"{name}-{number}" for number in range(3)]
    dead(operator, stream, *ids)
    shown = ok(operator("peek", stream, "--state", "dead"))
    assert shown.count("term: no such file") == 3
    assert ok(operator("redrive", "--id", ids[1])) == "moved 1, left 2\n"
    assert ok(operator("drop", "--id", ids[0])) == f"dropped {ids[0]}\n"
    assert json.loads(ok(operator("redrive", stream, "--json"))) == {"moved": 1, "left": 0, "kept": 0}
    assert ok(operator("purge", stream)) == f"dropped 2 envelopes of {stream}\n"
    assert json.loads(ok(operator("purge", stream, "--json"))) == {"purged": 0}


def test_what_cannot_be_done_has_an_error_with_a_hint(cli, operator, stream):
    ok(cli("enqueue", "--to", stream, "--type", "t", "--id", stream, "--payload", "1"))
    for words, error in (
        (("redrive", stream), "there are no dead letters"),
        (("redrive", "--id", stream), "is no dead letter"),
        (("redrive",), "give a stream or an id"),
        (("drop", "--id", "no-such-id"), "UnknownEnvelope"),
        (("purge", "no/such/stream"), "UnknownStream"),
    ):
        done = operator(*words)
        assert done.returncode == 1 and error in done.stderr and "hint: " in done.stderr, words
    assert "`--id` on the command line" in operator("redrive").stderr
    refused = cli("purge", stream)
    assert refused.returncode == 1 and "operator.token" in refused.stderr
    assert cli("drop").returncode == 2, "which envelope is required"
