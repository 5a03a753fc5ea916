"""The pages that an operator repairs a server with, in a real browser. Every action is submitted, and the server is asked what it did."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

import penstock
from penstock.journal.reader import JournalReader
from tests.console.visiting import Visiting, confirm, notified, operator, operator_token
from tests.integration.serving import Http, envelope, ids, until
from tests.server.admin.test_lake_history import write_minutes
from tests.server_process import ServerProcess

CONFIG = """
streams:
  maxDepth: 12345
  perStreamCaps: {"small/*": {maxDepth: 7}}
triggers:
  - id: copy-alarms
    when: {to: "readings/*", type: alarm}
    do: [{action: notify, to: alarms}]
  - id: copy-drafts
    when: {to: "drafts/*"}
    do: [{action: notify, to: copies}]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("operating"), config=CONFIG)
    yield process
    process.kill()


# Dead letters and waiting envelopes


def bury(http: Http, stream: str, *ids_: str) -> None:
    """Fill the dead letters of a stream."""
    for id_ in ids_:
        body = envelope(id_, {"order": id_, "amount": "12,5"})
        assert http.post("/v1/enqueue", {"to": stream, "envelope": body}).status == 200
        (lease,) = http.pull(stream)
        assert http.settle(id_, "term", leaseId=lease["leaseId"], reason="not a number").status == 200


def dead(http: Http, stream: str) -> list[str]:
    return [row["env"]["id"] for row in http.get("/v1/peek", stream=stream, state="dead").json["rows"]]


def row_of(page: Page, text: str) -> Locator:
    return page.get_by_role("table", name="Envelopes").get_by_role("row").filter(has_text=text)


@pytest.mark.promise(
    "Console",
    "dead letters and waiting envelopes show payload and error; they are filtered, redriven, edited and resent, or dropped",
)
def test_dead_letters_are_redriven_and_dropped_by_selection(server: ServerProcess, visit: Visiting, http: Http) -> None:
    bury(http, "orders", "o-1", "o-2", "o-3", "o-4")
    page = visit(server).sign_in("#/queues/orders?state=dead")
    expect(row_of(page, "o-1")).to_contain_text('{"order":"o-1","amount":"12,5"}')
    expect(row_of(page, "o-1")).to_contain_text("not a number")
    page.get_by_label("Filter envelopes").fill("o-2")
    expect(row_of(page, "o-1")).to_have_count(0)
    page.get_by_label("Filter envelopes").fill("")
    for id_ in ("o-1", "o-3"):
        page.get_by_role("checkbox", name=f"Select {id_}").check()
    page.get_by_role("button", name="Redrive 2").click()
    notified(page, "2 dead letters redriven")
    assert dead(http, "orders") == ["o-2", "o-4"]
    assert ids(http.pull("orders", max=10)) == ["o-1", "o-3"]
    page.get_by_role("checkbox", name="Select all").check()
    page.get_by_role("button", name="Drop 2").click()
    confirm(page, "Drop", "dlq/orders")
    notified(page, "2 envelopes dropped from dlq/orders")
    assert dead(http, "orders") == []


@pytest.mark.promise(
    "Console",
    "dead letters and waiting envelopes show payload and error; they are filtered, redriven, edited and resent, or dropped",
)
def test_a_dead_letter_is_edited_and_resent(server: ServerProcess, visit: Visiting, http: Http) -> None:
    bury(http, "invoices", "i-1")
    page = visit(server).sign_in("#/queues/invoices?state=dead")
    page.get_by_role("button", name="i-1").click()
    page.get_by_role("button", name="Edit and resend").click()
    dialog = page.get_by_role("dialog").last
    dialog.get_by_label("Payload").fill('{"order": "i-1", "amount": 12.5')
    expect(dialog.get_by_role("button", name="Resend", exact=True)).to_be_disabled()
    dialog.get_by_label("Payload").fill('{"order": "i-1", "amount": 12.5}')
    dialog.get_by_role("button", name="Resend", exact=True).click()
    notified(page, "to invoices")
    expect(page.get_by_text("No dead letters")).to_be_visible()
    (lease,) = http.pull("invoices")
    sent = lease["deliver"]
    assert sent["payload"] == {"order": "i-1", "amount": 12.5}
    assert sent["refs"] == ["i-1"] and sent["id"] != "i-1" and "x-courier" not in (sent.get("headers") or {})
    assert dead(http, "invoices") == []


