"""Tokens at run time: listed without the secret, shown once at creation, revoked with their sessions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.server.config.load import Config
from penstock.server.config.sections import AuthSection, TokenSection
from tests.server.http.driving import OPERATOR_TOKEN, HttpDriver, drive

CONFIG = Config(auth=AuthSection(tokens=(TokenSection("secret-of-sam", ("streams:*:*",), agent="sam"),)))


async def mint(driver: HttpDriver, name: str = "ci", **more: Any) -> tuple[int, Any]:
    body = {"name": name, "scopes": ["streams:*:read"], **more}
    return await driver.ask("POST", "/v1/tokens", body, token=OPERATOR_TOKEN)


def test_a_minted_token_works_until_it_is_revoked_and_is_never_listed() -> None:
    async def work(driver: HttpDriver) -> None:
        status, made = await mint(driver, tenant="acme")
        assert (status, made["required"], made["kept"], made["closed"]) == (200, True, False, 0)
        token = made["token"]
        assert (await driver.ask("GET", "/v1/metrics", token=token))[0] == 200
        _, listed = await driver.ask("GET", "/v1/tokens", token=OPERATOR_TOKEN)
        (row,) = listed["tokens"]
        assert (row["name"], row["tenant"], row["origin"], row["scopes"]) == (
            "ci",
            "acme",
            "minted",
            ["streams:*:read"],
        )
        assert token.encode() not in msgspec.json.encode(listed)
        assert await driver.code("GET", "/v1/metrics") == "Unauthorized"  # from now on every request needs one
        _, gone = await driver.ask("DELETE", "/v1/tokens/ci", token=OPERATOR_TOKEN)
        assert gone == {"name": "ci", "required": False, "closed": 0}
        assert await driver.code("GET", "/v1/metrics", token=token) == "Unauthorized"
        assert (await driver.ask("GET", "/v1/metrics"))[0] == 200

    drive(work)


def test_tokens_of_the_config_are_listed_and_cannot_be_revoked() -> None:
    async def work(driver: HttpDriver) -> None:
        _, listed = await driver.ask("GET", "/v1/tokens", token=OPERATOR_TOKEN)
        assert [(row["name"], row["origin"], row["created_at"]) for row in listed["tokens"]] == [
            ("sam", "config", None)
        ]
        assert await driver.code("DELETE", "/v1/tokens/sam", token=OPERATOR_TOKEN) == "TokenInConfig"
        assert await driver.code("DELETE", "/v1/tokens/other", token=OPERATOR_TOKEN) == "UnknownToken"

    drive(work, CONFIG)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"name": "sam"}, "IdConflict"),
        ({"name": "a b"}, "InvalidRequest"),
        ({"scopes": []}, "InvalidRequest"),
        ({"scopes": ["nonsense"]}, "InvalidRequest"),
    ],
)
def test_a_token_that_cannot_be_is_refused(more: dict[str, Any], code: str) -> None:
    async def work(driver: HttpDriver) -> None:
        body = {"name": "ci", "scopes": ["streams:*:read"], **more}
        assert await driver.code("POST", "/v1/tokens", body, token=OPERATOR_TOKEN) == code

    drive(work, CONFIG)


def test_no_token_is_minted_where_anonymous_peers_are_allowed() -> None:
    async def work(driver: HttpDriver) -> None:
        status, body = await mint(driver)
        assert status == 400 and "allowAnonymous" in body["error"]["hint"]

    drive(work, Config(auth=AuthSection(allow_anonymous=True)))


def test_a_row_says_when_its_token_was_last_used() -> None:
    async def used(driver: HttpDriver) -> dict[str, str | None]:
        _, listed = await driver.ask("GET", "/v1/tokens", token=OPERATOR_TOKEN)
        return {row["name"]: row["last_used_at"] for row in listed["tokens"]}

    async def work(driver: HttpDriver) -> None:
        _, made = await mint(driver)
        assert await used(driver) == {"sam": None, "ci": None}
        await driver.ask("GET", "/v1/metrics", token=made["token"])
        assert await driver.code("GET", "/v1/metrics", token="secret-of-sim") == "Unauthorized"
        first = await used(driver)
        assert first["sam"] is None and first["ci"] is not None
        await driver.ask("DELETE", "/v1/tokens/ci", token=OPERATOR_TOKEN)
        await driver.ask("GET", "/v1/metrics", token="secret-of-sam")
        assert (await used(driver)).keys() == {"sam"} and (await used(driver))["sam"] is not None

    drive(work, CONFIG)
