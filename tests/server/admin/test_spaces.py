"""Spaces for administrators: list, send, invite and kick as the operator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialects.mew.driving import settings
from tests.server.http.driving import OPERATOR_TOKEN, HttpDriver, drive


async def ask(driver: HttpDriver, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
    if not driver.services.spaces.spaces:
        driver.services.spaces.add(settings("ann", "bob"), "ws://localhost:8080/")
    return await driver.ask(method, path, body, token=OPERATOR_TOKEN, query=query)


def test_spaces_are_listed_all_or_one() -> None:
    async def work(driver: HttpDriver) -> None:
        for query in ({}, {"space": "demo"}):
            status, body = await ask(driver, "GET", "/v1/spaces", **query)
            (space,) = body["spaces"]
            assert status == 200 and space["id"] == "demo" and not space["kicked"]
            assert [each["id"] for each in space["participants"]] == ["ann", "bob"]
        status, body = await ask(driver, "GET", "/v1/spaces", space="other")
        assert (status, body["error"]["code"]) == (404, "UnknownStream")

    drive(work)


def test_the_operator_sends_without_joining() -> None:
    async def work(driver: HttpDriver) -> None:
        message = {"kind": "chat", "payload": {"text": "hello"}}
        status, body = await ask(driver, "POST", "/v1/spaces/demo/messages", message)
        assert status == 200 and body["from"] == "operator" and body["id"] and body["status"]
        assert not driver.services.spaces.spaces["demo"].present

    drive(work)


def test_an_invited_participant_has_a_token_and_a_kicked_one_is_listed() -> None:
    async def work(driver: HttpDriver) -> None:
        invite = {"participant": "carol", "capabilities": ["chat"]}
        status, body = await ask(driver, "POST", "/v1/spaces/demo/invite", invite)
        assert status == 200 and body["participant"] == "carol" and body["token"] and body["url"].startswith("ws://")
        status, again = await ask(driver, "POST", "/v1/spaces/demo/invite", invite)
        assert (status, again["error"]["code"]) == (409, "IdConflict")
        status, body = await ask(driver, "POST", "/v1/spaces/demo/kick", {"participant": "ann", "reason": "x"})
        assert (status, body) == (200, {"participant": "ann"})
        _, listed = await ask(driver, "GET", "/v1/spaces")
        assert listed["spaces"][0]["kicked"] == ["ann"] and listed["spaces"][0]["invited"] == ["carol"]

    drive(work)


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/spaces/other/messages", {"kind": "chat", "payload": {}}, "UnknownStream"),
        ("/v1/spaces/demo/messages", {"kind": "", "payload": {}}, "InvalidRequest"),
        ("/v1/spaces/demo/invite", {"participant": "x", "capabilities": [{"payload": {}}]}, "InvalidRequest"),
        ("/v1/spaces/demo/kick", {"participant": "nobody-here"}, "UnknownParticipant"),
    ],
)
def test_what_cannot_be_is_refused(path: str, body: Any, code: str) -> None:
    async def work(driver: HttpDriver) -> None:
        _, answer = await ask(driver, "POST", path, body)
        assert answer["error"]["code"] == code and answer["error"]["hint"]

    drive(work)