@pytest.mark.promise(
    "Console",
    "dead letters and waiting envelopes show payload and error; they are filtered, redriven, edited and resent, or dropped",
)
def test_a_waiting_envelope_is_edited_or_dropped(server: ServerProcess, visit: Visiting, http: Http) -> None:
    http.enqueue("waiting", "w-1", "w-2")
    page = visit(server).sign_in("#/queues/waiting")
    page.get_by_role("checkbox", name="Select w-1").check()
    expect(page.get_by_role("button", name="Redrive")).to_have_count(0)
    page.get_by_role("button", name="Drop").click()
    confirm(page, "Drop", "waiting")
    notified(page, "1 envelope dropped from waiting")
    page.get_by_role("checkbox", name="Select w-2").check()
    page.get_by_role("button", name="Edit and resend").click()
    page.get_by_label("Payload").fill('"corrected"')
    page.get_by_role("button", name="Resend", exact=True).click()
    notified(page, "to waiting")
    expect(row_of(page, "corrected")).to_have_count(1)
    assert [row["env"]["payload"] for row in http.get("/v1/peek", stream="waiting").json["rows"]] == ["corrected"]


def test_an_envelope_of_the_server_is_edited_and_resent(server: ServerProcess, visit: Visiting, http: Http) -> None:
    http.enqueue("drafts/one", "draft-1")
    until(lambda: http.get("/v1/peek", stream="copies").status == 200, "the notification of the trigger")
    [row] = http.get("/v1/peek", stream="copies").json["rows"]
    assert row["env"]["from"].startswith("system/")
    page = visit(server).sign_in("#/queues/copies")
    page.get_by_role("checkbox", name=f"Select {row['env']['id']}").check()
    page.get_by_role("button", name="Edit and resend").click()
    page.get_by_label("Payload").fill('"corrected"')
    page.get_by_role("button", name="Resend", exact=True).click()
    notified(page, "to copies")
    (lease,) = http.pull("copies")
    assert lease["deliver"]["payload"] == "corrected" and not lease["deliver"].get("from", "").startswith("system/")


def test_a_selection_ends_with_its_tab_and_a_filter_says_how_far_it_looks(
    server: ServerProcess, visit: Visiting, http: Http
) -> None:
    bury(http, "picked", "dead-1")
    http.enqueue("picked", *(f"p-{number}" for number in range(101)))
    page = visit(server).sign_in("#/queues/picked")
    page.get_by_role("checkbox", name="Select p-0", exact=True).check()
    page.get_by_role("button", name="Dead", exact=True).click()
    page.get_by_role("checkbox", name="Select dead-1").check()
    page.get_by_role("button", name="Ready", exact=True).click()
    expect(page.get_by_role("checkbox", name="Select p-0", exact=True)).not_to_be_checked()


@pytest.mark.promise("Console", "all envelopes of a stream are reached by pages, and a filter searches all of them")
def test_envelopes_are_paged_and_the_filter_searches_all_pages(
    server: ServerProcess, visit: Visiting, http: Http
) -> None:
    http.enqueue("paged", *(f"p-{number:04}" for number in range(1_250)))
    page = visit(server).sign_in("#/queues/paged")
    for first in (0, 100, 200):
        expect(page.get_by_role("checkbox", name=f"Select p-{first:04}")).to_be_visible()
        assert page.get_by_role("checkbox", name=re.compile("Select p-")).count() == 100
        page.get_by_role("button", name="Next page").click()
    page.get_by_role("button", name="Previous page").click()
    expect(page.get_by_role("checkbox", name="Select p-0200")).to_be_visible()
    page.get_by_label("Filter envelopes").fill("p-124")
    expect(page.get_by_text("10 matches in 1,250 envelopes")).to_be_visible()
    page.get_by_role("checkbox", name="Select all").check()
    page.get_by_role("button", name="Drop 10").click()
    confirm(page, "Drop", "paged")
    notified(page, "10 envelopes dropped from paged")
    expect(page.get_by_text("0 matches in 1,240 envelopes")).to_be_visible()
    assert http.stats("paged")["depth"] == 1_240


