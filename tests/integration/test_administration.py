"""Actions of the operator: with the console's cookie or a token, in spaces, with tokens."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.serving import Answer, Http, Peer, run, sockets, until
from tests.server_process import ServerProcess

SPACE = """\
spaces:
  - space: {id: demo}
    participants:
      ann: {tokens: [ann-token], capabilities: [{kind: chat}]}
      tom: {tokens: [tom-token], capabilities: [{kind: chat}]}
"""
TOKENS = """\
auth:
  tokens:
    - {token: plain-token, name: plain, scopes: ["streams:*:*"]}
    - {token: admin-token, name: boss, scopes: ["admin:*"]}
    - {token: acme-token, name: al, tenant: acme, scopes: ["streams:*:*"]}
"""


class AdminDriver:
    """A server, its operator, and its browser."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.http = Http(process.http)
        self.token = (process.data / "run" / "operator.token").read_text().strip()
        self.operator = Http(process.http, self.token)
        self.page = {"Origin": process.http, "Sec-Fetch-Site": "same-origin"}

    def sign_in(self, token: str | None = None, **headers: str) -> Answer:
        return self.http.post("/console/session", {"token": token or self.token}, {**self.page, **headers})

    def cookie(self, token: str | None = None) -> dict[str, str]:
        """What a browser sends after signing in."""
        answer = self.sign_in(token)
        assert answer.status == 200, answer
        return {**self.page, "Cookie": answer.headers["Set-Cookie"].partition(";")[0]}

    def reload(self, text: str) -> None:
        (self.process.folder / "config.yaml").write_text(text)
        answer = self.operator.post("/v1/reload", b"")
        assert answer.status == 200, answer

    def mint(self, name: str, *scopes: str, **more: Any) -> str:
        body = {"name": name, "scopes": scopes or ("streams:*:*",), **more}
        answer = self.operator.post("/v1/tokens", body)
        assert answer.status == 200 and answer.json["required"] is True, answer
        return str(answer.json["token"])

    def revoke(self, name: str) -> Answer:
        return self.operator.ask("DELETE", f"/v1/tokens/{name}")

    def say(self, what: str, body: Any, space: str = "demo") -> Answer:
        return self.operator.post(f"/v1/spaces/{space}/{what}", body)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminDriver]:
    process = ServerProcess(tmp_path_factory.mktemp("admin"), config=SPACE)
    yield AdminDriver(process)
    process.kill()


@pytest.fixture
def admin(running: AdminDriver) -> Iterator[AdminDriver]:
    yield running
    for row in running.operator.get("/v1/tokens").json["tokens"]:
        if row["origin"] == "minted":
            assert running.revoke(row["name"]).status == 200
    running.reload(SPACE)


# The session


@pytest.mark.promise(
    "Administration",
    "the console's cookie has safe attributes, expires, is for administrators only, and any change invalidates it",
)
def test_a_cookie_stands_for_the_operator(admin: AdminDriver) -> None:
    answer = admin.sign_in()
    told = answer.json
    assert (told["name"], told["operator"], told["spaces"], told["relay"]) == (
        "operator",
        True,
        ["demo"],
        False,
    )
    assert "HttpOnly" in answer.headers["Set-Cookie"] and "SameSite=Strict" in answer.headers["Set-Cookie"]
    cookie = admin.cookie()
    assert admin.http.get("/console/session", cookie).json == told
    assert admin.http.get("/v1/spaces", cookie).status == 200
    assert admin.http.get("/v1/journal", cookie).status == 200  # the operator's own
    assert admin.http.get("/v1/spaces").code == "Unauthorized"
    assert admin.http.get("/console/session").code == "Unauthorized"
    out = admin.http.ask("DELETE", "/console/session", headers=cookie)
    assert out.status == 204 and out.body == b"" and "Max-Age=0" in out.headers["Set-Cookie"]


