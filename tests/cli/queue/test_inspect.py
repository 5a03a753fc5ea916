"""Commands that show streams and envelopes; errors have a code and a hint."""

from __future__ import annotations

import json
import re

import pytest

from penstock.cli.output import about
from tests.cli.conftest import ok
from tests.integration.serving import Http


@pytest.mark.promise("SDK and command line", "`stats`, `peek` and `where` work")
def test_looking(cli, stream):
    ok(cli("enqueue", "--to", stream, "--type", "t", "--id", stream, "--payload", "hi [red]you"))
    (line,) = [line for line in ok(cli("stats")).splitlines() if line.startswith(f"{stream} ")]
    assert re.search(r" \d+s ago$", line.rstrip())
    assert "hi [red]you" in ok(cli("peek", stream))
    assert "ready" in ok(cli("where", stream))
    assert "not flowing" in ok(cli("explain", stream))
    assert json.loads(ok(cli("explain", stream, "--json")))["flowing"] is False
    for words in (["stats"], ["peek", stream], ["where", stream], ["explain", stream]):
        assert "\x1b" not in ok(cli(*words, FORCE_COLOR="1"))


def test_stats_show_percentiles_with_the_digits_that_they_have(server, cli, stream):
    http = Http(server.http)
    http.enqueue(stream, "a", "b")
    assert len(http.pull(stream, max=2)) == 2
    exact = json.loads(ok(cli("stats", stream, "--json")))["latP95"]
    shown = dict(line.split(maxsplit=1) for line in ok(cli("stats", stream)).splitlines())["latP95"].strip()
    assert exact > 0 and shown == about(exact)
    assert [about(ms) for ms in (1.152, 0.0321, 1234.5, 0)] == ["1.2", "0.032", "1200", "0"]


def test_where_prints_times_as_people_read_them(cli, stream):
    ok(cli("enqueue", "--to", stream, "--type", "t", "--id", stream, "--payload", "1", "--delay-ms", "12600000"))
    fields = dict(line.split(maxsplit=1) for line in ok(cli("where", stream)).splitlines())
    assert fields["state"] == "delayed" and fields["dueAt"] == "in 3h"
    (place,) = json.loads(ok(cli("where", stream, "--json")))["places"]
    assert isinstance(place["dueAt"], int)


@pytest.mark.promise("Foundations", "HTTP, WebSocket, command line and documentation share one error table")
def test_refusals_have_a_code_a_message_and_a_hint(cli):
    done = cli("stats", "tests/nothing-here")
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("error: UnknownStream: ") and second.startswith("hint: ")
    done = cli("stats", "tests/nothing-here", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "UnknownStream" and done.returncode == 1


def test_an_unreachable_server_is_an_error(cli):
    done = cli("stats", "--url", "tcp://127.0.0.1:1")
    assert done.returncode == 1 and done.stderr.startswith("error: Unreachable:")
    assert "connection refused" in done.stderr and "Errno" not in done.stderr


def test_the_http_port_used_as_control_port_is_reported(cli, server):
    done = cli("stats", "--url", server.http.replace("http://", "tcp://"))
    assert done.returncode == 1 and f"use `{server.http}`" in done.stderr