@pytest.mark.promise("Console", "a page lists the dead letters of all streams: dead now and dead ever")
def test_dead_letters_of_all_streams_are_listed(server: ServerProcess, visit: Visiting, http: Http) -> None:
    bury(http, "listed/one", "l-1", "l-2")
    bury(http, "listed/two", "l-3")
    assert http.post("/v1/drop", {"stream": "dlq/listed/one", "ids": ["l-1"]}).status == 200
    page = visit(server).sign_in("#/dead?filter=listed")
    table = page.get_by_role("table", name="Dead letters by stream")
    for stream, counts in (("listed/one", ["1", "2"]), ("listed/two", ["1", "1"])):
        cells = table.get_by_role("row").filter(has_text=stream).get_by_role("cell")
        expect(cells.nth(0)).to_have_text(stream)
        assert [cells.nth(place).inner_text() for place in (1, 2)] == counts
    table.get_by_role("link", name="listed/two").click()
    expect(row_of(page, "l-3")).to_contain_text("not a number")


def test_dead_letters_of_an_unloaded_stream_are_listed_and_redriven(tmp_path: Path, visit: Visiting) -> None:
    server = ServerProcess(tmp_path, config="limits: {idle_unload_ms: 1}")
    try:
        http = operator(server)
        bury(http, "idle", "i-1")
        until(lambda: "idle" not in http.counters(), "the stream to be unloaded")
        page = visit(server).sign_in("#/dead")
        table = page.get_by_role("table", name="Dead letters by stream")
        expect(table.get_by_role("row").filter(has_text="idle").get_by_role("cell").nth(2)).to_have_text("1")
        table.get_by_role("link", name="idle").click()
        page.get_by_role("checkbox", name="Select i-1").check()
        page.get_by_role("button", name="Redrive", exact=True).last.click()
        notified(page, "1 dead letter redriven")
        assert ids(http.pull("idle")) == ["i-1"]
    finally:
        server.kill()


# Connections


@pytest.mark.promise("Console", "connections show who, from where, how far behind; closing one returns its leases")
def test_a_connection_is_seen_and_closed(server: ServerProcess, visit: Visiting, http: Http) -> None:
    http.enqueue("worked", "one", "two", "three")
    with penstock.connect_sync(server.http, agent="slow-sam") as client, client.subscribe("worked", credit=1) as jobs:
        next(iter(jobs))
        page = visit(server).sign_in("#/connections?filter=slow-sam")
        row = page.get_by_role("table", name="Connections").get_by_role("row").filter(has_text="slow-sam")
        for text in ("127.0.0.1", "control", "worked"):
            expect(row).to_contain_text(text)
        assert row.get_by_role("cell").nth(7).inner_text() == "2", "the lag"
        row.get_by_role("button", name="Close").click()
        link = http.get("/v1/connections", text="slow-sam").json["connections"][0]["link"]
        confirm(page, "Close connection", "slow-sam")
        notified(page, f"Connection {link} of slow-sam closed")
        assert link not in [row["link"] for row in http.get("/v1/connections").json["connections"]]


@pytest.mark.promise("Console", "a peer that does not read is marked, and closed by its name")
def test_a_stuck_peer_is_closed_by_name(server: ServerProcess, visit: Visiting, http: Http) -> None:
    host, port = server.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stuck.sendall(
            b"GET /v1/subscribe?stream=flood&credit=1000&agent=sleepy HTTP/1.1\r\nHost: %b:%b\r\n"
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer %b\r\n\r\n"
            % (host.encode(), port.encode(), operator_token(server).encode())
        )
        for number in range(100):
            body = {"to": "flood", "envelope": envelope(f"f-{number}", "x" * 100_000)}
            assert http.post("/v1/enqueue", body).status == 200
        page = visit(server).sign_in("#/connections?filter=sleepy")
        row = page.get_by_role("table", name="Connections").get_by_role("row").filter(has_text="sleepy")
        expect(row).to_contain_text("does not read")
        row.get_by_role("button", name="Close").click()
        confirm(page, "Close connection", "sleepy")
        notified(page, "of sleepy closed")
        expect(page.get_by_text("No connection matches the filter")).to_be_visible()
        until(lambda: http.stats("flood")["inflight"] == 0, "the return of the leases")


# Tokens


