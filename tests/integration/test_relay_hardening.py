"""The relay of a real server under a disk that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faulty_disk import FaultyServer
from tests.integration.serving import Http
from tests.integration.test_relay import MAC_KEY, context, publisher_of, rows, signer, wait
from tests.integration.token_peers import Sockets, Subscriber
from tests.server_process import ServerProcess

__all__ = ["context"]


def registered(server: ServerProcess) -> list[dict[str, Any]]:
    return [row for row in rows(server) if row["event"] == "register"]


def health(server: ServerProcess) -> Any:
    return Http(server.http).get("/health").json


@pytest.mark.promise(
    "Relay", "streams pass while the journal's disk fails, and registrations made then survive a restart"
)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_streams_pass_while_the_disk_fails(tmp_path: Path, context: Sockets, error: str) -> None:
    server: ServerProcess = FaultyServer(tmp_path, "--relay")
    try:
        assert isinstance(server, FaultyServer)
        before, during = publisher_of(context, server), publisher_of(context, server)
        before.register(signer(server))
        wait(lambda: len(registered(server)) == 1)
        with server.failing(error, ".seg"):
            during.register(signer(server))
            for publisher in (before, during):
                subscriber = Subscriber(context, server.endpoints["pub"], publisher.topic, MAC_KEY)
                frame = publisher.chunk(b"%08d" % 1)
                assert subscriber.receive() == [publisher.topic + frame]
            wait(lambda: not health(server)["journal"]["ok"])
        wait(lambda: health(server)["journal"]["ok"])
        assert health(server)["relay"]["ok"]
        wait(lambda: len(registered(server)) == 2)
        server.kill()
        server = ServerProcess(tmp_path, "--relay")
        wait(lambda: health(server)["relay"]["topics"] == 2)
    finally:
        if server.process.poll() is None:
            server.kill()


@pytest.mark.promise("Relay", "a key file that cannot be written ends the start with its cause")
def test_a_key_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "fault").write_text("ENOSPC publisher.key any")
    with pytest.raises(AssertionError) as failed:
        FaultyServer(tmp_path, "--relay").kill()
    text = str(failed.value)
    assert "No space left on device" in text and "Traceback" not in text
