"""Answers remembered by their key: given again, bounded, and never for another request."""

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
from penstock.transports.http import Reply

SAM = Principal("sam", credential="1")
LIMITS = Limits()


class Desk:
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
    desk = Desk()
    first = desk.work(409, b"conflict")
    assert desk.ask() is None
    (again,) = desk.heard
    assert (again.status, again.body, again.headers) == (409, b"conflict", {REPLAYED: "true"})
    assert REPLAYED not in first.headers and desk.replays.replayed == 1


def test_another_body_is_a_conflict_while_it_works_and_after() -> None:
    desk = Desk()
    finish = desk.ask()
    conflict = desk.ask(body=b"other")
    assert isinstance(conflict, Refusal) and conflict.code == "KeyConflict"
    finish(Reply(200, b"done"))
    conflict = desk.ask(body=b"other")
    assert isinstance(conflict, Refusal) and conflict.status == 409


def test_repetitions_while_the_first_works_wait_for_it() -> None:
    desk = Desk()
    finish = desk.ask()
    assert desk.ask() is None and desk.ask() is None and desk.heard == []
    finish(Reply(200, b"done"))
    assert [(reply.body, REPLAYED in reply.headers) for reply in desk.heard] == [
        (b"done", False),
        (b"done", True),
        (b"done", True),
    ]


@pytest.mark.promise(
    "Limits, reload and the edges of HTTP", "`Idempotency-Key`: once, bounded, waits for the first"
)
def test_what_says_try_again_is_not_remembered() -> None:
    for status in (429, 500, 503):
        desk = Desk()
        desk.work(status)
        assert desk.work(200).status == 200


def test_a_key_belongs_to_its_sender_and_its_route() -> None:
    desk = Desk()
    desk.work()
    desk.work(body=b"b", route="send")
    desk.work(who=Principal("ann", credential="2"))
    desk.work(who=Principal("sam", credential="3"))
    desk.work(who=ANONYMOUS, peer="10.0.0.1")
    desk.work(who=ANONYMOUS, peer="10.0.0.2")
    assert desk.ask(who=ANONYMOUS, peer="10.0.0.1") is None


def test_answers_are_forgotten_after_their_time() -> None:
    desk = Desk()
    desk.work()
    desk.now_us = LIMITS.idempotency_ms * 1000 - 1
    assert desk.ask() is None
    desk.now_us += 1
    desk.heard.clear()
    desk.work(body=b"other")
    assert desk.replays.forgotten == 0


@pytest.mark.promise(
    "Limits, reload and the edges of HTTP", "`Idempotency-Key`: once, bounded, waits for the first"
)
def test_count_and_bytes_are_bounded_and_the_oldest_go() -> None:
    desk = Desk(Limits(idempotency_max=3))
    for number in range(5):
        desk.work(key=f"k{number}")
    assert len(desk.replays) == 3 and desk.replays.forgotten == 2
    assert desk.ask(key="k4") is None and callable(desk.ask(key="k0"))
    desk = Desk(Limits(idempotency_bytes_max=3 * (ENTRY_COST + 100)))
    for number in range(5):
        desk.work(key=f"k{number}", body=b"x" * 100)
    assert len(desk.replays) == 3


def test_a_key_has_a_form() -> None:
    for key in ("", "x" * 257, "a\x01"):
        refusal = Desk().ask(key=key)
        assert isinstance(refusal, Refusal) and (refusal.code, refusal.ref) == ("InvalidRequest", HEADER)


def test_a_replayed_answer_keeps_its_own_headers() -> None:
    desk = Desk()
    finish = desk.ask()
    finish(Reply(200, b"", headers={"X-Own": "1"}))
    desk.ask()
    assert desk.heard[-1].headers == {"X-Own": "1", REPLAYED: "true"}
    assert msgspec.structs.asdict(desk.heard[0])["headers"] == {"X-Own": "1"}