@pytest.mark.promise("Console", "tokens are minted, shown once, listed with their last use, and revoked by name")
def test_a_token_is_minted_used_and_revoked(server: ServerProcess, visit: Visiting, http: Http) -> None:
    page = visit(server).sign_in("#/access")
    page.get_by_role("button", name="Mint token").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("ends access without a token")
    dialog.get_by_label("Name").fill("ci")
    dialog.get_by_label("Scopes").fill("nonsense")
    dialog.get_by_role("button", name="Mint", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("scope")
    dialog.get_by_label("Scopes").fill("streams:*:read, streams:jobs/*:enqueue")
    dialog.get_by_label("Expires").select_option("7 days")
    dialog.get_by_role("button", name="Mint", exact=True).click()
    token = page.locator("[data-token]").inner_text().strip()
    page.get_by_role("button", name="Done").click()
    row = page.get_by_role("table", name="Tokens").get_by_role("row").filter(has_text="ci")
    expect(row).to_contain_text("streams:jobs/*:enqueue")
    expect(row).to_contain_text("not since the start")
    assert Http(server.http, token).get("/v1/metrics").status == 200
    expect(row).to_contain_text("ago")
    (listed,) = http.get("/v1/tokens").json["tokens"]
    assert listed["scopes"] == ["streams:*:read", "streams:jobs/*:enqueue"] and listed["expires_at"] is not None
    row.get_by_role("button", name="Revoke").click()
    confirm(page, "Revoke", "ci")
    notified(page, "Token ci revoked")
    assert http.get("/v1/tokens").json["tokens"] == []
    assert Http(server.http, token).get("/v1/metrics").status == 401


# History


@pytest.mark.promise("Console", "plots come from the server's own history of a day, also after a reload of the page")
def test_plots_show_what_happened_before_the_page_was_opened(
    server: ServerProcess, visit: Visiting, http: Http
) -> None:
    http.enqueue("kept/in/history", *(f"h-{number}" for number in range(4_000)))

    def samples() -> list[float]:
        return [value or 0 for value in http.get("/v1/history").json["columns"]["penstock_q_depth"]]

    until(lambda: len(samples()) >= 2 and samples()[-1] >= 4_000, "a sample of the depth")
    page = visit(server).sign_in()
    opened = page.evaluate("new Date().toTimeString().slice(0, 8)")
    for button in ("1 h", "24 h"):
        page.get_by_role("button", name=button, exact=True).click()
        panel = page.get_by_role("region", name="Queue depth")
        panel.get_by_text("Show as table").first.click()
        table = panel.get_by_role("group", name="Queue depth as a table")
        expect(table).to_contain_text(re.compile(r"\d,\d\d\d"))
        assert table.get_by_role("rowheader").last.inner_text() < opened
        panel.get_by_text("Show as table").first.click()


@pytest.mark.promise("Console", "plots come from the server's own history of a day, also after a reload of the page")
def test_the_plots_of_a_stream_show_what_happened_before_the_page_was_opened(
    server: ServerProcess, visit: Visiting, http: Http
) -> None:
    http.enqueue("plotted", *(f"h-{number}" for number in range(300)))

    def depths() -> list[float]:
        return [value or 0 for value in http.get("/v1/history", stream="plotted").json["columns"]["penstock_q_depth"]]

    until(lambda: 300 in depths(), "a sample of the stream")
    page = visit(server).sign_in("#/queues/plotted")
    history = page.get_by_role("region", name="History")
    panel = history.get_by_role("region", name="Queue depth")
    panel.get_by_text("Show as table").click()
    expect(panel.get_by_role("group", name="Queue depth as a table")).to_contain_text("300")
    history.get_by_role("button", name="7 d").click()
    expect(history.get_by_text(re.compile("Data since .* Nothing earlier: the lake has no table"))).to_be_visible()


@pytest.mark.promise("Console", "plots reach back seven days and over restarts, from the lake")
def test_a_plot_of_seven_days_is_filled_from_the_lake(tmp_path: Path, visit: Visiting) -> None:
    server = ServerProcess(tmp_path)
    try:
        now_s = int(time.time()) // 60 * 60
        journal = JournalReader(server.data).identity().id
        write_minutes(
            server.data,
            [
                {"journal": journal, "channel": "old", "ago": ago, "enqueued": 84_000, "ready": 4_321}
                for ago in (60 * 24 * 6, 60 * 24 * 3, 120)
            ],
            now_s,
        )
        operator(server).enqueue("old", "one")
        page = visit(server).sign_in("#/queues/old")
        history = page.get_by_role("region", name="History")
        history.get_by_role("button", name="7 d").click()
        panel = history.get_by_role("region", name="Queue depth")
        panel.get_by_text("Show as table").click()
        expect(panel.get_by_role("group", name="Queue depth as a table")).to_contain_text("4,321")
        expect(history.get_by_text(re.compile("Data since"))).to_be_visible()
        page = visit(server).sign_in()
        page.get_by_role("button", name="7 d").click()
        panel = page.get_by_role("region", name="Envelopes per second")
        panel.get_by_text("Show as table").click()
        expect(panel.get_by_role("group", name="Envelopes per second as a table").get_by_role("row")).to_have_count(13)
    finally:
        server.kill()


# Overview


@pytest.mark.promise("Console", "Overview shows twelve figures, and names an envelope that fails again and again")
def test_overview_names_the_envelope_that_fails_again_and_again(
    server: ServerProcess, visit: Visiting, http: Http
) -> None:
    http.enqueue("poisoned", "poison-1")
    for _ in range(6):
        (lease,) = http.pull("poisoned")
        assert http.settle("poison-1", "nack", leaseId=lease["leaseId"], reason="cannot parse").status == 200
    page = visit(server).sign_in()
    line = page.get_by_role("region", name="Needs attention").get_by_role("listitem").filter(has_text="again and again")
    expect(line).to_contain_text("poison-1 in poisoned")
    expect(line).to_contain_text("cannot parse")
    assert page.locator(".figures.six .figure").count() == 12
    line.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1, name="poisoned")).to_be_visible()


