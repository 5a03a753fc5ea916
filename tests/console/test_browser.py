"""The console in a real browser with a real server: what a user sees and does in the first ten minutes.

Every test also checks its page for three things: no error on the page, no request to another server, and no violation of the
content-security policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from playwright.sync_api import Page, expect

import penstock
from penstock.dialects.streamservice.keys import StreamKeys, derive
from penstock.ipc.pipeline import BatchStatus, ExpectationStatus, PipelineStatus, QueryStatus, TableStatus
from penstock.server.admin.lake import pipeline_state
from tests.console.visiting import Visiting, confirm, heading, notified, operator, operator_token
from tests.faulty_disk import FaultyServer
from tests.integration.serving import Http
from tests.paths import ROOT
from tests.server_process import ServerProcess
from tests.tiers import first_of

CONSOLE = ROOT / "console"
AXE = CONSOLE / "node_modules" / "axe-core" / "axe.min.js"
SPACE = """
spaces:
  - space: {id: demo, name: Sensors}
    participants:
      collector: {tokens: [collector-token], capabilities: [{kind: "stream/*"}, {kind: chat}]}
      sensor: {tokens: [sensor-token], capabilities: [{kind: "stream/*"}, {kind: chat}]}
      bystander: {tokens: [bystander-token], capabilities: [{kind: chat}]}
"""
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "has_touch": True}
PAGES = (
    "#/",
    "#/tail",
    "#/queues",
    "#/queues/looked%2Fat",
    "#/spaces",
    "#/tokens",
    "#/pipeline",
    "#/connections",
    "#/cluster",
    "#/access",
    "#/dead",
    "#/settings",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a space, a relay, and envelopes in a queue."""
    process = ServerProcess(tmp_path_factory.mktemp("console"), "--relay", config=SPACE)
    Http(process.http).enqueue("looked/at", "one", "two", "three")
    yield process
    process.kill()


# The first visit


@pytest.mark.promise(
    "Console",
    "a first visit signs in by the link and leaves no token behind; without a link the form asks for one",
)
def test_a_first_visit_signs_in_by_the_link_and_leaves_no_token_behind(server: ServerProcess, visit: Visiting) -> None:
    visitor = visit(server)
    page = visitor.sign_in()
    heading(page, "Overview")
    assert "token" not in page.url
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length].join()").startswith(",")
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    page.reload()
    heading(page, "Overview")
    page.go_back()  # the address with the token is not in the history
    assert "token" not in page.url


