"""The server with its relay: a process that cannot start, and sockets that outlast the hub."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from penstock.core.clock import Now
from penstock.dialects.streamservice.relay_memory import RelayMemory
from penstock.server.admin.connections import TOPICS_MAX, list_topics
from penstock.server.config.sections import RelaySection
from penstock.server.relay import supervisor
from penstock.server.relay.supervisor import (
    RelayError,
    RelaySupervisor,
    TopicFigures,
    curve_keys,
    local_key,
)

NO_RUNTIME = cast(Any, None)


@pytest.mark.promise("Relay", "the server retries if it cannot start the relay's process")
def test_a_process_that_cannot_be_had_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    monkeypatch.setattr(supervisor, "READY_S", 0.25)

    async def start() -> int:
        runtime = cast(Any, SimpleNamespace(turn_listeners=[], scheduler=SimpleNamespace(now=lambda: Now(0, 0))))
        relay = RelaySupervisor(RelaySection(), tmp_path, RelayMemory(), runtime, keeps_rows=False)
        with pytest.raises(RelayError, match="did not open its sockets"):
            await relay.start()
        return relay.restarts

    assert asyncio.run(start()) >= 2


@pytest.mark.promise("Administration", "topics of token streams are listed by their hashes, within a bound")
def test_the_busiest_topics_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    async def ask() -> dict[str, Any]:
        relay = RelaySupervisor(RelaySection(), tmp_path, RelayMemory(), NO_RUNTIME, keeps_rows=False)
        relay.topics = {f"{no:064x}": TopicFigures(messages=no) for no in range(TOPICS_MAX + 7)}
        return msgspec.to_builtins(list_topics(relay))

    told = asyncio.run(ask())
    assert [row["messages"] for row in told["topics"]] == list(range(TOPICS_MAX + 6, 6, -1))
    assert (told["more"], told["running"], told["totals"]) == (7, False, {})


def test_a_publisher_on_this_machine_has_a_key_that_stays(tmp_path: Path) -> None:
    file = tmp_path / "publisher.key"
    public = local_key(file)
    assert local_key(file) == public
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("no key")
    with pytest.raises(RelayError, match="holds no key"):
        local_key(file)


def test_curve_keys_come_from_a_file_of_secret_keys(tmp_path: Path) -> None:
    from penstock.cli import main

    assert main(["token", "curve-keygen", "--out", str(tmp_path), "--json"]) == 0
    keys = curve_keys(tmp_path / "relay.key_secret", ("*",))
    assert len(keys.public) == len(keys.secret) == 40
    assert (tmp_path / "relay.key_secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(RelayError, match="no secret key"):
        curve_keys(tmp_path / "relay.key", ())
    with pytest.raises(RelayError, match="holds no CURVE keys"):
        curve_keys(tmp_path / "nothing", ())
    assert main(["token", "curve-keygen", "--out", str(tmp_path)]) == 1  # never over a key that is there


def test_a_signers_key_is_made_with_its_public_half(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli import main

    assert main(["token", "signer-keygen", "--out", str(tmp_path), "--json"]) == 0
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert shown["public"] == local_key(Path(shown["secret_file"]))