# Settings


@pytest.mark.promise("Console", "settings show the effective config with secrets masked, and the policy of a stream")
def test_settings_show_the_config_and_the_policy_of_a_stream(server: ServerProcess, visit: Visiting) -> None:
    page = visit(server).sign_in("#/settings")
    config = page.get_by_role("region", name="Effective config")
    config.get_by_label("Section").select_option("streams")
    expect(config).to_contain_text("12345")
    config.get_by_label("Section").select_option("limits")
    expect(config).to_contain_text("frame_max")
    policy = page.get_by_role("region", name="Policy of a stream")
    policy.get_by_label("Stream").fill("small/one")
    policy.get_by_role("button", name="Show").click()
    expect(policy.get_by_role("row").filter(has_text="maxDepth")).to_contain_text("7")
    expect(policy.get_by_role("row").filter(has_text="defaultLeaseMs")).to_contain_text("30000")


@pytest.mark.promise(
    "Console", "triggers are listed with their counts, and a dry run shows what an envelope would fire"
)
def test_a_trigger_is_counted_and_tried(server: ServerProcess, visit: Visiting, http: Http) -> None:
    alarm = {**envelope("alarm-1", {"level": 9}), "type": "alarm"}
    assert http.post("/v1/enqueue", {"to": "readings/one", "envelope": alarm}).status == 200
    page = visit(server).sign_in("#/settings")
    panel = page.get_by_role("region", name="Triggers")
    expect(panel.get_by_role("columnheader", name="Sent")).to_be_visible()
    cells = panel.get_by_role("row").filter(has_text="copy-alarms").get_by_role("cell")
    expect(cells.nth(3)).to_have_text("1")
    assert [cells.nth(place).inner_text() for place in (3, 4, 5, 6)] == ["1", "1", "–", "–"], "fired, sent, and no more"
    before = http.stats("alarms")["seq"]
    panel.get_by_role("button", name="Dry run").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To").fill("readings/two")
    dialog.get_by_label("Type").fill("calm")
    dialog.get_by_role("button", name="Try").click()
    expect(dialog).to_contain_text("does not match")
    dialog.get_by_label("Type").fill("alarm")
    dialog.get_by_role("button", name="Try").click()
    expect(dialog).to_contain_text("would fire")
    assert http.stats("alarms")["seq"] == before, "nothing was sent"


# Resources


@pytest.mark.promise("Console", "disk, memory and processor time of each process are shown, and what is reserved")
def test_overview_shows_processes_and_what_is_reserved(server: ServerProcess, visit: Visiting, http: Http) -> None:
    page = visit(server).sign_in()
    panel = page.get_by_role("region", name="Resources")
    pid = http.get("/v1/resources").json["processes"][0]["pid"]
    row = panel.get_by_role("row").filter(has_text="server")
    expect(row).to_contain_text(str(pid))
    expect(row).to_contain_text(re.compile(r"\d MB"))
    expect(row).to_contain_text("%")
    expect(panel).to_contain_text("for acks on a full disk")


@pytest.mark.promise("Console", "a table says when it scrolls")
def test_a_table_says_that_it_scrolls(server: ServerProcess, visit: Visiting, http: Http) -> None:
    http.enqueue("wide", "one")
    page = visit(server, viewport={"width": 400, "height": 740}).sign_in("#/queues")
    expect(page.get_by_text("Scroll for more columns").first).to_be_visible()
    page.set_viewport_size({"width": 1600, "height": 740})
    expect(page.get_by_text("Scroll for more columns")).to_have_count(0)
