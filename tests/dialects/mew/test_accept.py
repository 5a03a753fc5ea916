"""The behaviour that clients rely on: grants, revokes, invites, kicks, and forwarded kinds."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest

from penstock.core.limits import Limits
from tests.dialects.mew.driving import (
    BASELINE,
    OPERATOR_TOKEN,
    Client,
    GatewayDriver,
    envelope,
    error,
    join,
    kinds,
    only,
    participant,
    settings,
)

GRANT = {"recipient": "guest", "capabilities": [{"kind": "mcp/request"}], "reason": "ok"}


class TestGrant:
    @pytest.mark.promise("MEW gateway", "grants, revokes and delegation follow the rules")
    def test_the_recipient_is_welcomed_anew_and_then_everybody_hears_the_grant(self, driver: GatewayDriver) -> None:
        p1, guest, p2 = driver.joined("p1", "guest", "p2")
        p1.say("capability/grant", GRANT, id="g1", to=["guest"])
        update, grant = guest.heard()
        assert (update["kind"], grant["kind"]) == ("system/welcome", "capability/grant")
        assert update["id"].startswith("welcome-update")
        assert list(update["payload"]) == ["you", "participants"]  # only joiners receive the streams
        assert update["payload"]["you"] == {
            "id": "guest",
            "capabilities": [{"kind": "chat"}, {"kind": "mcp/request"}, BASELINE],
        }
        assert kinds(p2.heard()) == ["capability/grant"]
        assert kinds(guest.say("mcp/request", {"method": "x"})) == ["mcp/request"]
        (row,) = driver.rows("grant")
        assert (row.channel, row.id, row.kind, row.sender, row.peer, row.reason) == (
            "demo",
            "g1",
            "capability/grant",
            "p1",
            "guest",
            "ok",
        )
        assert row.meta == '{"grant":"capability","capabilities":[{"kind":"mcp/request"}]}'

    def test_presence_shows_capabilities_with_grants(self, driver: GatewayDriver) -> None:
        p1, _ = driver.joined("p1", "guest")
        p1.say("capability/grant", GRANT)
        (shown,) = [each for each in driver.welcome("p2")["participants"] if each["id"] == "guest"]
        assert {"kind": "mcp/request"} in shown["capabilities"]

    def test_a_grant_by_logical_name_reaches_every_alias(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        alias = driver.join("laptop", key="guest-token")
        p1.say("capability/grant", GRANT)
        assert kinds(alias.heard()) == ["system/welcome", "capability/grant"]
        assert kinds(alias.say("mcp/request", {"method": "x"})) == ["mcp/request"]

    def test_a_grant_by_the_id_of_an_alias_is_its_logical_names(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        driver.join("laptop", key="guest-token")
        p1.say("capability/grant", GRANT | {"recipient": "laptop"})
        assert list(driver.space.state.grants) == ["guest"]

    def test_a_grant_outlives_a_disconnect_and_reaches_the_absent(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        p1.say("capability/grant", GRANT)
        for _ in range(2):
            guest = driver.join("guest")
            assert kinds(guest.say("mcp/request", {"method": "x"})) == ["mcp/request"]
            guest.gone()

    @pytest.mark.promise("MEW gateway", "grants, revokes and delegation follow the rules")
    def test_a_grant_of_capabilities_that_the_granter_lacks_is_rejected(self) -> None:
        lender = participant("lender", {"kind": "capability/grant"}, {"kind": "mcp/*", "payload": {"method": "read*"}})
        driver = GatewayDriver(settings(lender=lender, guest=participant("guest", {"kind": "chat"})))
        client, guest = driver.joined("lender", "guest")
        for beyond in ({"kind": "chat"}, {"kind": "mcp/request"}, {"kind": "*"}, {"kind": "mcp/**"}):
            said = error(client.say("capability/grant", {"recipient": "guest", "capabilities": [beyond]}))
            assert (said["error"], said["capabilities"]) == ("capability_violation", [beyond])
        assert guest.heard() == [] and driver.space.state.grants == {}
        within = {"kind": "mcp/request", "payload": {"method": "readme"}}
        assert "capability/grant" in kinds(
            client.say("capability/grant", {"recipient": "guest", "capabilities": [within]})
        )

    def test_a_grant_without_the_capability_is_rejected(self, driver: GatewayDriver) -> None:
        guest, p1 = driver.joined("guest", "p1")
        given = {"recipient": "guest", "capabilities": [{"kind": "chat"}]}
        assert error(guest.say("capability/grant", given))["error"] == "capability_violation"
        assert p1.heard() == []

    @pytest.mark.parametrize(
        ("payload", "code"),
        [
            (None, "invalid_request"),
            ({"capabilities": [{"kind": "x"}]}, "invalid_request"),
            ({"recipient": "guest"}, "invalid_request"),
            ({"recipient": "guest", "capabilities": ["x", {}]}, "invalid_request"),
            ({"recipient": "nobody", "capabilities": [{"kind": "x"}]}, "participant_not_found"),
        ],
    )
    def test_a_grant_that_says_too_little_is_refused_and_not_passed_on(
        self, driver: GatewayDriver, payload: Any, code: str
    ) -> None:
        p1, p2 = driver.joined("p1", "p2")
        assert error(p1.say("capability/grant", payload))["error"] == code
        assert p2.heard() == []

    def test_grants_are_bounded(self) -> None:
        driver = GatewayDriver(limits=Limits(grants_max=2))
        (p1,) = driver.joined("p1")
        for id_ in ("g1", "g2"):
            assert kinds(p1.say("capability/grant", GRANT, id=id_)) == ["capability/grant"]
        assert error(p1.say("capability/grant", GRANT, id="g3"))["error"] == "too_many_grants"

    def test_an_acknowledgement_comes_from_the_recipient_alone(self, driver: GatewayDriver) -> None:
        p1, guest = driver.joined("p1", "guest")
        p1.say("capability/grant", GRANT | {"capabilities": [{"kind": "capability/grant-ack"}]}, id="g1")
        assert "capability/grant-ack" not in kinds(p1.heard() + guest.heard())
        guest.say("capability/grant-ack", {"status": "accepted"}, correlation_id="g1")
        assert [each["from"] for each in p1.heard()] == ["guest"]


class TestRevoke:
    @pytest.fixture
    def granted(self, driver: GatewayDriver) -> tuple[GatewayDriver, Client, Client]:
        p1, guest = driver.joined("p1", "guest")
        given = [{"kind": "mcp/request"}, {"kind": "mcp/proposal"}]
        p1.say("capability/grant", GRANT | {"capabilities": given}, id="g1")
        p1.say("capability/grant", GRANT | {"capabilities": [{"kind": "reasoning/start"}]}, id="g2")
        guest.received()
        return driver, p1, guest

    def test_by_the_id_of_the_grant(self, granted: tuple[GatewayDriver, Client, Client]) -> None:
        driver, p1, guest = granted
        p1.say("capability/revoke", {"recipient": "guest", "grant_id": "g1", "reason": "enough"}, id="v1")
        update, said = guest.heard()
        assert (update["kind"], said["kind"]) == ("system/welcome", "capability/revoke")
        assert update["payload"]["you"]["capabilities"] == [
            {"kind": "chat"},
            {"kind": "reasoning/start"},
            BASELINE,
        ]
        assert error(guest.say("mcp/request", {"method": "x"}))["error"] == "capability_violation"
        (row,) = driver.rows("revoke")
        assert (row.id, row.sender, row.peer, row.reason) == ("v1", "p1", "guest", "enough")
        assert row.meta == '{"grant":"capability","grant_id":"g1"}'

    @pytest.mark.promise("MEW gateway", "grants, revokes and delegation follow the rules")
    @pytest.mark.parametrize(
        ("revoked", "left"),
        [
            ([{"kind": "mcp/request"}], ["chat", "mcp/proposal", "reasoning/start"]),
            ([{"kind": "mcp/*"}], ["chat", "reasoning/start"]),
            ([{"kind": "*"}], ["chat"]),
            ([{"kind": "x"}], ["chat", "mcp/request", "mcp/proposal", "reasoning/start"]),
        ],
    )
    def test_by_what_it_covers_and_never_what_the_settings_give(
        self, granted: tuple[GatewayDriver, Client, Client], revoked: Any, left: list[str]
    ) -> None:
        _, p1, guest = granted
        p1.say("capability/revoke", {"recipient": "guest", "capabilities": revoked})
        you = only(guest.heard(), "system/welcome")["you"]
        assert [each["kind"] for each in you["capabilities"]] == [*left, "mcp/response"]

    def test_names_are_resolved(self, granted: tuple[GatewayDriver, Client, Client]) -> None:
        driver, p1, _ = granted
        driver.join("laptop", key="guest-token")
        p1.say("capability/revoke", {"recipient": "laptop", "grant_id": "g1"})
        assert list(driver.space.state.grants["guest"]) == ["g2"]

    @pytest.mark.parametrize("payload", [{"recipient": "guest"}, {"grant_id": "g1"}, None])
    def test_one_that_says_too_little_is_refused(
        self, granted: tuple[GatewayDriver, Client, Client], payload: Any
    ) -> None:
        _, p1, guest = granted
        assert error(p1.say("capability/revoke", payload))["error"] == "invalid_request"
        assert guest.heard() == []


class TestInvite:
    @pytest.mark.promise("MEW gateway", "invitations and kicks follow the rules")
    def test_only_the_inviter_receives_the_token_and_the_others_receive_the_invitation(
        self, driver: GatewayDriver
    ) -> None:
        p1, p2 = driver.joined("p1", "p2")
        payload = {"participant_id": "x", "initial_capabilities": [{"kind": "chat"}], "reason": "help"}
        (ack,) = p1.say("space/invite", payload, id="i1")
        assert (ack["kind"], ack["to"], ack["correlation_id"]) == ("space/invite-ack", ["p1"], ["i1"])
        said = ack["payload"]
        assert (said["status"], said["participant_id"]) == ("created", "x")
        assert said["connection_url"] == "ws://localhost:8080/"
        assert len(said["token"]) == 43 and "=" not in said["token"]
        (presence,) = p2.heard()
        assert presence["payload"] == {
            "event": "invited",
            "participant": {"id": "x", "capabilities": [{"kind": "chat"}, BASELINE]},
            "invited_by": "p1",
            "reason": "help",
        }
        assert driver.minted == [("demo", "x", said["token"])]
        (row,) = driver.rows("invite")
        digest = sha256(said["token"].encode()).hexdigest()
        assert (row.channel, row.id, row.kind, row.sender, row.peer, row.reason) == (
            "demo",
            "i1",
            "space/invite",
            "p1",
            "x",
            "help",
        )
        assert msgspec.json.decode(row.meta or "") == {"token": digest, "capabilities": [{"kind": "chat"}]}
        assert not any(said["token"].encode() in (each.body or b"") for each in driver.journal.rows)

    def test_the_invited_joins_and_keeps_its_capabilities_when_it_rejoins(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        payload = {"participant_id": "x", "initial_capabilities": [{"kind": "mcp/request"}]}
        key = only(p1.say("space/invite", payload), "space/invite-ack")["token"]
        for _ in range(2):
            client = driver.join("x", key=key)
            assert kinds(client.say("mcp/request", {"method": "m"})) == ["mcp/request"]
            client.gone()

    def test_the_token_of_the_invited_does_not_open_another_name(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        key = only(p1.say("space/invite", {"participant_id": "x"}), "space/invite-ack")["token"]
        client = driver.client()
        assert error(client.send(join("p2", key=key)))["error"] == "invalid_participant"
        other = driver.client()
        assert error(other.send(join("x", key="p2-token")))["error"] == "invalid_participant"

    @pytest.mark.parametrize("who", ["p2", "x", "operator", "my-laptop"])
    def test_a_known_or_present_participant_is_not_invited_again(self, driver: GatewayDriver, who: str) -> None:
        p1, p2 = driver.joined("p1", "p2")
        p1.say("space/invite", {"participant_id": "x"})
        driver.join("my-laptop", key="p3-token")
        p1.received()
        p2.received()
        (ack,) = p1.say("space/invite", {"participant_id": who}, id="i2")
        said = ack["payload"]
        assert (ack["kind"], said["status"], said["participant_id"]) == (
            "space/invite-ack",
            "already_exists",
            who,
        )
        assert said["error"] and "token" not in said
        assert p2.heard() == [] and len(driver.rows("invite")) == 1

    @pytest.mark.parametrize(
        "who",
        [None, "", "a/b", "a\\b", "..", "a..b", "x" * 300, "a\nb", 5, "gateway", "system:gateway", "system"],
    )
    def test_what_cannot_be_an_id_is_refused(self, driver: GatewayDriver, who: Any) -> None:
        (p1,) = driver.joined("p1")
        assert error(p1.say("space/invite", {"participant_id": who}))["error"] == "invalid_request"
        assert driver.space.state.invited == {}

    def test_invites_are_bounded(self) -> None:
        driver = GatewayDriver(limits=Limits(invites_max=1))
        (p1,) = driver.joined("p1")
        p1.say("space/invite", {"participant_id": "x"})
        assert error(p1.say("space/invite", {"participant_id": "y"}))["error"] == "too_many_invites"

    def test_two_tokens_are_never_the_same(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        keys = [
            only(p1.say("space/invite", {"participant_id": f"x{n}"}), "space/invite-ack")["token"] for n in range(5)
        ]
        assert len(set(keys)) == 5

    def test_the_inviter_sets_the_capabilities_of_newcomers(self) -> None:
        # In upstream's own scenario an admin invites a participant that may propose, which the admin itself may not.
        driver = GatewayDriver(settings(host=participant("host", {"kind": "space/invite"})))
        (client,) = driver.joined("host")
        payload = {"participant_id": "x", "initial_capabilities": [{"kind": "mcp/proposal"}]}
        key = only(client.say("space/invite", payload), "space/invite-ack")["token"]
        newcomer = driver.join("x", key=key)
        assert kinds(newcomer.say("mcp/proposal", {"method": "m"})) == ["mcp/proposal"]
        assert error(newcomer.say("chat", {"text": "t"}))["error"] == "capability_violation"

    @pytest.mark.parametrize("kind", ["*", "space/kick", "capability/*", ["chat", "space/invite"]])
    def test_an_invitation_grants_no_power_over_others_beyond_the_inviters(self, kind: Any) -> None:
        driver = GatewayDriver(settings(host=participant("host", {"kind": "space/invite", "payload": {"reason": "r"}})))
        (client,) = driver.joined("host")
        payload = {"participant_id": "x", "initial_capabilities": [{"kind": kind}], "reason": "r"}
        said = error(client.say("space/invite", payload))
        assert (said["error"], said["capabilities"]) == ("capability_violation", [{"kind": kind}])
        assert driver.space.state.invited == {}


class TestKick:
    @pytest.mark.promise("MEW gateway", "invitations and kicks follow the rules")
    def test_everybody_hears_it_and_the_kicked_is_disconnected_with_a_reason(self, driver: GatewayDriver) -> None:
        p1, p2, p3 = driver.joined("p1", "p2", "p3")
        heard = p1.say("space/kick", {"participant_id": "p2", "reason": "noise"}, id="k1")
        assert kinds(heard) == kinds(p3.heard()) == ["space/kick", "system/presence"]
        assert heard[1]["payload"] == {"event": "leave", "participant": {"id": "p2"}}
        last = p2.heard()
        assert kinds(last) == ["space/kick", "system/error"]
        assert last[1]["payload"]["error"] == "kicked" and "noise" in last[1]["payload"]["message"]
        assert p2.wire.closed == (4003, "kicked")
        (row,) = driver.rows("kick")
        assert (row.channel, row.id, row.sender, row.peer, row.reason) == ("demo", "k1", "p1", "p2", "noise")

    @pytest.mark.promise("MEW gateway", "invitations and kicks follow the rules")
    def test_a_rejoin_is_refused_without_a_welcome(self, driver: GatewayDriver) -> None:
        p1, _ = driver.joined("p1", "p2")
        p1.say("space/kick", {"participant_id": "p2", "reason": "noise"})
        for name in ("p2", "p2-laptop"):
            client = driver.client()
            (said,) = client.send(join(name, key="p2-token"))
            assert said["payload"]["error"] == "kicked" and "noise" in said["payload"]["message"]
            assert client.wire.closed == (1008, "kicked")
        assert driver.post("p2", {"kind": "chat"})[0] == 403

    def test_every_alias_goes(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        aliases = [driver.join(name, key="p2-token") for name in ("laptop", "phone")]
        p1.say("space/kick", {"participant_id": "laptop"})
        assert not any(alias.is_open for alias in aliases)
        assert driver.space.state.kicked == {"p2": ""}

    def test_an_invite_lets_the_kicked_back_in_with_a_new_token(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        first = only(p1.say("space/invite", {"participant_id": "x"}), "space/invite-ack")["token"]
        p1.say("space/kick", {"participant_id": "x"})
        second = only(p1.say("space/invite", {"participant_id": "x"}), "space/invite-ack")["token"]
        assert error(driver.client().send(join("x", key=first)))["error"] == "unauthorized"
        assert driver.join("x", key=second).is_open

    @pytest.mark.promise(
        "MEW gateway",
        "inviting a kicked participant grants no more power over others than the inviter has",
    )
    def test_who_is_in_the_settings_comes_back_to_what_they_say(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        p1.say("space/kick", {"participant_id": "guest"})
        p2.received()
        payload = {"participant_id": "guest", "initial_capabilities": [{"kind": "mcp/request"}]}
        key = only(p1.say("space/invite", payload), "space/invite-ack")["token"]
        (told,) = p2.heard()
        assert told["payload"]["participant"] == {"id": "guest", "capabilities": [{"kind": "chat"}, BASELINE]}
        guest = driver.join("guest", key=key)
        assert error(guest.say("mcp/request", {"method": "m"}))["error"] == "capability_violation"

    @pytest.mark.promise(
        "MEW gateway",
        "inviting a kicked participant grants no more power over others than the inviter has",
    )
    def test_inviting_a_kicked_participant_with_more_power_over_others_is_rejected(self) -> None:
        driver = GatewayDriver(settings("p1", "p2", host=participant("host", {"kind": "space/invite"})))
        p1, host = driver.joined("p1", "host")
        p1.say("space/kick", {"participant_id": "p2"})
        host.received()
        payload = {"participant_id": "p2", "initial_capabilities": [{"kind": "chat"}]}
        said = error(host.say("space/invite", payload))
        assert (said["error"], said["capabilities"]) == ("capability_violation", [{"kind": "*"}])
        assert "p2" in driver.space.state.kicked and driver.rows("invite") == []

    @pytest.mark.parametrize(
        ("payload", "code"),
        [
            ({}, "invalid_request"),
            (None, "invalid_request"),
            ({"participant_id": "nobody"}, "participant_not_found"),
            ({"participant_id": "operator"}, "invalid_operation"),
            ({"participant_id": "robot"}, "invalid_operation"),
        ],
    )
    def test_a_kick_affects_only_its_participant(self, payload: Any, code: str) -> None:
        driver = GatewayDriver(settings("p1", "p2", robot=participant("robot", is_pipeline=True)))
        p1, p2 = driver.joined("p1", "p2")
        driver.join("operator", key=OPERATOR_TOKEN)
        p2.received()
        p1.received()
        assert error(p1.say("space/kick", payload))["error"] == code
        assert p2.heard() == [] and driver.space.state.kicked == {}

    def test_it_needs_its_capability(self, driver: GatewayDriver) -> None:
        guest, p2 = driver.joined("guest", "p2")
        assert error(guest.say("space/kick", {"participant_id": "p2"}))["error"] == "capability_violation"
        assert p2.is_open

    def test_a_join_that_came_before_a_kick_is_put_out_by_it(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        driver.journal.is_by_hand = True
        p1.send(envelope("chat", {"text": "first"}))
        late = driver.client()
        late.send(join("p2"))
        p1.send(envelope("space/kick", {"participant_id": "p2"}))
        driver.journal.is_by_hand = False
        while driver.journal.waiting:
            driver.journal.commit()
        driver.run()
        heard = late.heard()
        assert [each["kind"] for each in heard] == ["system/welcome", "space/kick", "system/error"]
        assert heard[-1]["payload"]["error"] == "kicked"
        assert late.wire.closed == (4003, "kicked")

    def test_the_grants_of_the_kicked_go_too(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        p1.say("capability/grant", GRANT)
        p1.say("space/kick", {"participant_id": "guest"})
        assert driver.space.state.grants == {}

    def test_a_participant_can_kick_itself(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        p1.put(envelope("space/kick", {"participant_id": "p1"}), envelope("chat", {"text": "still here?"}))
        driver.run()
        assert p1.wire.closed == (4003, "kicked")
        assert p2.is_open and "p1" not in driver.space.present


RELAYED = [
    *(f"mcp/{each}" for each in ("request", "response", "proposal", "withdraw", "reject", "notification")),
    *("chat", "chat/acknowledge", "chat/cancel"),
    *(f"reasoning/{each}" for each in ("start", "thought", "conclusion", "cancel")),
    *(
        f"participant/{each}"
        for each in (
            "pause",
            "resume",
            "request-status",
            "status",
            "forget",
            "compact",
            "compact-done",
            "clear",
            "restart",
            "shutdown",
        )
    ),
    "capability/grant-ack",
    *("stream/open", "stream/data"),
    "something/else",
]


class TestNotices:
    @pytest.mark.promise("MEW gateway", "notices that only the gateway sends are refused from participants")
    @pytest.mark.parametrize(
        "kind",
        ["stream/write-granted", "stream/write-revoked", "stream/ownership-transferred", "space/invite-ack"],
    )
    def test_one_from_a_participant_is_refused(self, driver: GatewayDriver, kind: str) -> None:
        p1, p2 = driver.joined("p1", "p2")
        driver.open_stream(p2)
        p1.received()
        p2.received()
        forged = {"stream_id": "stream-1", "participant_id": "p1", "authorized_writers": ["p1"], "new_owner": "p1"}
        fault = error(p1.say(kind, forged, id="e1"))
        assert (fault["error"], fault["message"]) == ("invalid_request", f"{kind} is reserved for the gateway")
        assert p2.heard() == []
        assert driver.post("p1", {"kind": kind, "payload": forged})[0] == 400


class TestRelay:
    @pytest.mark.promise("MEW gateway", "other kinds are forwarded")
    @pytest.mark.parametrize("kind", RELAYED)
    def test_it_is_passed_on_and_changes_nothing(self, driver: GatewayDriver, kind: str) -> None:
        p1, p2 = driver.joined("p1", "p2")
        payload = {"text": "t", "method": "m", "reason": "r", "stream_id": "stream-1", "participant_id": "p1"}
        sent = envelope(kind, payload, id="e1", to=["p1"], context="c", correlation_id=["x"])
        p1.put(sent)
        driver.run()
        (heard,) = p2.heard()
        assert p1.heard() == [heard]
        assert {name: heard[name] for name in sent} == sent and heard["from"] == "p1"
        assert driver.space.state.streams == {} and p1.is_open
        assert [row.event for row in driver.journal.rows if row.event not in ("join", "leave")] == ["envelope"]

    @pytest.mark.promise("MEW gateway", "other kinds are forwarded")
    @pytest.mark.parametrize("kind", [*RELAYED, "stream/close", "stream/request", "space/invite", "space/kick"])
    def test_it_needs_a_capability(self, driver: GatewayDriver, kind: str) -> None:
        house_of_mutes = GatewayDriver(settings("p2", mute=participant("mute", {"kind": "nothing"})))
        mute, p2 = house_of_mutes.joined("mute", "p2")
        heard = mute.say(kind, {"text": "t", "method": "m"})
        if kind == "mcp/response":  # the baseline
            assert kinds(heard) == kinds(p2.heard()) == [kind]
        else:
            assert error(heard)["attempted_kind"] == kind
            assert p2.heard() == []

    def test_a_close_of_an_unknown_stream_is_forwarded(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        assert kinds(p1.say("stream/close", {"reason": "done"})) == kinds(p2.heard()) == ["stream/close"]

    def test_the_capabilities_decide_by_payload_too(self) -> None:
        reader = participant("reader", {"kind": "mcp/request", "payload": {"method": "read*"}})
        driver = GatewayDriver(settings("p2", reader=reader))
        client, p2 = driver.joined("reader", "p2")
        assert kinds(client.say("mcp/request", {"method": "readme"})) == kinds(p2.heard()) == ["mcp/request"]
        assert error(client.say("mcp/request", {"method": "write"}))["error"] == "capability_violation"
        assert p2.heard() == []


class TestTooLarge:
    @pytest.fixture
    def small(self) -> GatewayDriver:
        return GatewayDriver(limits=Limits(space_envelope_max=2_000))

    @pytest.mark.promise("MEW gateway", "who waits for an answer that is too large is notified by its correlation")
    @pytest.mark.parametrize("size", [2_100, 100_000])
    @pytest.mark.parametrize("to", [["p1"], None])
    def test_who_waits_for_the_answer_is_notified(self, small: GatewayDriver, size: int, to: list[str] | None) -> None:
        p1, p2, p3 = small.joined("p1", "p2", "p3")
        answer = envelope("mcp/response", {"result": "x" * size}, id="big", correlation_id="q1")
        assert error(p2.send(answer if to is None else answer | {"to": to}))["error"] == "too_large"
        (told,) = p1.heard()
        assert told["kind"] == "system/error" and told["from"] == "system:gateway" and told["to"] == ["p1"]
        assert told["correlation_id"] == ["q1"] and told["payload"]["error"] == "too_large"
        assert (told["payload"]["refused_id"], told["payload"]["refused_from"]) == ("big", "p2")
        assert len(p3.heard()) == (to is None) and p2.is_open
        assert small.rows("envelope") == []

    def test_over_http_too(self, small: GatewayDriver) -> None:
        (p1,) = small.joined("p1")
        answer = {"kind": "mcp/response", "correlation_id": ["q1"], "to": ["p1"], "payload": {"r": "x" * 3_000}}
        assert small.post("p2", answer)[0] == 413
        assert error(p1.heard())["refused_from"] == "p2"

    def test_it_needs_a_correlation_and_the_right_to_send(self, small: GatewayDriver) -> None:
        p1, p2, guest = small.joined("p1", "p2", "guest")
        assert error(p2.say("chat", {"text": "x" * 3_000}, to=["p1"]))["error"] == "too_large"
        big = {"text": "x" * 3_000}
        assert error(guest.say("mcp/call", big, correlation_id=["q"]))["error"] == "capability_violation"
        assert error(p2.say("chat", big, correlation_id=["q"], from_="p1"))["error"] == "invalid_from"
        assert p1.heard() == []

    @pytest.mark.parametrize(
        "data", [b'{"a":' + b"[" * 100_000, b'{"kind":"' + b"\xff" * 100_000 + b'"}', b"{" + b" " * 100_000]
    )
    def test_broken_ones_are_refused(self, small: GatewayDriver, data: bytes) -> None:
        (p1,) = small.joined("p1")
        assert error(p1.send(data))["error"] == "too_large"

    @pytest.mark.promise("MEW gateway", "an answer of a few megabytes is carried")
    def test_a_file_of_a_few_megabytes_is_carried(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        text = 'a line of "text"\n' * 180_000
        p2.put(envelope("mcp/response", {"result": {"content": [{"type": "text", "text": text}]}}, to=["p1"]))
        driver.run()
        (heard,) = p1.heard()
        assert heard["payload"]["result"]["content"][0]["text"] == text
