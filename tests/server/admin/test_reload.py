"""The rights of a connection after a reload: its subscriptions, its taps, and the views it follows."""

from __future__ import annotations

from penstock.core.scopes import Principal, require
from penstock.server.admin.reload import admit
from penstock.server.auth.tokens import TokenStore
from penstock.server.config.sections import AuthSection, TokenSection
from tests.dialects.courier.talking import Broker, Frame, Peer, filled

SAM, JEN = "agents/sam/inbox", "agents/jen/inbox"
ALL = ("views:*:read", "streams:*:read")


class Reloading:
    """A peer of a broker, and the tokens that let it in."""

    def __init__(self, *scopes: str) -> None:
        self.broker = Broker()
        self.tokens = TokenStore(AuthSection(tokens=(TokenSection(token="x", scopes=scopes),)))
        principal = self.tokens.resolve("x")
        assert principal is not None
        self.peer: Peer = self.broker.control(principal)

    def reload(self, *scopes: str) -> str | None:
        """Give the token other scopes; the code that ends the connection, if one does."""
        self.tokens.adopt(AuthSection(tokens=(TokenSection(token="x", scopes=scopes),)))
        refusal = admit(self.peer.connection, self.tokens, was_open=False, is_open=False)
        self.broker.advance(1_000)
        return None if refusal is None else refusal.code

    def heard(self) -> list[Frame]:
        self.broker.advance(1_000)
        return self.peer.heard()


def test_a_tap_ends_with_the_right_to_it() -> None:
    there = Reloading(*ALL)
    there.peer.say(type_="tap", stream="jobs")
    assert there.reload("streams:jobs:read") is None
    assert there.reload("streams:other:read") == "Forbidden"


def test_following_a_view_ends_with_the_right_to_it() -> None:
    there = Reloading(*ALL)
    there.peer.say(type_="live", view="latestPerAgent")
    assert there.reload("streams:*:read") == "Forbidden"


def test_a_follower_sees_what_its_token_allows_now() -> None:
    there = Reloading(*ALL)
    filled(there.broker, SAM, "1")
    filled(there.broker, JEN, "2")
    there.peer.say(type_="live", view="latestPerAgent", credit=1)
    there.heard()
    assert there.reload("views:*:read", "streams:agents/sam/*:read") is None
    (again,) = there.heard()
    assert [row["addr"] for row in again["snapshot"]["rows"]] == [SAM]
    filled(there.broker, JEN, "3")
    assert there.heard() == []
    filled(there.broker, SAM, "4")
    (change,) = there.heard()
    assert change["delta"]["env"]["id"] == "4"


def test_a_follower_whose_rights_stay_hears_nothing_of_a_reload() -> None:
    there = Reloading(*ALL)
    filled(there.broker, SAM, "1")
    there.peer.say(type_="live", view="latestPerAgent")
    there.heard()
    assert there.reload(*ALL) is None
    assert there.heard() == []


def test_a_worker_of_the_server_itself_stays_who_it_is() -> None:
    tokens = TokenStore(AuthSection(), operator_token="secret")
    worker = Principal("skill/x", scopes=require(["streams:x:subscribe"]))
    for auth in (AuthSection(), AuthSection(tokens=(TokenSection(token="x", scopes=("streams:*:*",)),))):
        tokens.adopt(auth)
        assert tokens.renewed(worker) is worker
