"""`penstock cluster create` and `check` against real NATS servers whose account the command printed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client

from penstock.journal.replicated.connection import connect_servers, parse_servers
from penstock.journal.replicated.jetstream import stream_config, stream_name
from penstock.server.ops.cluster.operator import patiently
from tests.cli.ops.cluster.conftest import CLUSTER, Command, ReportedNodes

pytestmark = pytest.mark.usefixtures("created")
WithClient = Callable[[Callable[[Client], Any]], Any]


def findings(done: Any) -> list[dict[str, str]]:
    return json.loads(done.stdout)["findings"]


@pytest.mark.promise("Cluster", "the account that `cluster create --print-permissions` prints is enough for a cluster")
def test_create_may_be_repeated_and_says_what_comes_next(command: Command) -> None:
    done = command("create", "--shard-mib", "64")
    assert done.returncode == 0, done.stderr
    assert "16 shards of 16 MiB" in done.stdout and "penstock up --join nats://" in done.stdout
    assert "--nats-creds FILE" in done.stdout and f"--cluster {CLUSTER} --node NAME" in done.stdout
    assert "which `create` does not change" in done.stderr and "not verified" not in done.stderr
    known = json.loads(command("create", "--json").stdout)
    assert known["verified"] is True and known["shards"] == 16


def test_a_healthy_cluster_passes_every_check(command: Command, nodes: ReportedNodes) -> None:
    nodes.own(a=list(range(8)), b=list(range(8, 16)))
    done = command("check", "--json")
    assert done.returncode == 0, done.stdout
    assert {found["level"] for found in findings(done)} == {"ok"}, done.stdout
    assert [found["about"] for found in findings(done)] == ["servers", "access", "streams", "nodes"]
    assert "every write is synced" in command("check").stdout


@pytest.mark.promise("Cluster", "`cluster check` finds a stream that was changed, and who else may publish")
def test_check_names_what_is_wrong(command: Command, with_client: WithClient, nodes: ReportedNodes) -> None:
    name = stream_name(CLUSTER, 5, 1)

    async def change(client: Client, most: int) -> None:
        js = client.jetstream(timeout=5)
        await patiently(lambda: js.update_stream(stream_config(name, most)))

    async def look(client: Client) -> Any:
        await change(client, 15_000_000)
        try:
            return await asyncio.to_thread(command, "check", "--json")
        finally:
            await change(client, 16 * 1024 * 1024)

    nodes.own(a=list(range(15)))
    done = with_client(look)
    assert done.returncode == 3
    errors = {found["about"]: found for found in findings(done) if found["level"] == "error"}
    assert "max_bytes" in errors["shard 5"]["message"] and name in errors["shard 5"]["message"]
    assert "15" in errors["shards"]["message"]
    assert all(found["hint"] for found in errors.values())


def test_another_client_of_the_account_is_named(
    command: Command, join: str, creds: Any, with_client: WithClient
) -> None:
    async def look() -> Any:
        other = await connect_servers(parse_servers(join, creds), "billing")
        try:
            return await asyncio.to_thread(command, "check", "--json")
        finally:
            await other.close()

    warnings = [found["message"] for found in findings(asyncio.run(look())) if found["level"] == "warning"]
    assert any("`billing`" in message for message in warnings), warnings


def test_a_server_that_does_not_answer_is_an_error(command: Command, join: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{probe.getsockname()[1]}"
        done = command("check", "--json", PENSTOCK_JOIN=f"{join},{dead}")
    assert done.returncode == 3
    assert any(dead in found["message"] for found in findings(done) if found["level"] == "error")


@pytest.mark.parametrize(
    ("words", "more", "what", "hint"),
    [
        (["check"], {"PENSTOCK_JOIN": ""}, "no NATS servers are given", "--join"),
        (["create"], {"PENSTOCK_CLUSTER": "a.b"}, "cannot be named", "letters"),
        (["create", "--shard-mib", "1"], {}, "16 MiB or more", "leave"),
        (["status"], {"PENSTOCK_CLUSTER": "absent"}, "there is no cluster `absent`", "cluster create"),
        (["create"], {"PENSTOCK_JOIN": "http://a"}, "not the URL of a NATS server", "nats://"),
    ],
)
def test_errors_say_what_to_do(command: Command, words: list[str], more: dict[str, str], what: str, hint: str) -> None:
    done = command(*words, **more)
    assert done.returncode == 1
    assert what in done.stderr and hint in done.stderr.partition("hint: ")[2]


def test_a_wrong_password_is_refused_with_a_hint(command: Command, join: str, tmp_path: Any) -> None:
    (tmp_path / "wrong").write_text("penstock:other")
    done = command("status", PENSTOCK_NATS_CREDS=str(tmp_path / "wrong"))
    assert done.returncode == 1 and "--nats-creds" in done.stderr and "other" not in done.stderr


def test_permissions_are_printed_without_a_server(command: Command) -> None:
    done = command("create", "--print-permissions", PENSTOCK_JOIN="")
    assert done.returncode == 0 and f'"pen.{CLUSTER}.>"' in done.stdout
    assert json.loads(command("create", "--print-permissions", "--json").stdout)["config"] == done.stdout
