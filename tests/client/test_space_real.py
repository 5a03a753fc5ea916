"""Participants in spaces of a real server, and the examples of the four uses of a target."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import penstock
from penstock.cli import main
from penstock.client.space import connection
from penstock.core.errors import PenstockError
from tests.client.scripted_peer import run, until
from tests.paths import ROOT
from tests.server_process import ServerProcess, environment

EXAMPLES = ROOT / "examples" / "mew"
CONFIG = f"""\
spaces:
  - {EXAMPLES / "space.yaml"}
  - space: {{id: lab}}
    participants:
      boss: {{tokens: [boss-token], capabilities: [{{kind: "*"}}]}}
      jen: {{tokens: [jen-token], capabilities: [{{kind: chat}}, {{kind: "stream/*"}}, {{kind: "mcp/*"}}]}}
      kim: {{tokens: [kim-token], capabilities: [{{kind: chat}}, {{kind: "stream/*"}}, {{kind: "mcp/*"}}]}}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("lab"), config=CONFIG)
    yield process
    process.kill()


def place(lab: ServerProcess, name: str, **options) -> penstock.Space:
    settings = {"space": "lab", "participant": name, "token": f"{name}-token"} | options
    return penstock.Space(lab.http, **settings)


async def drained(feed) -> None:
    async for _ in feed:
        pass


@pytest.mark.promise(
    "Space client",
    "a send returns with its echo and raises a correlated error, which other participants cannot forge",
)
def test_what_one_says_everybody_hears_and_it_is_an_echo_for_the_speaker(lab):
    async def go():
        async with place(lab, "jen") as jen, place(lab, "kim") as kim:
            await until(lambda: "kim" in jen.participants)
            assert "jen" in kim.participants and {"kind": "chat"} in jen.capabilities
            heard, echoed = kim.envelopes("chat"), jen.envelopes("chat")
            sent = await jen.chat("hello", to="boss")
            for feed in (heard, echoed):
                envelope = await feed.next()
                assert (envelope.id, envelope.sender, envelope.payload) == (sent, "jen", {"text": "hello"})
        async with place(lab, "jen") as jen:
            assert "kim" not in jen.participants

    run(go())


def test_a_request_finds_its_answer(lab):
    async def go():
        async with place(lab, "jen") as jen, place(lab, "kim") as kim:

            async def answer():
                question = await kim.envelopes("mcp/request").next()
                await kim.send("mcp/response", {"result": 7}, to=question.sender, correlation_id=question.id)

            answering = asyncio.ensure_future(answer())
            await asyncio.sleep(0)
            found = await jen.request("mcp/request", {"method": "count"}, to="kim")
            await answering
            assert (found.sender, found.payload) == ("kim", {"result": 7})

    run(go())


@pytest.mark.promise(
    "Space client",
    "a join names space, id and token; a rejected join raises and is not retried",
)
def test_refusals_have_the_gateways_word_and_a_code_of_ours(lab):
    async def go():
        for options, code, word in (
            ({"token": "wrong"}, "Unauthorized", "unauthorized"),
            ({"space": "nowhere"}, "InvalidRequest", "unknown_space"),
            ({"participant": "kim"}, "Forbidden", "invalid_participant"),
        ):
            with pytest.raises(penstock.SpaceError) as caught:
                await place(lab, "jen", **options).open()
            assert (caught.value.code, caught.value.error) == (code, word)
        async with place(lab, "jen") as jen:
            for kind, payload, code, word in (
                ("space/kick", {"participant_id": "kim"}, "Forbidden", "capability_violation"),
                ("chat", {}, "InvalidRequest", "validation_error"),
                ("stream/grant-write", {"stream_id": "stream-0"}, "UnknownStream", "stream_not_found"),
                ("system/presence", {}, "InvalidRequest", "invalid_request"),
            ):
                with pytest.raises(penstock.SpaceError) as caught:
                    await jen.send(kind, payload)
                assert (caught.value.code, caught.value.error) == (code, word)

    run(go())


