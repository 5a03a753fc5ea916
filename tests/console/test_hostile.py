"""Hostile texts in every field that the console shows: each appears as text, and none becomes part of the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Error, Locator, Page, expect

import penstock
from penstock.dialects.streamservice.keys import StreamKeys, derive
from penstock.server.files import yaml_tree
from tests.console.visiting import PATIENCE_MS, Visit
from tests.integration.serving import Http, envelope
from tests.server_process import ServerProcess

expect.set_options(timeout=PATIENCE_MS)

IMAGE = "<img src=x onerror=hit=1>"
LINK = "javascript:hit=1"
SCRIPT = "</title></textarea><script>hit=1</script>"
QUOTED = "\"'><svg onload=hit=1>"
BARE = "<svg&onload=hit=1>"
"""For names that have no spaces and slashes."""
TRAP = {"__proto__": {"hit": 1}, "constructor": IMAGE, "type": "img", "props": {"src": "x", "onerror": "hit=1"}}
"""Objects that a careless page merges into its own, or takes for an element."""
STREAM = f"hostile/{IMAGE}{QUOTED}{SCRIPT}"
CONFIG = {
    "spaces": [
        {
            "space": {"id": f"s{QUOTED}", "name": f"{IMAGE} space"},
            "participants": {
                f"ada{QUOTED}": {"tokens": ["ada-token"], "capabilities": [{"kind": "*"}, {"kind": f"{IMAGE} kind"}]},
                f"bob{BARE}": {"tokens": ["bob-token"], "capabilities": [{"kind": "*"}]},
            },
        }
    ],
    "triggers": [
        {
            "id": f"rule{BARE}",
            "when": {"type": f"{IMAGE} type"},
            "strict": True,
            "do": [{"action": "emit", "to": "${env.absent}", "type": "t", "payload": 1}],
        }
    ],
}
INJECTED = """() => [...document.querySelectorAll(
    "img, script:not([src]), iframe, object, embed, [onerror], [onload], [href^='javascript:' i], [src='x']"
)].map(each => each.outerHTML).concat(window.hit ? ["a script ran"] : [], ({}).hit ? ["a prototype changed"] : [])"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    config = yaml_tree.dump(CONFIG)
    process = ServerProcess(tmp_path_factory.mktemp("hostile"), "--relay", config=config)
    yield process
    process.kill()


def hostile(id_: str, **more: Any) -> dict[str, Any]:
    fields = {
        "type": f"{IMAGE} type",
        "from": f"agents/{IMAGE}",
        "corr": f"{QUOTED} corr",
        "tags": [IMAGE, SCRIPT],
        "refs": [f"{LINK} id", IMAGE],
        "headers": {IMAGE: SCRIPT, "x-courier": IMAGE},
        "payload": {IMAGE: [SCRIPT, QUOTED, TRAP], "url": LINK},
    }
    return envelope(id_, **{**fields, **more})


def fill(server: ServerProcess) -> None:
    """Hostile envelopes that wait, are leased, were delayed with a reason, and died of a reason."""
    http = Http(server.http)
    sent = [hostile(f"{LINK} {kind}{IMAGE}") for kind in ("id", "leased", "delayed", "dead")]
    assert http.post("/v1/enqueue", {"to": STREAM, "envelopes": sent}).status == 200
    taken = {one["deliver"]["id"]: one["leaseId"] for one in http.pull(STREAM, max=4)}
    ready, _, delayed, dead = (one["id"] for one in sent)
    reason = f"{IMAGE} reason"
    for id_, delay_ms in ((ready, 0), (delayed, 900_000)):
        answer = http.settle(id_, "nack", leaseId=taken[id_], delayMs=delay_ms, reason=reason)
        assert answer.status == 200, answer
    answer = http.settle(dead, "term", leaseId=taken[dead], reason=reason)
    assert answer.status == 200, answer


def check(page: Page, *shown: str | Locator) -> None:
    """Each of these is visible as text, and nothing of it became an element."""
    for one in shown:
        expect(page.get_by_text(one).locator("visible=true").first if isinstance(one, str) else one).to_be_visible()
    assert page.evaluate(INJECTED) == []