@pytest.mark.promise("Administration", "pages of other ports and origins have no session")
def test_a_page_of_another_port_is_shut_out_cookie_or_not(admin: AdminDriver) -> None:
    cookie = admin.cookie()
    other = {**cookie, "Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}
    assert admin.http.post("/v1/spaces/demo/kick", {"participant": "ann"}, other).code == "Forbidden"
    assert admin.sign_in(Origin="http://127.0.0.1:1").code == "Forbidden"
    without = {key: value for key, value in other.items() if key != "Origin"}
    assert admin.http.get("/v1/spaces", without).code == "Unauthorized"
    admin.reload(SPACE + "listen: {origins: ['http://127.0.0.1:1']}\n")  # may connect, with a token
    old_browser = {key: value for key, value in other.items() if key != "Sec-Fetch-Site"}
    assert admin.http.get("/v1/spaces", old_browser).code == "Unauthorized"

    async def follow() -> None:
        async with sockets(admin.process.http) as ends:
            live = "/v1/live?view=inflight"
            peer = await ends.open(live, headers=cookie)
            await peer.read()
            admin.reload(SPACE)
            assert (await ends.refused(live, headers=other)).code == "Forbidden"

    run(follow())


@pytest.mark.promise("Administration", "a session ends with its token and survives a restart, and no token is logged")
def test_who_is_no_administrator_does_not_sign_in_and_no_token_is_logged(admin: AdminDriver) -> None:
    admin.reload(SPACE + TOKENS)
    for token in ("plain-token", "acme-token", "guessed-token"):
        answer = admin.sign_in(token)
        assert answer.code == "Unauthorized" and "Set-Cookie" not in answer.headers
        assert admin.http.post("/v1/tokens", {}, {"Authorization": f"Bearer {token}"}).status in (401, 403)
    cookie = admin.cookie("admin-token")
    assert admin.http.get("/console/session", cookie).json["operator"] is False
    assert admin.http.get("/v1/tokens", cookie).status == 200
    admin.reload(SPACE + TOKENS.replace("admin-token", "other-token"))
    assert admin.http.get("/console/session", cookie).code == "Unauthorized"  # its token is gone
    log = until(lambda: '"event":"console.refused"' in admin.process.log() and admin.process.log())
    assert not any(token in log for token in ("plain-token", "guessed-token", "admin-token"))
    assert log.count(admin.token) == log.count(f"/#token={admin.token}\n") <= 1, "the link alone has it"


def test_the_console_is_open_where_requests_are_not(admin: AdminDriver) -> None:
    admin.reload(SPACE + TOKENS + "listen: {requests: false}\n")
    assert admin.http.get("/v1/spaces", admin.cookie()).status == 200
    boss = admin.cookie("admin-token")
    assert admin.http.get("/console/session", boss).status == 200
    assert "listen.requests" in admin.http.get("/v1/spaces", boss).error["message"]


@pytest.mark.promise("Administration", "the console's files are compressed, cached, and the only ones served")
@pytest.mark.parametrize(
    "path", ["/console/..%2f..%2fsecret", "/console/../run/operator.token", "/console/%00", "/console/"]
)
def test_only_files_of_the_console_are_served(admin: AdminDriver, path: str) -> None:
    answer = admin.http.get(path)
    assert answer.status == 404 and admin.token.encode() not in answer.body
    assert admin.http.ask("HEAD", path).body == b""


# Spaces


def heard(admin: AdminDriver, who: str, token: str | None = None) -> list[dict[str, Any]]:
    """What a poller received since its last request."""
    bearer = {"Authorization": f"Bearer {token or f'{who}-token'}"}
    answer = admin.http.get(f"/participants/{who}/messages", bearer, space="demo")
    assert answer.status == 200, answer
    messages: list[dict[str, Any]] = answer.json["messages"]
    return messages


@pytest.mark.promise(
    "Administration",
    "the operator sends, invites and kicks under the same rules as participants, and is otherwise invisible",
)
def test_the_operator_sends_without_visible_presence(admin: AdminDriver) -> None:
    heard(admin, "ann")
    body = {
        "kind": "chat",
        "payload": {"text": "hello", "n": 2**60},
        "to": ["ann"],
        "correlation_id": ["x-1"],
    }
    sent = admin.say("messages", body)
    assert sent.json["from"] == "operator" and sent.json["status"] == "accepted"
    (message,) = heard(admin, "ann")  # no presence message
    assert (message["id"], message["from"], message["kind"]) == (sent.json["id"], "operator", "chat")
    assert message["payload"] == body["payload"] and message["to"] == ["ann"]
    assert message["correlation_id"] == ["x-1"]
    (shown,) = admin.operator.get("/v1/spaces").json["spaces"]
    assert "operator" not in [who["id"] for who in shown["participants"]]

    rows = admin.operator.get("/v1/journal/rows", columns="door,event,channel,sender,id,corr")
    table = pa.ipc.open_stream(io.BytesIO(rows.body)).read_all().to_pylist()
    (row,) = [row for row in table if row["id"] == sent.json["id"]]  # answered, so it is there
    assert (row["event"], row["channel"], row["sender"], row["corr"]) == (
        "envelope",
        "demo",
        "operator",
        "x-1",
    )

    large = {"kind": "chat", "payload": {"text": "x" * 200_000}}
    assert admin.say("messages", large).status == 200


@pytest.mark.promise(
    "Administration",
    "the operator sends, invites and kicks under the same rules as participants, and is otherwise invisible",
)
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"kind": "chat", "payload": {}}, 400, "InvalidRequest"),
        ({"kind": "mcp/request", "payload": {"a": 1}}, 400, "InvalidRequest"),
        ({"kind": "system/presence", "payload": {}}, 400, "InvalidRequest"),
        ({"kind": "chat", "payload": {"text": "x"}, "from": "ann"}, 400, "InvalidRequest"),
        ({"kind": "chat"}, 400, "InvalidRequest"),
        ({"kind": "", "payload": {}}, 400, "InvalidRequest"),
        (b'{"kind": "chat", "payload": {"text": "a", "n": 1e999}}', 400, "InvalidJSON"),
        (b'{"kind": "note", "payload": ' + b"[" * 100 + b"]" * 100 + b"}", 400, "InvalidRequest"),
        ({"kind": "note", "payload": "x" * 1_100_000}, 413, "TooLarge"),
    ],
)
def test_what_participants_may_not_say_the_operator_may_not_either(
    admin: AdminDriver, body: Any, status: int, code: str
) -> None:
    answer = admin.say("messages", body)
    assert (answer.status, answer.code) == (status, code)