@pytest.mark.promise("Space client", "a targeted stream reaches only its target, a broadcast every participant")
def test_a_targeted_stream_reaches_its_target_alone_and_a_broadcast_everybody(lab):
    async def go():
        async with place(lab, "boss") as boss, place(lab, "jen") as jen, place(lab, "kim") as kim:
            feeds = {space.id: space.arrivals("chat") for space in (boss, jen, kim)}
            aimed = await jen.open_stream("kim", metadata={"unit": "C"})
            open_to_all = await jen.open_stream()
            assert (aimed.target, open_to_all.target) == (("kim",), ())
            assert kim.active_streams[aimed.id]["metadata"] == {"unit": "C"}
            await aimed.write(b"\x00#\xff")
            await open_to_all.write("all")
            await jen.chat("end")
            both = [penstock.Frame(aimed.id, b"\x00#\xff"), penstock.Frame(open_to_all.id, b"all")]
            for name, expected in (("kim", both), ("boss", both[1:]), ("jen", both[1:])):
                assert [await feeds[name].next() for _ in expected] == expected
                assert (await feeds[name].next()).payload == {"text": "end"}
            async with place(lab, "jen-two", token="jen-token") as late:  # an alias
                assert late.active_streams[aimed.id]["target"] == ["kim"]
                assert "target" not in late.active_streams[open_to_all.id]
            await aimed.close()
            await until(lambda: aimed.id not in kim.active_streams)
            with pytest.raises(penstock.SpaceError) as caught:
                await jen.open_stream(["kim", "nobody"])
            assert caught.value.payload["targets"] == ["nobody"]

    run(go())


@pytest.mark.promise("Space client", "the SDK manages writers, owners, invitations and kicks")
def test_writers_are_granted_revoked_and_streams_transferred(lab):
    async def go():
        async with place(lab, "boss") as boss, place(lab, "jen") as jen, place(lab, "kim") as kim:
            received, errors = boss.frames(), kim.envelopes("system/error")
            stream = await jen.open_stream("boss")
            await until(lambda: stream.id in kim.active_streams)
            theirs = kim.stream(stream.id)
            await theirs.write(b"too early")
            await errors.next()
            with pytest.raises(penstock.SpaceError) as caught:
                await theirs.write(b"still")
            assert caught.value.error == "unauthorized_stream_write"
            await stream.grant_write("kim")
            assert stream.writers == ("jen", "kim")
            await theirs.write(b"granted")
            assert (await received.next()).data == b"granted"
            await stream.revoke_write("kim")
            await stream.transfer("kim")
            await until(lambda: theirs.owner == "kim")
            assert theirs.target == ("boss",)
            await theirs.write(b"mine")
            assert (await received.next()).data == b"mine"
            with pytest.raises(penstock.SpaceError) as caught:
                await stream.close()
            assert caught.value.error == "unauthorized"
            await theirs.close()

    run(go())


@pytest.mark.promise("Space client", "the SDK manages writers, owners, invitations and kicks")
def test_a_guest_is_invited_joins_and_is_kicked(lab):
    async def go():
        async with place(lab, "boss") as boss:
            invitation = await boss.invite("guest", [{"kind": "chat"}], "for a day")
            assert invitation.url.startswith("ws://")
            with pytest.raises(penstock.SpaceError) as caught:
                await boss.invite("guest")
            assert caught.value.error == "already_exists"
            async with penstock.Space(
                invitation.url, space="lab", participant="guest", token=invitation.token
            ) as guest:
                await guest.chat("thank you")
                feed = guest.envelopes()
                await boss.kick("guest", "the day is over")
                with pytest.raises(penstock.SpaceError, match="the day is over") as caught:
                    await drained(feed)
                assert (caught.value.error, guest.is_connected) == ("kicked", False)

    run(go())


def test_a_second_connection_takes_the_name_and_the_first_does_not_fight(lab):
    async def go():
        async with place(lab, "jen") as first:
            feed = first.envelopes("chat")
            async with place(lab, "jen") as second:
                with pytest.raises(PenstockError, match="another connection joined under our name"):
                    await feed.next()
                await second.chat("still here")
                assert second.reconnects == 0

    run(go())


def test_the_operator_token_opens_every_space(lab):
    async def go():
        token = (lab.data / "run" / "operator.token").read_text().strip()
        async with place(lab, "somebody", token=token) as space:
            assert {"kind": "*"} in space.capabilities

    run(go())


