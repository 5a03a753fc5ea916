"""`penstock gateway start` as a process: its protocols, its files, and what a restart keeps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.serving import Http, Peer, run, sockets
from tests.server_process import STOP_S, environment

SPACE = """\
space: {id: demo, name: Demo, ui_theme: neon-pulse}
participants:
  human: {tokens: [human-token], capabilities: [{kind: "*"}]}
  bot: {type: local, command: node, auto_start: true}
"""


class Gateway:
    """A running `penstock gateway start`."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [sys.executable, "-m", "penstock.cli", "gateway", "start", "--port", "0", *words]
        with (folder / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=log)
        self.said: list[str] = []

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode().rstrip("\n")
        self.said.append(line)
        return line

    def ready(self) -> dict[str, Any]:
        """Where it is; for one that was started with `--json`."""
        return dict(msgspec.json.decode(self.line()))

    def stop(self) -> int:
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(STOP_S)
        self.process.stdout.close()
        return code


Start = Callable[..., Gateway]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / ".mew").mkdir()
    (tmp_path / ".mew" / "space.yaml").write_text(SPACE)
    started: list[Gateway] = []

    def start(*words: str) -> Gateway:
        started.append(Gateway(tmp_path, "--space-config", ".mew/space.yaml", *words))
        return started[-1]

    yield start
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait(STOP_S)
        assert gateway.process.stdout is not None
        gateway.process.stdout.close()


@pytest.mark.promise(
    "Configuration of a space",
    "`penstock gateway start` accepts upstream's options, drains, and serves Courier to the operator only",
)
def test_the_words_that_people_wait_for_and_a_clean_end(start: Start, tmp_path: Path) -> None:
    file = tmp_path / ".mew" / "space.yaml"
    file.write_text(SPACE + "gateway_logging: {envelope_history: {enabled: false}}\n")
    gateway = start()
    while not gateway.line().startswith("Participants are not started"):
        assert gateway.said[-1], "it ended"
    words = "\n".join(gateway.said)
    assert "Space ID: demo\nParticipants configured: 2\nGateway listening on port " in words
    assert "Generated new tokens for bot" in words and "start bot yourself" in words
    assert gateway.stop() == 0
    files = {str(path.relative_to(tmp_path / ".mew")) for path in (tmp_path / ".mew").rglob("*")}
    assert {"tokens/bot.token", "tokens/.gitignore", "penstock/.gitignore", "penstock/journal"} <= files
    assert "logs/capability-decisions.jsonl" in files and "logs/envelope-history.jsonl" not in files
    token = (tmp_path / ".mew" / "tokens" / "bot.token").read_text()
    assert "human-token" not in words and token not in words
    log = (tmp_path / "gateway.log").read_text()
    assert "human-token" not in log and token not in log


@pytest.mark.promise(
    "MEW gateway",
    "the gateway of a directory is found with its token, and its first page lists what it serves",
)
@pytest.mark.promise(
    "Configuration of a space",
    "`penstock gateway start` accepts upstream's options, drains, and serves Courier to the operator only",
)
def test_the_gateway_serves_its_space_and_courier_to_the_operator_alone(start: Start, tmp_path: Path) -> None:
    endpoints = start("--json", "--host", "0.0.0.0").ready()
    assert endpoints["space"] == "demo" and endpoints["control"] is None
    url = endpoints["http"].replace("0.0.0.0", "127.0.0.1")
    anybody = Http(url)
    # By whatever name the machine is reached.
    health = anybody.get("/health", headers={"Host": "gateway.example:8080"})
    assert (health.status, health.json["status"]) == (200, "ok")
    for path in ("/v1/stats?stream=a", "/v1/metrics", "/v1/journal", "/metrics"):
        answer = anybody.get(path)
        assert (answer.status, answer.code) == (404, "UnknownRoute"), path
    assert anybody.post("/v1/enqueue", {"to": "a", "envelope": {}}).status == 404
    operator = Http(url, Path(endpoints["run"], "operator.token").read_text().strip())
    page = anybody.get("/", {"Accept": "text/plain"})
    assert page.status == 200 and b"/participants" in page.body and b"/v1/" not in page.body
    assert operator.get("/v1/journal").status == 200
    here = {"Origin": url}
    opened = anybody.post("/console/session", {"token": operator.headers["Authorization"][7:]}, here)
    cookie = {**here, "Cookie": opened.headers["Set-Cookie"].partition(";")[0]}
    assert opened.json["spaces"] == ["demo"] and anybody.get("/v1/journal", cookie).status == 200
    said = anybody.post("/v1/spaces/demo/messages", {"kind": "chat", "payload": {"text": "hello"}}, cookie)
    assert said.json["from"] == "operator"
    assert anybody.post("/console/session", {"token": "human-token"}, here).status == 401
    assert Http(url, "human-token").get("/v1/journal").status == 401
    # A second gateway on the same files fails with an error and changes nothing.
    token = (tmp_path / ".mew" / "tokens" / "bot.token").read_text()
    assert start("--json").process.wait(STOP_S) == 1
    assert "error: another process writes" in (tmp_path / "gateway.log").read_text()
    assert (tmp_path / ".mew" / "tokens" / "bot.token").read_text() == token


