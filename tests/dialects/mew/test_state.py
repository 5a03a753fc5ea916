"""A space restores the same state from its journal rows or from a snapshot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.core.rows import Row
from penstock.dialects.mew.settings import SpaceSettings, StreamSettings
from penstock.dialects.mew.state import SpaceMemory
from tests.dialects.mew.driving import (
    Client,
    GatewayDriver,
    envelope,
    error,
    join,
    kinds,
    only,
    participant,
    picture,
    settings,
)

NAMES = ("p1", "p2", "p3", "p4")


def space(**streams: StreamSettings) -> SpaceSettings:
    guest = participant("guest", {"kind": "chat"})
    return settings(*NAMES, guest=guest, robot=participant("robot", is_pipeline=True), streams=streams)


def restored(rows: list[Row]) -> SpaceMemory:
    memory = SpaceMemory()
    for row in rows:
        memory.restore(row)
    return memory


class TestRestart:
    def test_an_invite_its_token_and_its_capabilities_are_kept(self) -> None:
        driver = GatewayDriver(space())
        (p1,) = driver.joined("p1")
        payload = {"participant_id": "x", "initial_capabilities": [{"kind": "mcp/request"}]}
        key = only(p1.say("space/invite", payload), "space/invite-ack")["token"]
        later = driver.again(space())
        client = later.join("x", key=key)
        assert kinds(client.say("mcp/request", {"method": "m"})) == ["mcp/request"]
        (owner,) = later.joined("p1")
        assert only(owner.say("space/invite", payload), "space/invite-ack")["status"] == "already_exists"

    def test_a_grant_and_a_revoke_are_kept(self) -> None:
        driver = GatewayDriver(space())
        (p1,) = driver.joined("p1")
        for id_, kind in (("g1", "a"), ("g2", "b")):
            p1.say("capability/grant", {"recipient": "guest", "capabilities": [{"kind": kind}]}, id=id_)
        p1.say("capability/revoke", {"recipient": "guest", "grant_id": "g1"})
        guest = driver.again(space()).join("guest")
        assert error(guest.say("a"))["error"] == "capability_violation"
        assert kinds(guest.say("b")) == ["b"]

    def test_a_kick_is_kept_with_its_reason(self) -> None:
        driver = GatewayDriver(space())
        (p1,) = driver.joined("p1")
        p1.say("space/kick", {"participant_id": "p2", "reason": "noise"})
        said = error(driver.again(space()).client().send(join("p2")))
        assert said["error"] == "kicked" and "noise" in said["message"]

    def test_open_streams_are_kept_with_their_owners_writers_and_targets(self) -> None:
        driver = GatewayDriver(space())
        p1, p2, _ = driver.joined("p1", "p2", "p3")
        driver.open_stream(p1, ["p3"], format="jsonl")
        closed = driver.open_stream(p1)
        p1.say("stream/grant-write", {"stream_id": "stream-1", "participant_id": "p2"})
        p1.say("stream/transfer-ownership", {"stream_id": "stream-1", "new_owner": "p2"})
        p2.received()
        p1.say("stream/close", {"stream_id": closed})
        later = driver.again(space())
        (shown,) = later.welcome("p4")["active_streams"]
        assert (shown["owner"], shown["authorized_writers"], shown["target"], shown["format"]) == (
            "p2",
            ["p2"],
            ["p3"],
            "jsonl",
        )
        p2, p3 = later.joined("p2", "p3")
        p2.put("#stream-1#x")
        later.run()
        assert p3.frames() == [b"#stream-1#x"]
        assert later.open_stream(p2) == "stream-3"  # numbers are never used again

    def test_a_stream_can_still_be_closed_by_what_opened_it(self) -> None:
        driver = GatewayDriver(space())
        (p1,) = driver.joined("p1")
        opened = p1.say("stream/request", {}, id="r1")[1]
        for cause in ("r1", opened["id"]):
            later = driver.again(space())
            (owner,) = later.joined("p1")
            owner.say("stream/close", correlation_id=cause)
            assert later.space.state.streams == {}

    def test_a_stream_whose_owner_does_not_come_back_is_closed(self) -> None:
        driver = GatewayDriver(space())
        driver.open_stream(driver.join("p1"))
        later = driver.again(space())
        later.advance(later.machine.limits.owner_grace_ms - 1)
        assert list(later.space.state.streams) == ["stream-1"]
        later.advance(1)
        assert later.space.state.streams == {}

    def test_a_configured_stream_is_not_opened_twice_and_goes_when_the_settings_drop_it(self) -> None:
        driver = GatewayDriver(space(out=StreamSettings("robot")))
        assert list(driver.space.state.streams) == ["stream-1"]
        assert list(driver.again(space(out=StreamSettings("robot"))).space.state.streams) == ["stream-1"]
        assert list(driver.again(space()).space.state.streams) == []
        changed = driver.again(space(out=StreamSettings("robot", ("p1",))))
        assert list(changed.space.state.streams) == ["stream-2"]

    def test_frames_of_a_kept_stream_go_on_counting(self) -> None:
        driver = GatewayDriver(space())
        (p1,) = driver.joined("p1")
        driver.open_stream(p1, ["robot"])
        p1.put("#stream-1#a", "#stream-1#b")
        driver.run()
        later = driver.again(space())
        (again,) = later.joined("p1")
        again.put("#stream-1#c")
        later.run()
        assert [(row.seq, row.body) for row in later.rows("frame")] == [(3, b"c")]

    def test_nothing_of_one_space_is_found_in_another(self) -> None:
        driver = GatewayDriver(space())
        p1, _ = driver.joined("p1", "p2")
        driver.open_stream(p1)
        p1.say("space/kick", {"participant_id": "p2"})
        other = GatewayDriver(settings("p2", id_="other"), rows=driver.journal.rows)
        assert other.join("p2", "other").is_open
        assert other.space.state.streams == {}
        assert list(other.memory.spaces) == ["demo", "other"]  # kept, for it may come back

    def test_no_token_is_in_any_row(self) -> None:
        driver = GatewayDriver(space())
        (p1,) = driver.joined("p1")
        key = only(p1.say("space/invite", {"participant_id": "x"}), "space/invite-ack")["token"]
        driver.join("x", key=key)
        text = repr([driver.journal.rows, list(driver.memory.snapshot())])
        assert key not in text and "p1-token" not in text


NAME = st.sampled_from(["p1", "p2", "p1", "p2", *NAMES, "guest", "x", "laptop", "robot", "nobody"])
ID = st.integers(1, 4).map(lambda n: f"stream-{n}")
CAPABILITIES = st.lists(st.sampled_from([{"kind": "a"}, {"kind": "a/*"}, {"kind": "*"}]), min_size=1, max_size=2)
OPERATION = st.one_of(
    st.tuples(st.just("join"), NAME, st.none()),
    st.tuples(st.just("leave"), NAME, st.none()),
    st.tuples(st.just("wait"), NAME, st.sampled_from([1, 40_000])),
    st.tuples(st.just("frame"), NAME, ID),
    st.tuples(st.just("chat"), NAME, st.just({"text": "t"})),
    st.tuples(
        st.just("stream/request"),
        NAME,
        st.fixed_dictionaries(
            {},
            optional={
                "target": st.lists(NAME, max_size=2),
                "overflow": st.just("disconnect"),
                "x": st.just(1),
            },
        ),
    ),
    st.tuples(st.just("stream/close"), NAME, st.fixed_dictionaries({"stream_id": ID})),
    st.tuples(
        st.sampled_from(["stream/grant-write", "stream/revoke-write", "stream/transfer-ownership"]),
        NAME,
        st.tuples(ID, NAME).map(lambda two: {"stream_id": two[0], "participant_id": two[1], "new_owner": two[1]}),
    ),
    st.tuples(
        st.just("capability/grant"),
        NAME,
        st.fixed_dictionaries({"recipient": NAME, "capabilities": CAPABILITIES}),
    ),
    st.tuples(
        st.just("capability/revoke"),
        NAME,
        st.fixed_dictionaries({"recipient": NAME, "capabilities": CAPABILITIES}),
    ),
    st.tuples(
        st.just("space/invite"),
        NAME,
        st.fixed_dictionaries({"participant_id": NAME}, optional={"initial_capabilities": CAPABILITIES}),
    ),
    st.tuples(
        st.just("space/kick"),
        NAME,
        st.fixed_dictionaries({"participant_id": NAME}, optional={"reason": st.just("r")}),
    ),
)


class Crowd:
    """Clients that do what the test draws, as far as the space allows."""

    def __init__(self, driver: GatewayDriver) -> None:
        self.driver = driver
        self.clients: dict[str, Client] = {}

    def do(self, what: str, who: str, how: Any) -> None:
        client = self.clients.get(who)
        if what == "join":
            key = dict(house_tokens(self.driver)).get(who, "p1-token" if who == "laptop" else f"{who}-token")
            self.clients[who] = self.driver.client()
            self.clients[who].put(join(who, key=key))
        elif what == "wait":
            self.driver.advance(how)
        elif client is None:
            return
        elif what == "leave":
            client.connection.lost()
        elif what == "frame":
            client.put(f"#{how}#x")
        else:
            client.put(envelope(what, how))


def house_tokens(driver: GatewayDriver) -> list[tuple[str, str]]:
    return [(name, key) for _, name, key in driver.minted]


@pytest.mark.promise("MEW gateway", "confirmed changes survive a restart and a crash")
@hypothesis_settings(max_examples=100, deadline=None)
@given(
    operations=st.lists(OPERATION, min_size=20, max_size=60),
    turns=st.lists(st.sampled_from(["commit", "refuse", "fresh", "none", "none"]), min_size=3, max_size=40),
)
def test_after_a_restart_a_space_remembers_what_it_remembered_before(operations: list[Any], turns: list[str]) -> None:
    driver = GatewayDriver(space(out=StreamSettings("p1", ("p2",)), echo=StreamSettings("robot")))
    crowd = Crowd(driver)
    for name in NAMES:
        crowd.do("join", name, None)
    driver.run()
    driver.journal.is_by_hand = True
    for number, operation in enumerate(operations):
        crowd.do(*operation)
        driver.run()
        turn = turns[number % len(turns)]
        if driver.journal.waiting and turn != "none":
            {
                "commit": driver.journal.commit,
                "refuse": driver.journal.refuse,
                "fresh": driver.journal.refuse_fresh,
            }[turn]()
            driver.run()
    driver.journal.is_by_hand = False
    while driver.journal.waiting:
        driver.journal.commit()
        driver.run()
    assert not driver.space.pending and driver.space.pending_bytes == 0
    assert all(each.waiting == 0 for each in driver.space.present.values())
    driver.advance(1_000)  # so that every frame is counted

    before = remembered(driver.memory)
    again = restored(driver.journal.rows)
    assert remembered(again) == before
    assert remembered(restored(list(again.snapshot()))) == before
    assert remembered(restored(list(driver.memory.snapshot()))) == before
    # What is on the wire agrees with what is remembered.
    assert {route.id for route in driver.space.router.routes.values()} == set(driver.space.state.streams)
    for stream in driver.space.state.streams.values():
        assert driver.space.router.routes[stream.route.key] is stream.route
        assert stream.route.owner in stream.route.writers
    assert not any(each.party in driver.space.state.kicked for each in driver.space.present.values())


def remembered(memory: SpaceMemory) -> Any:
    """All but for numbers that were refused, which only the running space knows, and frames whose counts were refused."""
    found = picture(memory)
    for each in found.values():
        del each["seq"], each["stream_no"]
        each["streams"] = {id_: stream[:-1] for id_, stream in each["streams"].items()}
    return found