@pytest.mark.promise(
    "Administration",
    "the operator sends, invites and kicks under the same rules as participants, and is otherwise invisible",
)
def test_inviting_and_kicking(admin: AdminDriver) -> None:
    answer = admin.say("invite", {"participant": "guest", "capabilities": ["chat", {"kind": "note/*"}]})
    assert answer.status == 200 and answer.json["participant"] == "guest"
    token = answer.json["token"]
    heard(admin, "guest", token)
    assert admin.say("invite", {"participant": "guest"}).code == "IdConflict"
    assert admin.say("invite", {"participant": "x", "capabilities": [{"payload": {}}]}).code == "InvalidRequest"
    assert admin.say("invite", {"participant": "a/../b"}).code == "InvalidRequest"

    assert admin.say("kick", {"participant": "guest", "reason": "done"}).json == {"participant": "guest"}
    bearer = {"Authorization": f"Bearer {token}"}
    gone = admin.http.get("/participants/guest/messages", bearer, space="demo")
    assert gone.status == 403 and "done" in gone.json["message"]
    assert admin.say("kick", {"participant": "nobody-here"}).code == "UnknownParticipant"
    assert admin.say("kick", {"participant": "operator"}).code == "InvalidRequest"
    assert token not in admin.process.log()


@pytest.mark.parametrize("what", ["messages", "invite", "kick"])
def test_an_unknown_space_and_a_forbidden_client_are_rejected(admin: AdminDriver, what: str) -> None:
    body = {"kind": "note", "payload": {}} if what == "messages" else {"participant": "ann"}
    answer = admin.say(what, body, "nowhere")
    assert answer.status == 404 and "space ls" in answer.error["hint"]
    assert admin.http.post(f"/v1/spaces/demo/{what}", body).code == "Unauthorized"
    ann = Http(admin.process.http, "ann-token")
    assert ann.post(f"/v1/spaces/demo/{what}", body).code == "Unauthorized"


def test_without_a_relay_there_are_no_topics(admin: AdminDriver) -> None:
    assert admin.operator.get("/v1/relay/topics").json == {
        "running": False,
        "topics": [],
        "more": 0,
        "totals": {},
    }


# Tokens


async def end_of(peer: Peer) -> int:
    """The close code of a connection, after its first messages."""
    assert (await peer.error())["code"] == "Unauthorized"
    return await peer.closed()


