"""Questions to servers that elect a leader: they are asked again, the reason is logged, and what lasts is raised."""

from __future__ import annotations

import asyncio

import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import APIError, NotFoundError

from penstock.core.errors import PenstockError
from penstock.server.cluster.nats_client import until_answered


class Servers:
    """What they answer, one after the other."""

    def __init__(self, *answers: Exception | str) -> None:
        self.answers = list(answers)

    async def ask(self) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_question_is_repeated_until_the_servers_answer() -> None:
    servers = Servers(NatsTimeout(), OSError("no route"), NotFoundError(), "yes")
    assert asyncio.run(until_answered(servers.ask)) == "yes"
    assert servers.answers == []


def test_a_long_wait_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> str:
        if not caplog.records:
            raise OSError("no route")
        return "yes"

    assert asyncio.run(until_answered(ask)) == "yes"
    assert [(one.getMessage(), vars(one)["fields"]) for one in caplog.records] == [
        ("nats.waiting", {"reason": "no route"})
    ]


def test_servers_without_room_end_the_wait() -> None:
    servers = Servers(APIError(500, err_code=10047, description="insufficient storage resources available"))
    with pytest.raises(PenstockError) as raised:
        asyncio.run(until_answered(servers.ask))
    assert "max_file_store" in raised.value.hint


def test_an_error_of_this_program_is_raised() -> None:
    with pytest.raises(ValueError, match="not of NATS"):
        asyncio.run(until_answered(Servers(ValueError("not of NATS")).ask))
