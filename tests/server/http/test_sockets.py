"""Opening WebSockets and server-sent events: rejections before the upgrade and over the socket."""

from __future__ import annotations

import pytest

from penstock.server.config.load import Config
from penstock.server.config.sections import AuthSection, TokenSection
from penstock.server.courier.event_streams import EventStream, LiveUpgrade
from penstock.server.http.sockets import ControlUpgrade, SubscribeUpgrade
from penstock.transports.http_replies import Reply
from tests.server.http.driving import HttpDriver, drive

TOKENS = Config(auth=AuthSection(tokens=(TokenSection("sam-token", ("streams:mine:*",), "sam"),)))


@pytest.mark.parametrize(
    ("path", "query", "kind"),
    [
        ("/v1/control", {}, ControlUpgrade),
        ("/v1/control", {"anything": "1"}, ControlUpgrade),
        ("/v1/subscribe", {"stream": "q"}, SubscribeUpgrade),
        ("/v1/live", {"view": "inflight"}, LiveUpgrade),
    ],
)
def test_a_socket_is_opened_with_the_protocol_that_was_offered(path: str, query: dict[str, str], kind: type) -> None:
    async def work(driver: HttpDriver) -> None:
        headers = {"Sec-WebSocket-Protocol": "chat"}
        opened = await driver.handle("GET", path, query=query, upgrade=True, headers=headers)
        assert isinstance(opened, kind) and opened.subprotocol == "chat"  # type: ignore[attr-defined]

    drive(work)


@pytest.mark.parametrize(
    ("path", "query", "code"),
    [
        ("/v1/subscribe", {}, "InvalidRequest"),
        ("/v1/subscribe", {"stream": "q", "more": "1"}, "InvalidRequest"),
        ("/v1/live", {"view": "nothing"}, "UnknownView"),
        ("/v1/stats", {"stream": "q"}, "InvalidRequest"),
        ("/v1/relay", {}, "UnknownRoute"),
    ],
)
def test_an_upgrade_that_cannot_be_is_refused(path: str, query: dict[str, str], code: str) -> None:
    async def work(driver: HttpDriver) -> None:
        assert await driver.code("GET", path, query=query, upgrade=True) == code

    drive(work)


def test_a_refusal_goes_over_the_socket_where_the_client_asks_for_it() -> None:
    async def work(driver: HttpDriver) -> None:
        asked = {"stream": "theirs"}
        assert await driver.code("GET", "/v1/subscribe", query=asked, upgrade=True) == "Unauthorized"
        soft = asked | {"softAuth": "1"}
        for token in (None, "wrong", "sam-token"):
            opened = await driver.handle("GET", "/v1/subscribe", query=soft, upgrade=True, token=token)
            assert isinstance(opened, SubscribeUpgrade)
        assert await driver.code("GET", "/v1/subscribe", query=asked, upgrade=True, token="sam-token") == "Forbidden"

    drive(work, TOKENS)


def test_a_plain_request_to_a_view_gets_events_and_a_head_request_only_the_type() -> None:
    async def work(driver: HttpDriver) -> None:
        query = {"view": "inflight"}
        assert isinstance(await driver.handle("GET", "/v1/live", query=query), EventStream)
        reply = await driver.handle("HEAD", "/v1/live", query=query)
        assert isinstance(reply, Reply) and reply.content_type == "text/event-stream" and not reply.body
        assert await driver.code("GET", "/v1/live", query=query | {"credit": "1"}) == "InvalidCredit"
        assert await driver.code("GET", "/v1/live", query={}) == "InvalidRequest"

    drive(work)