@pytest.mark.promise("Administration", "tokens are created and revoked at run time; only digests are on disk")
def test_with_the_first_token_everybody_needs_one_until_the_last_is_revoked(admin: AdminDriver) -> None:
    async def follow() -> None:
        async with sockets(admin.process.http) as ends:
            anonymous = await ends.subscribe("jobs")
            space = await ends.open("/?space=demo&token=tom-token&participant=tom")
            await space.read()
            token = admin.mint("ci", agent="sam")
            assert await end_of(anonymous) == 1008
            assert admin.http.get("/v1/stats", stream="jobs").code == "Unauthorized"
            holder = Http(admin.process.http, token)
            holder.enqueue("jobs", "1")
            assert holder.get("/v1/tokens").code == "Forbidden"
            own = await ends.subscribe("jobs", "credit=1", headers=holder.headers)
            await own.deliveries(1)

            listed = admin.operator.get("/v1/tokens").json
            assert listed["required"] is True and listed["kept"] is True
            (row,) = listed["tokens"]
            assert (row["name"], row["agent"], row["origin"]) == ("ci", "sam", "minted")
            assert token not in str(listed) and "digest" not in row

            gone = admin.revoke("ci")
            assert gone.json == {"name": "ci", "required": False, "closed": 1}
            assert await end_of(own) == 1008
            assert holder.get("/v1/stats", stream="jobs").code == "Unauthorized"
            assert admin.http.get("/v1/stats", stream="jobs").status == 200
            # A participant came in by a token of its space, so it stayed all the while.
            admin.say("messages", {"kind": "note", "payload": {"still": "there"}})
            assert (await space.read())["payload"] == {"still": "there"}
            assert token not in admin.process.log()

    run(follow())


@pytest.mark.promise("Administration", "tokens are created and revoked at run time; only digests are on disk")
def test_tokens_of_the_config_are_shown_and_left_alone(admin: AdminDriver) -> None:
    token = admin.mint("ci")
    admin.reload(SPACE + TOKENS)
    assert Http(admin.process.http, token).get("/v1/stats", stream="jobs").status == 200  # a reload keeps it
    rows = admin.operator.get("/v1/tokens").json["tokens"]
    assert [(row["name"], row["tenant"], row["origin"]) for row in rows] == [
        ("plain", None, "config"),
        ("boss", None, "config"),
        ("al", "acme", "config"),
        ("ci", None, "minted"),
    ]
    refused = admin.revoke("plain")
    assert refused.code == "TokenInConfig" and "auth.tokens" in refused.error["hint"]
    assert admin.revoke("nobody").code == "UnknownToken"
    again = admin.operator.post("/v1/tokens", {"name": "boss", "scopes": ["streams:*:*"]})
    assert again.code == "IdConflict"
    wrong = admin.operator.post("/v1/tokens", {"name": "x", "scopes": ["streams:*:fly"]})
    assert wrong.code == "InvalidRequest" and "fly" in wrong.error["message"]


@pytest.mark.promise("Administration", "a session ends with its token and survives a restart, and no token is logged")
def test_an_administrators_session_ends_with_its_minted_token(admin: AdminDriver) -> None:
    cookie = admin.cookie(admin.mint("ops", "admin:*"))
    assert admin.http.get("/v1/tokens", cookie).status == 200
    assert admin.http.ask("DELETE", "/v1/tokens/ops", headers=cookie).status == 200
    assert admin.http.get("/console/session", cookie).code == "Unauthorized"


def test_where_everybody_is_let_in_no_token_is_made(admin: AdminDriver) -> None:
    admin.reload(SPACE + "auth: {allowAnonymous: true}\n")
    answer = admin.operator.post("/v1/tokens", {"name": "x", "scopes": ["streams:*:*"]})
    assert answer.code == "InvalidRequest" and "allowAnonymous" in answer.error["hint"]


@pytest.mark.promise("Administration", "a session ends with its token and survives a restart, and no token is logged")
def test_a_restart_keeps_tokens_and_sessions(start_server: Callable[..., ServerProcess]) -> None:
    before = AdminDriver(start_server())
    token, cookie = before.mint("ci"), before.cookie()
    before.process.kill()
    after = AdminDriver(start_server("--json"))
    assert after.token != before.token
    assert after.http.get("/v1/stats", stream="jobs").code == "Unauthorized"
    assert Http(after.process.http, token).get("/v1/stats", stream="jobs").code == "UnknownStream"
    value = cookie["Cookie"].partition("=")[2]
    port = after.process.http.rpartition(":")[2]
    assert after.http.get("/v1/tokens", {**after.page, "Cookie": f"penstock-{port}={value}"}).status == 200
    assert after.process.endpoints["console"] == f"{after.process.http}/"
    said = until(lambda: f'"console":"{after.process.http}/"' in after.process.log() and after.process.log())
    assert after.token not in said and token not in said