@pytest.mark.promise("Console", "hostile text in any field is shown as text and never becomes part of the page")
def test_hostile_text_in_every_field_stays_text(server: ServerProcess, visit: Callable[..., Visit]) -> None:
    fill(server)
    visitor = visit(server)
    page = visitor.sign_in()
    check(page, page.get_by_role("heading", level=1))
    visitor.open("#/queues")
    check(page, STREAM)
    page.get_by_role("link", name=STREAM, exact=True).first.click()
    check(page, page.get_by_role("heading", level=1, name=STREAM), f"{IMAGE} type", f"agents/{IMAGE}")
    page.get_by_role("button", name=re.compile("javascript:hit=1 id")).first.click()
    check(page, page.get_by_role("dialog"), SCRIPT)
    page.keyboard.press("Escape")
    for state in ("Delayed", "Dead"):
        page.get_by_role("tab", name=state).or_(page.get_by_role("button", name=state, exact=True)).first.click()
        check(page, f"{IMAGE} reason")
    page.get_by_role("button", name="Purge").click()
    check(page, page.get_by_role("dialog"))
    page.keyboard.press("Escape")

    visitor.open("#/tail")
    rows = page.get_by_role("grid", name="Journal rows")
    expect(rows).to_contain_text(f"{IMAGE} type")
    rows.get_by_role("row").filter(has_text=f"{IMAGE} type").first.click()
    check(page, page.get_by_role("dialog"))
    page.get_by_role("dialog").get_by_role("link", name="Conversation").click()
    check(page, page.get_by_role("list", name="Envelopes, replies below requests"), f"{IMAGE} type")


@pytest.mark.promise("Console", "hostile text in any field is shown as text and never becomes part of the page")
def test_hostile_names_of_a_space_stay_text(server: ServerProcess, visit: Callable[..., Visit]) -> None:
    ada, bob = f"ada{QUOTED}", f"bob{BARE}"
    with (
        penstock.SyncSpace(server.http, participant=bob, token="bob-token"),
        penstock.SyncSpace(server.http, participant=ada, token="ada-token") as writer,
    ):
        stream = writer.open_stream(bob, description=f"{IMAGE} readings")
        stream.write(IMAGE)
        writer.send(f"{IMAGE} kind", {"text": SCRIPT, **TRAP}, to=[bob])
        visitor = visit(server)
        page = visitor.sign_in("#/spaces")
        check(page, page.get_by_role("heading", level=1, name=f"{IMAGE} space"), ada, bob, f"{IMAGE} readings")
        page.get_by_role("button", name="Kick").first.click()
        check(page, page.get_by_role("dialog"))
        page.keyboard.press("Escape")
        visitor.open("#/tail")
        check(page, page.get_by_role("grid", name="Journal rows"), f"{IMAGE} kind")


@pytest.mark.promise("Console", "hostile text in any field is shown as text and never becomes part of the page")
def test_hostile_results_and_tokens_stay_text(server: ServerProcess, visit: Callable[..., Visit]) -> None:
    http = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    http.enqueue("sealed", "one")
    assert http.post("/v1/journal/seal", None).status == 200
    visitor = visit(server)
    page = visitor.sign_in("#/pipeline")
    query = page.get_by_role("textbox", name="SQL query")
    query.fill(f"select '{IMAGE}' as \"{SCRIPT}\"")
    query.press("Control+Enter")
    check(page, page.get_by_role("columnheader", name=SCRIPT), page.get_by_role("cell", name=IMAGE))
    query.fill(f'select "{IMAGE}"')
    query.press("Control+Enter")
    check(page, page.get_by_text(re.compile(re.escape(IMAGE))).last)

    keys, relay = derive(b"1" * 32, b"2" * 32, b"3" * 32), penstock.local_relay(server.data)
    assert isinstance(keys, StreamKeys)
    visitor.open(f"#/tokens?topic={keys.topic}&key={keys.mac_key.hex()}")
    with penstock.SyncTokenPublisher(relay.push, keys, signer=relay.signer) as publisher:
        for token in (IMAGE, SCRIPT, QUOTED):
            publisher.send(token)
    expect(page.get_by_role("log", name="Verified text")).to_have_text(IMAGE + SCRIPT + QUOTED)
    check(page)
    for path in (f"#/queues/{IMAGE}", f"#/{SCRIPT}", f"#/tail?channel={QUOTED}", f"#/spaces/{IMAGE}", "#/tail?id=%zz"):
        visitor.open(path)
        check(page, page.get_by_role("heading", level=1))


def test_the_check_finds_what_a_careless_page_would_show(server: ServerProcess, visit: Callable[..., Visit]) -> None:
    """And the policy of the page is a second line of defence: it refuses markup from text, and handlers."""
    visitor = visit(server)
    page = visitor.sign_in()
    for careless in ("each.innerHTML = text", "each.setAttribute('onerror', text)"):
        with pytest.raises(Error, match="Trusted"):
            page.evaluate(f"text => {{ const each = document.querySelector('h1'); {careless} }}", IMAGE)
    page.evaluate(
        "document.querySelector('h1').append(Object.assign(document.createElement('a'), {href: 'javascript:hit=1'}))"
    )
    assert len(page.evaluate(INJECTED)) == 1
    page.locator("h1 a").dispatch_event("click")
    assert page.evaluate("window.hit") is None
    assert len(visitor.errors) >= 2
    visitor.errors = []
