"""Staged frames on a real server: delivered once, rejected as a whole, and not sent again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import penstock
from penstock.client.admin import Stage
from penstock.core.errors import PenstockError
from tests.integration.serving import encode
from tests.paths import ROOT
from tests.server_process import ServerProcess

EXAMPLE = ROOT / "examples" / "sensors"
APP = "averages"


@pytest.fixture
def start(start_server: Callable[..., ServerProcess]) -> Callable[[], ServerProcess]:
    return lambda: start_server(config=f"spaces: [{EXAMPLE / 'space.yaml'}]")


def stage_of(server: ServerProcess) -> Stage:
    return Stage(server.http, (server.data / "run" / "operator.token").read_text().strip(), patience_s=0.0)


def frame(payload: object, to: str = "space:demo/averages", **more: object) -> bytes:
    return encode({"to": to, "payload": payload, **more})


async def heard(url: str, act: Callable[[], object], count: int) -> list[bytes]:
    """The first frames that the dashboard receives from `act`."""
    token = "token-of-the-dashboard"
    async with (
        asyncio.timeout(30),
        penstock.Space(url, space="demo", participant="dashboard", token=token) as space,
    ):
        feed = space.frames()
        await asyncio.to_thread(act)
        return [(await anext(feed)).data for _ in range(count)]


@pytest.mark.promise(
    "Spark: pipeline",
    "a real server sends staged frames once, rejects a bad batch as a whole, and remembers batches after a crash",
)
def test_a_batch_is_heard_once_and_remembered_after_a_crash(start) -> None:
    server = start()

    def send() -> None:
        with stage_of(server) as stage:
            stage.part(APP, 0, "p", [frame({"n": 1}), frame("plain", payloadAs="text"), frame("quoted")])
            assert (stage.commit(APP, 0, ["p"]).frames, stage.commit(APP, 0, ["p"]).duplicate) == (3, True)
            stage.part(APP, 1, "p", [frame("next"), encode({"to": "jobs", "type": "t", "payload": 1})])
            done = stage.commit(APP, 1, ["p"])
            assert (done.enqueued, done.frames) == (1, 1)

    found = asyncio.run(heard(server.http, send, 4))
    assert found == [b'{"n":1}', b"plain", b'"quoted"', b'"next"']
    server.kill()
    server = start()
    with stage_of(server) as stage:
        assert stage.last(APP) == 1
        stage.part(APP, 1, "p", [frame("again")])
        assert stage.commit(APP, 1, ["p"]).duplicate


@pytest.mark.promise(
    "Spark: pipeline",
    "a real server sends staged frames once, rejects a bad batch as a whole, and remembers batches after a crash",
)
def test_a_wrong_name_or_a_foreign_stream_rejects_the_batch_with_a_hint(start) -> None:
    server = start()

    async def owned() -> str:
        token = "token-of-sensor-1"
        async with penstock.Space(server.http, space="demo", participant="sensor-1", token=token) as space:
            stream = await space.open_stream()
            with pytest.raises(PenstockError, match="may not write"):
                await asyncio.to_thread(commit, f"space:demo/{stream.id}")
            return stream.id

    def commit(to: str) -> None:
        with stage_of(server) as stage:
            stage.part(APP, 0, "p", [encode({"to": "jobs", "type": "t", "payload": 1}), frame(1, to)])
            stage.commit(APP, 0, ["p"])

    for to, said in (
        ("space:demo/averagse", "no stream `averagse`"),
        ("space:other/averages", "no space `other`"),
    ):
        with pytest.raises(PenstockError, match=said) as error:
            commit(to)
        assert error.value.refusal.hint
    asyncio.run(owned())
    with stage_of(server) as stage:
        assert stage.last(APP) is None
    with Stage(server.http, patience_s=0.0) as nobody, pytest.raises(PenstockError, match="admin"):
        nobody.part(APP, 0, "p", [frame(1)])
