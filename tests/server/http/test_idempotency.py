"""Answers remembered by idempotency key: repeated, bounded, and never used for another request."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.scopes import ANONYMOUS, Principal
from penstock.server.http import routes
from penstock.server.http.idempotency import ENTRY_COST, HEADER, REPLAYED, Replays
from penstock.server.http.request import Request
from penstock.transports.http_replies import Reply

SAM = Principal("sam", credential="1")
LIMITS = Limits()


class ReplayDriver:
    """Asks one memory, and does the work only when asked to finish."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.replays = Replays()
        self.limits = limits
        self.now_us = 0
        self.heard: list[Reply] = []

    def ask(
        self,
        key: str = "k",
        body: bytes = b"b",
        who: Principal = SAM,
        route: str = "enqueue",
        peer: str = "p",
    ):
        found = routes.find("POST", f"/v1/{route}")
        assert found is not None
        now = Now(self.now_us, 0)
        request = Request(*found, {}, {HEADER: key}, peer, principal=who, now=now, data=body)
        return self.replays.claim(self.limits, request, self.heard.append)

    def work(self, status: int = 200, body: bytes = b"done", **asked):
        """A request that is new, and its answer."""
        finish = self.ask(**asked)
        assert callable(finish), finish
        finish(Reply(status, body))
        return self.heard.pop()


def test_the_same_request_has_the_same_answer_and_is_marked() -> None:
    driver = ReplayDriver()
    first = driver.work(409, b"conflict")
    assert driver.ask() is None
    (again,) = driver.heard
    assert (again.status, again.body, again.headers) == (409, b"conflict", {REPLAYED: "true"})
    assert REPLAYED not in first.headers and driver.replays.replayed == 1


def test_another_body_is_a_conflict_while_it_works_and_after() -> None:
    driver = ReplayDriver()
    finish = driver.ask()
    conflict = driver.ask(body=b"other")
    assert isinstance(conflict, Refusal) and conflict.code == "KeyConflict"
    finish(Reply(200, b"done"))
    conflict = driver.ask(body=b"other")
    assert isinstance(conflict, Refusal) and conflict.status == 409


def test_repetitions_while_the_first_works_wait_for_it() -> None:
    driver = ReplayDriver()
    finish = driver.ask()
    assert driver.ask() is None and driver.ask() is None and driver.heard == []
    finish(Reply(200, b"done"))
    assert [(reply.body, REPLAYED in reply.headers) for reply in driver.heard] == [
        (b"done", False),
        (b"done", True),
        (b"done", True),
    ]


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "`Idempotency-Key` applies a request once, is bounded, and waits for the first request",
)
def test_what_says_try_again_is_not_remembered() -> None:
    for status in (429, 500, 503):
        driver = ReplayDriver()
        driver.work(status)
        assert driver.work(200).status == 200


def test_a_key_belongs_to_its_sender_and_its_route() -> None:
    driver = ReplayDriver()
    driver.work()
    driver.work(body=b"b", route="send")
    driver.work(who=Principal("ann", credential="2"))
    driver.work(who=Principal("sam", credential="3"))
    driver.work(who=ANONYMOUS, peer="10.0.0.1")
    driver.work(who=ANONYMOUS, peer="10.0.0.2")
    assert driver.ask(who=ANONYMOUS, peer="10.0.0.1") is None


def test_answers_are_forgotten_after_their_time() -> None:
    driver = ReplayDriver()
    driver.work()
    driver.now_us = LIMITS.idempotency_ms * 1000 - 1
    assert driver.ask() is None
    driver.now_us += 1
    driver.heard.clear()
    driver.work(body=b"other")
    assert driver.replays.forgotten == 0


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "`Idempotency-Key` applies a request once, is bounded, and waits for the first request",
)
def test_count_and_bytes_are_bounded_and_the_oldest_go() -> None:
    driver = ReplayDriver(Limits(idempotency_max=3))
    for number in range(5):
        driver.work(key=f"k{number}")
    assert len(driver.replays) == 3 and driver.replays.forgotten == 2
    assert driver.ask(key="k4") is None and callable(driver.ask(key="k0"))
    driver = ReplayDriver(Limits(idempotency_bytes_max=3 * (ENTRY_COST + 100)))
    for number in range(5):
        driver.work(key=f"k{number}", body=b"x" * 100)
    assert len(driver.replays) == 3


def test_a_key_has_a_form() -> None:
    for key in ("", "x" * 257, "a\x01"):
        refusal = ReplayDriver().ask(key=key)
        assert isinstance(refusal, Refusal) and (refusal.code, refusal.ref) == ("InvalidRequest", HEADER)


def test_a_replayed_answer_keeps_its_own_headers() -> None:
    driver = ReplayDriver()
    finish = driver.ask()
    finish(Reply(200, b"", headers={"X-Own": "1"}))
    driver.ask()
    assert driver.heard[-1].headers == {"X-Own": "1", REPLAYED: "true"}
    assert msgspec.structs.asdict(driver.heard[0])["headers"] == {"X-Own": "1"}