async def joined(peer: Peer, token: str, participant: str) -> dict[str, Any]:
    """The first message to a client that joins."""
    await peer.say({"type": "join", "space": "demo", "token": token, "participantId": participant})
    answer: dict[str, Any] = await peer.read()
    return answer


async def answered(peer: Peer, kind: str) -> dict[str, Any]:
    """The next message of a kind."""
    while True:
        message: dict[str, Any] = await peer.read()
        if message["kind"] == kind:
            return message


def lines(file: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]


@pytest.mark.promise("MEW gateway", "the log has each join of a space and each rejection")
@pytest.mark.promise("Configuration of a space", "tokens, invitations and log files of a gateway survive a restart")
def test_participants_join_with_their_tokens_and_a_restart_keeps_those_who_were_let_in(
    start: Start, tmp_path: Path
) -> None:
    mewdir = tmp_path / ".mew"
    tokens: dict[str, str] = {}

    async def first(url: str) -> None:
        tokens["bot"] = (mewdir / "tokens" / "bot.token").read_text()
        async with sockets(url) as way:
            human, bot, stranger = [await way.open("/ws?space=demo") for _ in range(3)]
            assert (await joined(human, "human-token", "human"))["kind"] == "system/welcome"
            welcome = await joined(bot, tokens["bot"], "bot")
            assert {"kind": "chat"} in welcome["payload"]["you"]["capabilities"]
            refused = await joined(stranger, "guessed", "bot")
            assert (refused["kind"], refused["payload"]["error"]) == ("system/error", "unauthorized")
            await bot.say({"kind": "chat", "id": "c1", "payload": {"text": "hello"}})
            assert (await answered(human, "chat"))["from"] == "bot"
            # The second is too long for the name of a file, and is invited all the same.
            for who in ("kim", "k" * 200):
                await human.say({"kind": "space/invite", "payload": {"participant_id": who}})
                tokens[who] = (await answered(human, "space/invite-ack"))["payload"]["token"]

    async def second(url: str) -> None:
        async with sockets(url) as way:
            for who, token in (*tokens.items(), ("human", "human-token")):
                assert (await joined(await way.open("/"), token, who))["kind"] == "system/welcome", who

    gateway = start("--json")
    url = gateway.ready()["http"]
    run(first(url))
    health = Http(url).get("/health").json
    assert {"capabilities", "context", "validation", "http-io"} <= set(health["features"])
    assert gateway.stop() == 0
    said = [line for line in lines(tmp_path / "gateway.log") if line["event"].startswith("space.")]
    who = [(line["participant"], line["known"]) for line in said if line["event"] == "space.joined"]
    assert who == [("human", "human"), ("bot", "bot")]
    ended = [(line["code"], line["reason"]) for line in said if line["event"] == "space.ended"]
    assert (1008, "unauthorized") in ended
    assert (mewdir / "tokens" / "kim.token").read_text() == tokens["kim"]
    told = lines(mewdir / "logs" / "envelope-history.jsonl")
    delivered = [line["participant"] for line in told if line["event"] == "delivered" and line.get("id") == "c1"]
    assert sorted(delivered) == ["bot", "human"]
    assert any(line["result"] == "allowed" for line in lines(mewdir / "logs" / "capability-decisions.jsonl"))
    everything = b"".join(path.read_bytes() for path in (mewdir / "logs").glob("*.jsonl"))
    assert not any(token.encode() in everything for token in (*tokens.values(), "human-token"))
    again = start("--json")
    run(second(again.ready()["http"]))
    assert again.stop() == 0
    assert (mewdir / "tokens" / "bot.token").read_text() == tokens["bot"]


@pytest.mark.promise("Configuration of a space", "tokens, invitations and log files of a gateway survive a restart")
def test_requests_of_participants_as_upstream_takes_them(start: Start) -> None:
    url = start("--json").ready()["http"]
    human = Http(url, "human-token")
    taken = human.post("/participants/human/messages?space=demo", {"kind": "chat", "payload": {"text": "x"}})
    assert (taken.status, taken.json["status"]) == (200, "accepted")
    assert Http(url, "guessed").post("/participants/human/messages", {"kind": "chat"}).status == 403
    assert Http(url).post("/participants/human/messages", {"kind": "chat"}).status == 401
    assert human.get("/participants", space="demo").json == {"participants": []}
    assert human.get("/participants", space="other").status == 404