@pytest.mark.promise(
    "Console",
    "a first visit signs in by the link and leaves no token behind; without a link the form asks for one",
)
def test_sign_in_form_opens_the_requested_page(server: ServerProcess, visit: Visiting) -> None:
    page = visit(server).page
    page.goto(f"{server.http}/#/queues")
    heading(page, "Sign in")
    page.get_by_label("Token").fill("not the token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("this is not an operator's token")).to_be_visible()
    page.get_by_label("Token").fill(operator_token(server))
    page.get_by_role("button", name="Sign in").click()
    heading(page, "Queues")
    page.get_by_role("button", name="Sign out").click()
    heading(page, "Sign in")
    assert page.context.cookies() == []


@pytest.mark.promise(
    "Console",
    "the page survives a restart, supports phones, dark mode and the keyboard, and passes an accessibility scan",
)
def test_every_page_is_reached_by_the_keyboard(server: ServerProcess, visit: Visiting) -> None:
    page = visit(server).sign_in()
    heading(page, "Overview")
    for keys, title in (
        ("t", "Live tail"),
        ("q", "Queues"),
        ("d", "Dead letters"),
        ("k", "Token streams"),
        ("p", "Pipeline"),
        ("c", "Connections"),
        ("l", "Cluster"),
        ("a", "Access tokens"),
        ("e", "Settings"),
        ("o", "Overview"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(keys)
        expect(page.get_by_role("heading", level=1, name=title)).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.promise(
    "Console",
    "in a browser: numbers equal `/metrics`; a message is sent and shown; a lease expires; a purge needs confirmation",
)
def test_the_numbers_equal_those_of_the_metrics(server: ServerProcess, visit: Visiting, http: Http) -> None:
    http.enqueue("counted", *(f"counted-{number}" for number in range(1_234)))
    page = visit(server).sign_in()
    metrics = dict(re.findall(r"^(penstock_\w+) ([0-9.]+)$", http.get("/metrics").body.decode(), re.MULTILINE))
    for metric in (
        "penstock_q_in_total",
        "penstock_q_out_total",
        "penstock_q_ack_total",
        "penstock_q_if",
        "penstock_dead_letters",
        "penstock_q_dead_total",
    ):
        expect(page.locator(f"[data-metric='{metric}']").first).to_have_text(f"{float(metrics[metric]):,.0f}")
    ready = float(metrics["penstock_q_depth"]) - float(metrics["penstock_dead_letters"])
    shown = page.locator("[data-metric='penstock_q_depth - penstock_dead_letters']").first
    expect(shown).to_have_text(f"{ready:,.0f}")


@pytest.mark.promise("Console", "in a browser: Overview names the part that fails, the reason and what to do")
def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path, visit: Visiting) -> None:
    server = FaultyServer(tmp_path)
    try:
        with server.failing("ENOSPC", ".seg"):
            envelope = {"id": "a", "ts": "2026-01-01T00:00:00Z", "type": "t", "payload": None}
            body = {"to": "jobs", "envelopes": [envelope]}
            assert Http(server.http).post("/v1/enqueue", body).code == "JournalUnavailable"
            page = visit(server).sign_in()
            attention = page.get_by_role("status").filter(has_text="Journal: the disk is full")
            expect(attention).to_contain_text("20.0 MiB of free space")
            expect(page.get_by_role("list", name="Services")).to_contain_text("down")
        expect(attention).to_have_count(0)
    finally:
        server.kill()


# The queues


@pytest.mark.promise(
    "Console",
    "in a browser: numbers equal `/metrics`; a message is sent and shown; a lease expires; a purge needs confirmation",
)
def test_a_message_is_sent_and_seen(server: ServerProcess, visit: Visiting) -> None:
    page = visit(server).sign_in("#/queues")
    heading(page, "Queues")
    page.get_by_role("button", name="Send").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To").fill("sam")
    dialog.get_by_label("Type").fill("greeting")
    dialog.get_by_label("Payload").fill('{"text": "Good morn')
    expect(dialog.get_by_role("button", name="Send")).to_be_disabled()
    dialog.get_by_label("Payload").fill('{"text": "Good morning, Sam"}')
    dialog.get_by_role("button", name="Send").click()
    expect(page.get_by_role("log", name="Notifications")).to_contain_text("to agents/sam/inbox")
    page.get_by_role("link", name="agents/sam/inbox").first.click()
    heading(page, "agents/sam/inbox")
    expect(page.get_by_text("no consumer is subscribed", exact=False).first).to_be_visible()
    page.get_by_role("link", name="Live tail").last.click()
    rows = page.get_by_role("grid", name="Journal rows")
    expect(rows).to_contain_text("greeting")
    rows.get_by_role("row").filter(has_text="greeting").click()
    expect(page.get_by_role("dialog")).to_contain_text("Good morning, Sam")


@pytest.mark.promise(
    "Console",
    "in a browser: numbers equal `/metrics`; a message is sent and shown; a lease expires; a purge needs confirmation",
)
def test_a_lease_expires_and_its_envelope_is_ready_again(server: ServerProcess, visit: Visiting, http: Http) -> None:
    http.enqueue("leased", "borrowed")
    page = visit(server).sign_in("#/queues/leased")
    heading(page, "leased")
    http.pull("leased", lease_ms=4_000)
    leases = page.get_by_role("table", name="Leases")
    expect(leases).to_contain_text("borrowed")
    expect(page.locator("[data-metric='q.if']").first).to_have_text("1")
    left = leases.get_by_role("row").filter(has_text="borrowed").get_by_role("cell").last
    before = left.inner_text()
    expect(left).not_to_have_text(before)
    expect(page.get_by_text("No envelopes in flight")).to_be_visible()
    expect(page.locator("[data-metric='q.depth']").first).to_have_text("1")
    assert http.get("/v1/metrics").status == 200 and http.counters()["leased"]["q.timeout"] == 1


@pytest.mark.promise(
    "Console",
    "in a browser: numbers equal `/metrics`; a message is sent and shown; a lease expires; a purge needs confirmation",
)
def test_a_purge_needs_confirmation(server: ServerProcess, visit: Visiting, http: Http) -> None:
    http.enqueue("purged/away", "a", "b")
    page = visit(server).sign_in("#/queues/purged%2Faway")
    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Purge")).to_be_disabled()
    dialog.get_by_role("textbox").fill("purged/away")
    dialog.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("log", name="Notifications")).to_contain_text("2 envelopes dropped")
    assert http.stats("purged/away")["depth"] == 0


# The tail


@pytest.mark.promise(
    "Console",
    "the tail pauses, resumes, filters and exports; a conversation is a tree; thousands of rows do not fill the page",
)
def test_the_tail_pauses_resumes_and_filters(server: ServerProcess, visit: Visiting, http: Http) -> None:
    page = visit(server).sign_in("#/tail?channel=tailed/*")
    rows = page.get_by_role("grid", name="Journal rows")
    http.enqueue("tailed/one", "before the pause")
    expect(rows).to_contain_text("before the pause")
    page.get_by_role("button", name="Pause").click()
    http.enqueue("tailed/one", "during the pause")
    http.enqueue("elsewhere", "another channel")
    expect(page.locator("[data-waiting='1']")).to_be_visible()
    expect(rows).not_to_contain_text("during the pause")
    page.get_by_role("button", name="Resume").click()
    expect(rows).to_contain_text("during the pause")
    expect(rows).not_to_contain_text("another channel")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export as JSON lines").click()
    lines = [json.loads(line) for line in Path(saved.value.path()).read_text().splitlines()]
    sent = [line["id"] for line in lines if line["event"] == "enqueue"]  # a minute may end meanwhile
    assert sent == ["before the pause", "during the pause"]


@pytest.mark.promise(
    "Console",
    "the tail pauses, resumes, filters and exports; a conversation is a tree; thousands of rows do not fill the page",
)
def test_a_conversation_is_a_tree_with_timings(server: ServerProcess, visit: Visiting, http: Http) -> None:
    def say(id_: str, stream: str, **more: Any) -> None:
        body = {
            "id": id_,
            "ts": "2026-01-01T00:00:00Z",
            "type": "said",
            "payload": id_,
            "corr": "talk-1",
            **more,
        }
        assert http.post("/v1/enqueue", {"to": stream, "envelope": body}).status == 200

    say("talk-1", "talks/asked")
    (asked,) = http.pull("talks/asked")
    say("answer", "talks/answered", refs=["talk-1"])
    assert http.settle("talk-1", "ack", leaseId=asked["leaseId"]).status == 200
    page = visit(server).sign_in("#/tail/conversation/talk-1")
    tree = page.get_by_role("list", name="Envelopes, replies below requests")
    expect(tree.get_by_role("listitem")).to_have_count(2)
    root, answer = tree.get_by_role("listitem").all()
    expect(root).to_contain_text("talks/asked")
    expect(root).to_contain_text(re.compile(r"waited [\d.]+ m?s, processed [\d.]+ m?s"))
    expect(answer).to_contain_text("talks/answered")
    assert [root.get_attribute("aria-level"), answer.get_attribute("aria-level")] == ["1", "2"]


@pytest.mark.promise(
    "Console",
    "the tail pauses, resumes, filters and exports; a conversation is a tree; thousands of rows do not fill the page",
)
def test_only_visible_rows_are_rendered(server: ServerProcess, visit: Visiting, http: Http) -> None:
    page = visit(server).sign_in("#/tail?channel=flood")
    rows = page.get_by_role("grid", name="Journal rows")
    # The first request returns only the latest rows, which could be some of these.
    expect(page.get_by_text("No rows match the filters")).to_be_visible()
    for burst in range(10):
        http.enqueue("flood", *(f"flood-{burst}-{number}" for number in range(500)))
    expect(rows).to_have_attribute("aria-rowcount", "5001")
    assert rows.get_by_role("row").count() < 100
    expect(rows).to_contain_text("flood-9-499")


# The spaces


@pytest.mark.promise("Console", "a targeted stream is drawn to its target only; inviting and kicking work")
def test_a_targeted_stream_is_drawn_from_its_writer_to_its_target_alone(server: ServerProcess, visit: Visiting) -> None:
    with (
        penstock.SyncSpace(server.http, participant="collector", token="collector-token"),
        penstock.SyncSpace(server.http, participant="bystander", token="bystander-token"),
        penstock.SyncSpace(server.http, participant="sensor", token="sensor-token") as sensor,
    ):
        stream = sensor.open_stream("collector", description="readings")
        page = visit(server).sign_in("#/spaces")
        heading(page, "Sensors")
        graph = page.get_by_role("img", name=re.compile("Stream graph"))
        targeted = graph.locator("g", has=page.locator("path.edge.targeted"))
        expect(targeted).to_have_count(1)
        expect(targeted.locator("title")).to_have_text(re.compile("^sensor to collector: 1 targeted stream"))
        for number in range(20):
            stream.write(f"reading {number}")
        expect(page.get_by_text(re.compile("20 instead of"))).to_be_visible()
        broadcast = sensor.open_stream()
        expect(graph.locator("path.edge:not(.targeted)")).to_have_count(2)
        broadcast.close()


@pytest.mark.promise("Console", "connections show who, from where, how far behind; closing one returns its leases")
def test_the_connection_of_a_participant_has_a_rate(server: ServerProcess, visit: Visiting) -> None:
    with (
        penstock.SyncSpace(server.http, participant="collector", token="collector-token"),
        penstock.SyncSpace(server.http, participant="sensor", token="sensor-token") as sensor,
    ):
        page = visit(server).sign_in("#/connections?filter=collector")
        row = page.get_by_role("table", name="Connections").get_by_role("row").filter(has_text="collector")
        expect(row.get_by_role("cell").nth(5)).to_have_text("0")
        for number in range(20):
            sensor.chat(f"reading {number}")
        expect(row.get_by_role("cell").nth(5)).to_have_text(re.compile(r"[1-9]"))


@pytest.mark.promise("Console", "a targeted stream is drawn to its target only; inviting and kicking work")
def test_a_guest_is_invited_and_kicked(server: ServerProcess, visit: Visiting) -> None:
    page = visit(server).sign_in("#/spaces")
    page.get_by_role("button", name="Invite").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Participant").fill("newcomer")
    dialog.get_by_role("button", name="Invite").click()
    token = page.locator("[data-token]").inner_text().strip()
    with penstock.SyncSpace(server.http, participant="newcomer", token=token) as newcomer:
        assert newcomer.id == "newcomer"
        page.keyboard.press("Escape")
        row = page.get_by_role("table", name="Participants").get_by_role("row").filter(has_text="newcomer")
        row.get_by_role("button", name="Kick").click()
        confirm(page, "Kick", "newcomer")
        notified(page, "newcomer")
    with (
        pytest.raises(penstock.PenstockError),
        penstock.SyncSpace(server.http, participant="newcomer", token=token),
    ):
        pass


# The token streams


def keys_of(number: int) -> StreamKeys:
    keys = derive(bytes([number]) * 32, bytes([number + 1]) * 32, bytes([number + 2]) * 32)
    assert isinstance(keys, StreamKeys)
    return keys


@pytest.mark.promise("Console", "tokens are verified in the browser, the key stays there, and tampering is flagged")
def test_a_token_stream_is_verified_in_the_browser_and_the_key_stays_there(
    server: ServerProcess, visit: Visiting
) -> None:
    keys, relay = keys_of(1), penstock.local_relay(server.data)
    visitor = visit(server)
    page = visitor.sign_in()
    asked: list[str] = []
    urls: list[str] = []
    page.on(
        "request",
        lambda request: (urls.append(request.url), asked.append(f"{request.post_data} {request.headers}")),
    )
    page.on(
        "websocket",
        lambda socket: (
            urls.append(socket.url),
            socket.on("framesent", lambda frame: asked.append(str(frame))),
        ),
    )
    visitor.open(f"#/tokens?topic={keys.topic}&key={keys.mac_key.hex()}")
    with penstock.SyncTokenPublisher(relay.push, keys, signer=relay.signer) as publisher:
        for token in ("Once", " upon", " a", " time"):
            publisher.send(token)
    expect(page.get_by_role("log", name="Verified text")).to_have_text("Once upon a time")
    expect(page.get_by_text("Complete", exact=True)).to_be_visible()
    assert keys.mac_key.hex() not in page.url + "".join(urls) + "".join(asked)
    assert keys.topic in "".join(asked) and keys.topic not in "".join(urls), "a topic is never in a URL"


@pytest.mark.promise("Console", "tokens are verified in the browser, the key stays there, and tampering is flagged")
def test_a_forged_message_is_flagged_and_not_shown(server: ServerProcess, visit: Visiting) -> None:
    keys, relay = keys_of(10), penstock.local_relay(server.data)
    page = visit(server).sign_in(f"#/tokens?topic={keys.topic}&key={keys.mac_key.hex()}")
    with (
        penstock.SyncTokenPublisher(relay.push, keys, signer=relay.signer) as publisher,
        zmq.Context() as context,
    ):
        publisher.send("What is true")
        publisher.flush()
        expect(page.get_by_role("log", name="Verified text")).to_have_text("What is true")
        forged = forge(keys)
        with context.socket(zmq.PUSH) as push:
            push.connect(relay.push)
            push.send_multipart(forged)
            expect(page.get_by_text(re.compile("the publisher did not make")).first).to_be_visible()
        expect(page.get_by_role("log", name="Verified text")).to_have_text("What is true")
        expect(page.get_by_text("and false")).to_have_count(0)


def forge(keys: StreamKeys) -> list[bytes]:
    """The next block, made without the key."""
    from penstock.dialects.streamservice import encode
    from penstock.dialects.streamservice.chain import BlockChain
    from penstock.dialects.streamservice.messages import Token

    chain = BlockChain(keys.mac_key, keys.topic, keys.suite)
    first = encode.block(chain.prev, [Token("What is true")])
    chain.compute_next(first)
    return [keys.topic.encode(), encode.block(chain.prev, [Token(" and false")]), bytes(16)]


# The pipeline


@pytest.mark.promise("Console", "SQL queries read tables and cannot change them")
def test_a_query_returns_rows_and_a_write_is_rejected(server: ServerProcess, visit: Visiting, http: Http) -> None:
    assert http.post("/v1/journal/seal", None).status == 200
    page = visit(server).sign_in("#/pipeline")
    heading(page, "Pipeline")
    query = page.get_by_role("textbox", name="SQL query")
    query.fill("select count(*) as looked from events where channel = 'looked/at'")
    query.press("Control+Enter")
    expect(page.get_by_role("columnheader", name=re.compile("looked"))).to_be_visible()
    query.fill("drop table events")
    query.press("Control+Enter")
    expect(page.get_by_text(re.compile("only reads")).first).to_be_visible()


@pytest.mark.promise(
    "Console", "the pipeline's page shows where the time of a batch goes, and the step and cause of a failure"
)
def test_the_page_of_the_pipeline_shows_batches_tables_and_failures(server: ServerProcess, visit: Visiting) -> None:
    """What the server would answer if it ran Spark; the rest of the page is real."""
    assert operator(server).post("/v1/journal/seal", None).status == 200  # the table `events`
    ingest = QueryStatus(offset=890)
    for second, ms in ((1, 400), (2, 200)):
        steps = {"read": 20, "conversations.rows": ms // 2, "conversations.commit": 30, "frames.commit": 7}
        ingest.ended(BatchStatus(second * 1_000_000, 7, ms, steps))
    ingest.input_rate = 12.5
    status = PipelineStatus("running", end=900, queries={"ingest": ingest}, own={"own-x": "no heap; next attempt"})
    status.own_queries["own-x"] = QueryStatus(batches=3, recent=[BatchStatus(1, 5, 90, {"addBatch": 60})])
    status.tables["events"] = TableStatus(
        4, 1, 9, 0, 1, {}, lag_rows=1_200, lag_seconds=95.0, batch_ms=47, batch_rows=31
    )
    status.expectations = [ExpectationStatus("jobs", "small", "warn", 3, "offset=1")]
    for at_us in (1, 2):
        status.fail_batch(at_us, "ingest", "conversations.commit", "OSError: the disk is <full>")
    answer = msgspec.json.encode(pipeline_state(status))
    visitor = visit(server)
    page = visitor.page
    page.route("**/v1/pipeline", lambda route: route.fulfill(body=answer, content_type="application/json"))
    visitor.sign_in("#/pipeline")
    times = page.get_by_role("region", name="Batch times")
    expect(times).to_contain_text("Mean: 300 ms for 7 rows")
    longest = times.get_by_role("row").nth(1)
    expect(longest).to_contain_text(re.compile("conversations.*150 ms.*30 ms.*180 ms"))
    times.get_by_role("button", name=re.compile(": 400 ms, 7 rows$")).click()
    expect(longest).to_contain_text(re.compile("conversations.*200 ms.*30 ms.*230 ms"))
    times.get_by_role("button", name="own-x").click()
    expect(times.get_by_role("row").nth(1)).to_contain_text(re.compile("addBatch.*60 ms"))
    failed = page.get_by_role("region", name="Failed batches")
    expect(failed).to_contain_text(re.compile("conversations.*step commit.*query ingest.*2 failed.*the disk is <full>"))
    queries = page.get_by_role("region", name="Queries")
    expect(queries.get_by_role("row", name=re.compile("ingest"))).to_contain_text("12.5")
    expect(queries.get_by_role("list")).to_contain_text("no heap; next attempt")
    table = page.get_by_role("region", name="Tables").get_by_role("row", name=re.compile("events"))
    expect(table).to_contain_text(re.compile("1,200 rows, 1 min 35 s.*47 ms.*31"))
    expected = page.get_by_role("region", name="Expectations").get_by_role("row", name=re.compile("small"))
    expect(expected).to_contain_text(re.compile("jobs.*small.*counts it.*3.*offset=1"))
    page.evaluate(AXE.read_text())
    assert scan(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


# Everywhere


@pytest.mark.promise(
    "Console",
    "the page survives a restart, supports phones, dark mode and the keyboard, and passes an accessibility scan",
)
def test_the_page_survives_a_restart_and_shows_it(tmp_path: Path, visit: Visiting) -> None:
    first = ServerProcess(tmp_path)
    address = first.http.removeprefix("http://")
    visitor = visit(first)
    page = visitor.sign_in("#/tail")
    Http(first.http).enqueue("restarted", "before")
    rows = page.get_by_role("grid", name="Journal rows")
    expect(rows).to_contain_text("before")
    first.kill()
    expect(page.get_by_text("Reconnecting…")).to_be_visible()
    second = ServerProcess(tmp_path, "--http", address)
    try:
        expect(page.get_by_text("Reconnected")).to_be_visible()
        Http(second.http).enqueue("restarted", "after")
        expect(rows).to_contain_text("after")
        expect(rows).to_contain_text("before")
        heading(page, "Live tail")
    finally:
        second.kill()
    # The browser logs an error for the closed socket, which is expected here.
    visitor.errors = [each for each in visitor.errors if "WebSocket connection" not in each]


@pytest.mark.promise(
    "Console",
    "the page survives a restart, supports phones, dark mode and the keyboard, and passes an accessibility scan",
)
@pytest.mark.parametrize("path", first_of(PAGES, 2))
def test_a_phone_needs_no_sideways_scrolling(server: ServerProcess, visit: Visiting, path: str) -> None:
    page = visit(server, **PHONE).sign_in(path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_role("navigation").get_by_role("link").last.click()  # the navigation is reachable
    heading(page, "Settings")


def brightness(page: Page) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3]))


@pytest.mark.promise(
    "Console",
    "the page survives a restart, supports phones, dark mode and the keyboard, and passes an accessibility scan",
)
def test_dark_mode_follows_the_system_and_can_be_chosen(server: ServerProcess, visit: Visiting) -> None:
    dark, light = (visit(server, color_scheme=scheme).sign_in() for scheme in ("dark", "light"))
    assert brightness(dark) < 150
    assert brightness(light) > 600
    while brightness(light) > 150:  # auto, light, dark
        light.get_by_role("button", name=re.compile("^Colours")).click()
    light.reload()
    heading(light, "Overview")
    assert brightness(light) < 150, "the choice is kept"


@pytest.mark.promise(
    "Console",
    "the page survives a restart, supports phones, dark mode and the keyboard, and passes an accessibility scan",
)
@pytest.mark.parametrize("scheme", first_of(["light", "dark"], 1))
def test_an_accessibility_scan_finds_nothing_serious(server: ServerProcess, visit: Visiting, scheme: str) -> None:
    visitor = visit(server, color_scheme=scheme, reduced_motion="reduce")
    page = visitor.page
    page.goto(f"{server.http}/")
    heading(page, "Sign in")
    page.evaluate(AXE.read_text())
    found = {"sign-in": scan(page)}
    visitor.sign_in()
    page.evaluate(AXE.read_text())
    for path in PAGES:
        visitor.open(path)
        page.wait_for_load_state("networkidle") if path == "#/" else None
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        found[path] = scan(page)
    assert {path: serious for path, serious in found.items() if serious} == {}


def scan(page: Page) -> list[str]:
    """The serious violations, with their elements."""
    report = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:3]}"
        for one in report
        if one["impact"] in ("serious", "critical")
    ]
