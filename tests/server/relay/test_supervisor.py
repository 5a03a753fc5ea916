"""The server beside its relay: a process that cannot be had, and sockets that outlast the hub."""

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
from penstock.server.admin.relay import TOPICS_MAX, list_topics
from penstock.server.config.relay_sections import RelaySection
from penstock.server.relay import supervisor
from penstock.server.relay.supervisor import RelayError, RelaySupervisor, TopicFigures
from penstock.server.relay.websocket_hub import RelayHub, RelaySession

NO_RUNTIME = cast(Any, None)


@pytest.mark.promise("The relay", "a relay whose process cannot be had is tried again")
def test_a_process_that_cannot_be_had_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    monkeypatch.setattr(supervisor, "READY_S", 0.25)

    async def start() -> int:
        runtime = cast(Any, SimpleNamespace(scheduler=SimpleNamespace(now=lambda: Now(0, 0))))
        relay = RelaySupervisor(RelaySection(), tmp_path, RelayMemory(), runtime, keeps_rows=False)
        with pytest.raises(RelayError, match="did not open its sockets"):
            await relay.start()
        return relay.restarts

    assert asyncio.run(start()) >= 2


def test_a_socket_may_leave_after_the_hub_is_closed_and_none_may_join(tmp_path: Path) -> None:
    async def leave() -> tuple[int, str] | None:
        hub = RelayHub(NO_RUNTIME, f"ipc://{tmp_path}/relay.sock")
        first, second = RelaySession(hub), RelaySession(hub)
        first.topic = second.topic = b"0" * 64
        hub.join(first, None)
        hub.close()
        hub.leave(first)
        assert hub.count == 0
        hub.join(second, None)
        assert hub.count == 0
        return second.closing

    assert asyncio.run(leave()) == (1001, "Draining")


@pytest.mark.promise("Administration", "topics of token streams by their hashes, bounded")
def test_the_busiest_topics_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    async def ask() -> dict[str, Any]:
        relay = RelaySupervisor(RelaySection(), tmp_path, RelayMemory(), NO_RUNTIME, keeps_rows=False)
        relay.topics = {f"{no:064x}": TopicFigures(messages=no) for no in range(TOPICS_MAX + 7)}
        return msgspec.to_builtins(list_topics(relay))

    told = asyncio.run(ask())
    assert [row["messages"] for row in told["topics"]] == list(range(TOPICS_MAX + 6, 6, -1))
    assert (told["more"], told["running"], told["totals"]) == (7, False, {})