@pytest.mark.promise("Space client", "`penstock space ls|tail|send|open-stream|invite|kick` work")
def test_the_operator_sees_who_is_there_and_what_went_to_whom(lab, capsys):
    def listed(*words):
        token = (lab.data / "run" / "operator.token").read_text().strip()
        assert main(["space", "ls", *words, "--url", lab.http, "--token", token]) == 0
        return capsys.readouterr().out

    async def go():
        async with place(lab, "jen") as jen, place(lab, "kim") as kim:
            received = kim.frames()
            stream = await jen.open_stream("kim")
            await stream.write(b"12345")
            await received.next()
            whole = await asyncio.to_thread(listed, "--space", "lab")
            told = json.loads(await asyncio.to_thread(listed, "--space", "lab", "--json"))
            assert re.search(r"^jen +jen +websocket +yes +chat, stream/\*", whole, re.M)
            assert re.search(rf"^{stream.id} +- +jen +jen +kim +1 +5 +1 +0 *$", whole, re.M)
            (space,) = told["spaces"]
            assert space["streams"][-1]["target"] == ["kim"]
            await stream.close()
        async with place(lab, "boss") as boss:
            await boss.invite("mel", [{"kind": "chat"}])
            assert re.search(r"^mel +mel +- +no +chat", await asyncio.to_thread(listed, "--space", "lab"), re.M)
            await boss.kick("mel")
            assert re.search(r"^mel +mel +- +kicked ", await asyncio.to_thread(listed, "--space", "lab"), re.M)

    run(go())
    assert {line.split()[0] for line in listed().splitlines()[1:]} == {"demo", "lab"}
    assert main(["space", "ls", "--url", lab.http, "--token", "wrong", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "Unauthorized"


@pytest.mark.promise(
    "Space client",
    "a lost connection is restored under the same name; a taken-over client does not fight for its name",
)
def test_a_restart_of_the_server_loses_neither_the_participant_nor_its_stream(start_server, monkeypatch):
    monkeypatch.setattr(connection, "BACKOFF_MAX_S", 0.2)
    first = start_server(config=CONFIG)
    port = first.http.rpartition(":")[2]

    async def go():
        async with place(first, "jen") as jen, place(first, "kim") as kim:
            received = kim.frames()
            welcomes = [space.envelopes("system/welcome") for space in (jen, kim)]
            stream = await jen.open_stream("kim")
            await stream.write(b"before")
            assert (await received.next()).data == b"before"
            first.kill()
            await asyncio.to_thread(start_server, "--http", f"127.0.0.1:{port}", config=CONFIG)
            for welcome in welcomes:
                await welcome.next()
            await stream.write(b"after")
            assert (await received.next()).data == b"after"
            assert (stream.target, jen.reconnects) == (("kim",), 1)

    run(go())


EXPECTED = {
    "game_positions.py": [
        "game-server received 15 positions, and sent 5 states of the world",
        *(f"player-{n} received 5 states of the world, and 0 positions of others" for n in (1, 2, 3)),
    ],
    "sensor_collection.py": [
        "sensor-collector received 30 readings",
        "dashboard received one frame: {'sensor-1': 20.5, 'sensor-2': 21.5, 'sensor-3': 22.5}",
        *(f"sensor-{n} received the summary, and no reading of another sensor" for n in (1, 2, 3)),
    ],
    "reasoning_trace.py": [
        "orchestrator received 3 thoughts, and the conclusion: give the fixture a time zone",
        "bystander received 0 thoughts, and the conclusion: give the fixture a time zone",
    ],
    "file_transfer.py": [
        "file-sender sent 4194304 bytes in 64 frames",
        "file-processor received data.zip: 4194304 bytes in 64 frames, sound: True",
    ],
}


@pytest.mark.promise(
    "Space client",
    "the four use cases of targeted delivery work, including the file transfer with its checksum",
)
@pytest.mark.parametrize("name", EXPECTED)
def test_the_four_uses_of_a_target_run(lab, name):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), lab.http],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    for line in EXPECTED[name]:
        assert line in done.stdout.splitlines(), done.stdout
