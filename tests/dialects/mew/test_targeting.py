"""Targeted delivery, line by line of its proposal: unit tests, integration tests, edge cases, success criteria, open questions."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.dialects.mew.settings import StreamSettings
from tests.dialects.mew.driving import GatewayDriver, envelope, error, kinds, only, participant, settings


@pytest.fixture
def driver() -> GatewayDriver:
    return GatewayDriver(settings("owner", "a", "b", "c", "late"))


class TestCreation:
    """Unit tests: stream creation with target."""

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "a stream is created with one target, several or none; missing targets are listed",
    )
    def test_a_single_target_that_exists_makes_the_stream(self, driver: GatewayDriver) -> None:
        owner, _ = driver.joined("owner", "a")
        opened = only(owner.say("stream/request", {"direction": "upload", "target": ["a"]}), "stream/open")
        assert opened["target"] == ["a"]
        assert opened["stream_id"] in driver.space.state.streams

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "a stream is created with one target, several or none; missing targets are listed",
    )
    def test_multiple_targets_that_all_exist_make_the_stream(self, driver: GatewayDriver) -> None:
        owner, *_ = driver.joined("owner", "a", "b")
        opened = only(owner.say("stream/request", {"target": ["a", "b"]}), "stream/open")
        assert opened["target"] == ["a", "b"]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "a stream is created with one target, several or none; missing targets are listed",
    )
    def test_any_target_that_does_not_exist_is_an_error_with_the_list_of_missing(self, driver: GatewayDriver) -> None:
        owner, a = driver.joined("owner", "a")
        heard = owner.say("stream/request", {"target": ["x", "a", "b", 1]}, id="r1")
        assert kinds(heard) == ["system/error"]
        (said,) = heard
        assert (said["from"], said["to"], said["correlation_id"]) == ("system:gateway", ["owner"], ["r1"])
        message = "One or more target participants do not exist in space"
        assert said["payload"] == {"error": "target_not_found", "targets": ["x", "b", 1], "message": message}
        assert driver.space.state.streams == {}
        assert a.heard() == []  # the request is not passed on either

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "a stream is created with one target, several or none; missing targets are listed",
    )
    @pytest.mark.parametrize("payload", [{"target": []}, {"target": None}, {}, None])
    def test_no_target_or_an_empty_one_broadcasts(self, driver: GatewayDriver, payload: Any) -> None:
        everybody = driver.joined("owner", "a", "b")
        opened = only(everybody[0].say("stream/request", payload), "stream/open")
        assert "target" not in opened
        everybody[0].put(f"#{opened['stream_id']}#x")
        driver.run()
        assert [client.frames() for client in everybody] == [[b"#stream-1#x"]] * 3

    def test_a_target_that_is_configured_and_not_there_does_not_exist(self, driver: GatewayDriver) -> None:
        (owner,) = driver.joined("owner")
        assert error(owner.say("stream/request", {"target": ["a"]}))["targets"] == ["a"]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "a string is one name, and an invalid target is never a broadcast",
    )
    def test_a_string_target_is_one_name_and_never_a_broadcast(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        opened = only(owner.say("stream/request", {"target": "a"}), "stream/open")
        assert opened["target"] == ["a"]
        owner.put("#stream-1#x")
        driver.run()
        assert (owner.frames(), a.frames(), b.frames()) == ([], [b"#stream-1#x"], [])
        assert error(owner.say("stream/request", {"target": "nobody"}))["targets"] == ["nobody"]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "a string is one name, and an invalid target is never a broadcast",
    )
    @pytest.mark.parametrize("target", [{"a": 1}, 5, True, {}, 0, False])
    def test_what_is_no_list_of_names_is_refused_and_never_a_broadcast(
        self, driver: GatewayDriver, target: Any
    ) -> None:
        owner, a = driver.joined("owner", "a")
        assert error(owner.say("stream/request", {"target": target}))["error"] == "invalid_request"
        assert (driver.space.state.streams, a.heard()) == ({}, [])


class TestRouting:
    """Unit tests: frame routing."""

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "frames go to one, several or all targets, to the remaining ones after a leave, once each, by logical name",
    )
    def test_a_single_target_gets_the_frames_alone(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        id_ = driver.open_stream(owner, ["a"])
        owner.put(*(f"#{id_}#{n}" for n in range(5)))
        driver.run()
        assert a.frames() == [f"#{id_}#{n}".encode() for n in range(5)]
        assert (owner.frames(), b.frames()) == ([], [])

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "frames go to one, several or all targets, to the remaining ones after a leave, once each, by logical name",
    )
    def test_multiple_targets_each_get_the_frames(self, driver: GatewayDriver) -> None:
        owner, a, b, c = driver.joined("owner", "a", "b", "c")
        id_ = driver.open_stream(owner, ["a", "b"])
        owner.put(f"#{id_}#x")
        driver.run()
        assert (a.frames(), b.frames(), c.frames(), owner.frames()) == (
            [b"#stream-1#x"],
            [b"#stream-1#x"],
            [],
            [],
        )

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "frames go to one, several or all targets, to the remaining ones after a leave, once each, by logical name",
    )
    def test_a_broadcast_stream_reaches_all_its_writer_included(self, driver: GatewayDriver) -> None:
        everybody = driver.joined("owner", "a", "b", "c")
        id_ = driver.open_stream(everybody[0])
        everybody[0].put(f"#{id_}#x")
        driver.run()
        assert [client.frames() for client in everybody] == [[b"#stream-1#x"]] * 4

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "frames go to one, several or all targets, to the remaining ones after a leave, once each, by logical name",
    )
    def test_when_one_target_disconnects_the_others_still_get_frames(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        id_ = driver.open_stream(owner, ["a", "b"])
        a.gone()
        owner.put(f"#{id_}#x")
        driver.run()
        assert b.frames() == [b"#stream-1#x"]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "frames go to one, several or all targets, to the remaining ones after a leave, once each, by logical name",
    )
    def test_a_target_named_twice_gets_each_frame_once(self, driver: GatewayDriver) -> None:
        owner, a = driver.joined("owner", "a")
        opened = only(owner.say("stream/request", {"target": ["a", "a"]}), "stream/open")
        assert opened["target"] == ["a"]
        owner.put("#stream-1#x")
        driver.run()
        assert a.frames() == [b"#stream-1#x"]

    def test_a_target_named_by_its_id_and_its_logical_name_gets_each_frame_once(self, driver: GatewayDriver) -> None:
        (owner,) = driver.joined("owner")
        alias = driver.join("a-laptop", key="a-token")
        id_ = driver.open_stream(owner, ["a", "a-laptop"])
        alias.received()
        owner.put(f"#{id_}#x")
        driver.run()
        assert alias.frames() == [b"#stream-1#x"]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "frames go to one, several or all targets, to the remaining ones after a leave, once each, by logical name",
    )
    def test_a_logical_name_reaches_every_connection_with_its_token(self, driver: GatewayDriver) -> None:
        (owner,) = driver.joined("owner")
        laptop, phone = driver.join("a-laptop", key="a-token"), driver.join("a-phone", key="a-token")
        other = driver.join("b")
        id_ = driver.open_stream(owner, ["a"])
        owner.put(f"#{id_}#x")
        driver.run()
        assert (laptop.frames(), phone.frames(), other.frames()) == ([b"#stream-1#x"], [b"#stream-1#x"], [])


class TestWelcome:
    """Unit tests: welcome message."""

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "welcomes list targets and leave them out for broadcasts",
    )
    def test_targeted_streams_include_target_and_broadcast_streams_omit_it(self, driver: GatewayDriver) -> None:
        owner, _ = driver.joined("owner", "a")
        driver.open_stream(owner, ["a"], content_type="application/json")
        driver.open_stream(owner, [])
        targeted, broadcast = driver.welcome("late")["active_streams"]
        assert (targeted["target"], targeted["content_type"]) == (["a"], "application/json")
        assert "target" not in broadcast
        for shown in (targeted, broadcast):
            assert {"stream_id", "owner", "authorized_writers", "created", "direction"} <= set(shown)


class TestIntegration:
    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "integration: aggregation, mixed streams, late joiners",
    )
    def test_aggregation_pattern(self) -> None:
        publishers = ["p1", "p2", "p3"]
        driver = GatewayDriver(settings(*publishers, "aggregator", "watcher"))
        clients = dict(
            zip(
                [*publishers, "aggregator", "watcher"],
                driver.joined(*publishers, "aggregator", "watcher"),
                strict=True,
            )
        )
        streams = {name: driver.open_stream(clients[name], ["aggregator"]) for name in publishers}
        for client in clients.values():
            client.received()
        for name, id_ in streams.items():
            clients[name].put(f"#{id_}#from {name}")
        driver.run()
        wanted = [f"#{id_}#from {name}".encode() for name, id_ in streams.items()]
        assert clients["aggregator"].frames() == wanted
        assert all(clients[name].received() == [] for name in (*publishers, "watcher"))
        world = driver.open_stream(clients["aggregator"])
        clients["aggregator"].put(f"#{world}#all of it")
        driver.run()
        assert [client.frames() for client in clients.values()] == [[f"#{world}#all of it".encode()]] * 5

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "integration: aggregation, mixed streams, late joiners",
    )
    def test_mixed_streams(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        to_a, to_all, to_b = (driver.open_stream(owner, target) for target in (["a"], None, ["b"]))
        owner.put(*(f"#{id_}#{n}" for n in range(3) for id_ in (to_a, to_all, to_b)))
        driver.run()
        assert a.frames() == [f"#{id_}#{n}".encode() for n in range(3) for id_ in (to_a, to_all)]
        assert b.frames() == [f"#{id_}#{n}".encode() for n in range(3) for id_ in (to_all, to_b)]
        assert owner.frames() == [f"#{to_all}#{n}".encode() for n in range(3)]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "integration: aggregation, mixed streams, late joiners",
    )
    def test_late_joiner_sees_the_metadata_with_target_and_gets_no_targeted_data(self, driver: GatewayDriver) -> None:
        owner, a = driver.joined("owner", "a")
        id_ = driver.open_stream(owner, ["a"], format="jsonl")
        late = driver.client()
        (shown,) = only(late.send({"type": "join", "participantId": "late", "token": "late-token"}), "system/welcome")[
            "active_streams"
        ]
        assert (shown["stream_id"], shown["owner"], shown["target"], shown["format"]) == (
            id_,
            "owner",
            ["a"],
            "jsonl",
        )
        owner.put(f"#{id_}#x")
        driver.run()
        assert (a.frames(), late.frames()) == ([b"#stream-1#x"], [])

    def test_a_late_joiner_gets_broadcast_data_from_then_on(self, driver: GatewayDriver) -> None:
        (owner,) = driver.joined("owner")
        id_ = driver.open_stream(owner)
        owner.put(f"#{id_}#before")
        driver.run()
        late = driver.join("late")
        owner.put(f"#{id_}#after")
        driver.run()
        assert late.frames() == [b"#stream-1#after"]


class TestEdgeCases:
    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "edge cases: a target leaves, returns, all leave, the owner changes, the owner is a target",
    )
    def test_one_of_multiple_targets_disconnects_in_the_middle_of_the_stream(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        id_ = driver.open_stream(owner, ["a", "b"])
        owner.put(f"#{id_}#1")
        a.connection.lost()  # in the same turn: what was sent before it left is not lost for the other
        owner.put(f"#{id_}#2")
        driver.run()
        assert b.frames() == [b"#stream-1#1", b"#stream-1#2"]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "edge cases: a target leaves, returns, all leave, the owner changes, the owner is a target",
    )
    def test_a_target_reconnects_after_it_disconnected(self, driver: GatewayDriver) -> None:
        owner, a = driver.joined("owner", "a")
        id_ = driver.open_stream(owner, ["a"])
        a.gone()
        owner.put(f"#{id_}#missed")
        driver.run()
        again = driver.join("a")
        owner.put(f"#{id_}#heard")
        driver.run()
        assert again.frames() == [b"#stream-1#heard"]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "edge cases: a target leaves, returns, all leave, the owner changes, the owner is a target",
    )
    def test_the_owner_changes_and_the_targets_do_not(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        id_ = driver.open_stream(owner, ["a"])
        moved = only(
            owner.say("stream/transfer-ownership", {"stream_id": id_, "new_owner": "b"}),
            "stream/ownership-transferred",
        )
        assert (moved["new_owner"], moved["authorized_writers"]) == ("b", ["b"])
        b.put(f"#{id_}#x")
        driver.run()
        assert (a.frames(), b.frames(), owner.frames()) == ([b"#stream-1#x"], [], [])
        (shown,) = driver.welcome("late")["active_streams"]
        assert (shown["owner"], shown["target"]) == ("b", ["a"])

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "edge cases: a target leaves, returns, all leave, the owner changes, the owner is a target",
    )
    def test_a_self_targeted_stream(self, driver: GatewayDriver) -> None:
        owner, a = driver.joined("owner", "a")
        id_ = driver.open_stream(owner, ["owner"])
        owner.put(f"#{id_}#x")
        driver.run()
        assert (owner.frames(), a.frames()) == ([b"#stream-1#x"], [])

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "edge cases: a target leaves, returns, all leave, the owner changes, the owner is a target",
    )
    def test_all_targets_disconnect_and_the_stream_stays_open(self, driver: GatewayDriver) -> None:
        owner, a, b, c = driver.joined("owner", "a", "b", "c")
        id_ = driver.open_stream(owner, ["a", "b"])
        a.gone()
        b.gone()
        owner.received()
        owner.put(f"#{id_}#dropped")
        driver.run()
        assert owner.received() == []  # neither an error nor the frame
        assert c.frames() == []
        assert list(driver.space.state.streams) == [id_]
        again = driver.join("b")
        owner.put(f"#{id_}#resumed")
        driver.run()
        assert again.frames() == [b"#stream-1#resumed"]

    def test_a_target_that_is_taken_over_gets_the_frames_on_its_new_connection(self, driver: GatewayDriver) -> None:
        owner, old = driver.joined("owner", "a")
        id_ = driver.open_stream(owner, ["a"])
        new = driver.join("a")
        old.received()
        owner.put(f"#{id_}#x")
        driver.run()
        assert (new.frames(), old.frames()) == ([b"#stream-1#x"], [])


class TestRecommendations:
    """What the open questions recommend."""

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "open questions: the owner is notified, targets never change, lifecycle messages are broadcast",
    )
    def test_the_owner_is_notified_when_a_target_leaves(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        id_ = driver.open_stream(owner, ["a", "b"])
        b.received()
        a.gone()
        heard = owner.heard()
        assert kinds(heard) == ["system/error", "system/presence"]
        said = error(heard)
        assert (said["error"], said["stream_id"], said["targets"]) == ("target_disconnected", id_, ["a"])
        assert heard[0]["correlation_id"] == ["r"]
        assert kinds(b.heard()) == ["system/presence"]

    def test_no_notice_is_sent_while_another_of_the_same_logical_name_is_present(self, driver: GatewayDriver) -> None:
        (owner,) = driver.joined("owner")
        laptop, _ = driver.join("a-laptop", key="a-token"), driver.join("a-phone", key="a-token")
        driver.open_stream(owner, ["a"])
        laptop.gone()
        assert "system/error" not in kinds(owner.heard())

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "open questions: the owner is notified, targets never change, lifecycle messages are broadcast",
    )
    def test_targets_cannot_be_changed_after_creation(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        id_ = driver.open_stream(owner, ["a"])
        more = {"stream_id": id_, "target": ["b"]}
        opened = only(owner.say("stream/request", more), "stream/open")
        assert opened["stream_id"] != id_  # what is asked for is always another stream
        owner.say("stream/grant-write", {"participant_id": "b", **more})
        owner.say("stream/transfer-ownership", {"new_owner": "b", **more})
        assert driver.space.state.streams[id_].route.targets == ("a",)
        a.received()
        b.received()
        b.put(f"#{id_}#x")
        driver.run()
        assert (a.frames(), b.frames()) == ([b"#stream-1#x"], [])

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "open questions: the owner is notified, targets never change, lifecycle messages are broadcast",
    )
    def test_lifecycle_messages_are_broadcast(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        id_ = driver.open_stream(owner, ["a"])
        owner.say("stream/grant-write", {"stream_id": id_, "participant_id": "a"})
        owner.say("stream/close", {"stream_id": id_})
        wanted = ["stream/request", "stream/open", "stream/write-granted", "stream/close"]
        assert kinds(b.heard()) == kinds(a.heard()) == wanted


class TestWriters:
    """Interaction with write grants."""

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line", "every granted writer's frames go to the targets"
    )
    def test_every_writers_frames_go_to_the_target_alone(self, driver: GatewayDriver) -> None:
        owner, player, server = driver.joined("owner", "a", "b")
        id_ = driver.open_stream(owner, ["b"])
        owner.say("stream/grant-write", {"stream_id": id_, "participant_id": "a"})
        player.received()
        player.put(f"#{id_}#by the player")
        owner.put(f"#{id_}#by the owner")
        driver.run()
        assert server.frames() == [b"#stream-1#by the player", b"#stream-1#by the owner"]
        assert (player.frames(), owner.frames()) == ([], [])

    def test_a_target_may_not_write_unless_it_is_granted(self, driver: GatewayDriver) -> None:
        owner, a = driver.joined("owner", "a")
        id_ = driver.open_stream(owner, ["a"])
        a.received()
        said = error(a.send(f"#{id_}#x"))
        assert (said["error"], said["stream_id"]) == ("unauthorized_stream_write", id_)


class TestSuccess:
    """Success criteria that nothing above says by name."""

    def test_targeting_leaves_envelopes_alone(self, driver: GatewayDriver) -> None:
        owner, a, b = driver.joined("owner", "a", "b")
        driver.open_stream(owner, ["a"])
        b.received()
        owner.say("chat", {"text": "to everybody"}, to=["a"])
        assert kinds(b.heard()) == kinds(a.heard()[-1:]) == ["chat"]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "success criteria: older clients see no change, newer clients see targets, cost is O(N)",
    )
    def test_a_client_that_does_not_know_targets_notices_nothing(self, driver: GatewayDriver) -> None:
        owner, _a = driver.joined("owner", "a")
        heard = owner.send(
            envelope("stream/request", {"direction": "upload", "description": "old"}, id="r9", to=["gateway"])
        )
        assert kinds(heard) == ["stream/request", "stream/open"]
        assert set(heard[1]["payload"]) == {"stream_id", "encoding", "owner", "authorized_writers"}
        assert (heard[1]["correlation_id"], heard[1]["to"]) == (["r9"], ["owner"])

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "success criteria: older clients see no change, newer clients see targets, cost is O(N)",
    )
    def test_a_client_can_see_that_targets_work(self, driver: GatewayDriver) -> None:
        owner, a = driver.joined("owner", "a")
        driver.open_stream(owner, ["a"])
        assert only(a.heard(), "stream/open")["target"] == ["a"]

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "success criteria: older clients see no change, newer clients see targets, cost is O(N)",
    )
    def test_deliveries_of_an_aggregation_grow_with_n_and_not_with_its_square(self) -> None:
        for count in (6, 15, 50):
            names = [f"p{n}" for n in range(count)]
            driver = GatewayDriver(settings(*names))
            clients = driver.joined(*names)
            for client in clients:
                id_ = driver.open_stream(client, ["p0"])
                client.put(*(f"#{id_}#{n}" for n in range(10)))
            driver.run()
            routes = [stream.route for stream in driver.space.state.streams.values()]
            assert sum(route.deliveries for route in routes) == 10 * count
            assert sum(route.broadcast for route in routes) == 10 * count * count
            assert len(clients[0].frames()) == 10 * count
            assert all(client.frames() == [] for client in clients[1:])


class TestConfigured:
    """Streams of `space.yaml`."""

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "configured streams open with their owners, whether or not targets are present",
    )
    def test_a_stream_opens_when_its_owner_joins_and_its_targets_may_be_absent(self) -> None:
        request = {"direction": "upload", "format": "seacat/character-position-v1"}
        streams = {
            "position": StreamSettings("a", ("b",), request),
            "world": StreamSettings("b", (), {"direction": "upload"}),
        }
        driver = GatewayDriver(settings("a", "b", "c", streams=streams))
        (c,) = driver.joined("c")
        assert driver.space.state.streams == {}
        a = driver.client()
        heard = a.send({"type": "join", "participantId": "a", "token": "a-token"})
        assert kinds(heard) == ["system/welcome", "stream/open"]
        assert heard[1]["payload"]["target"] == ["b"]
        assert kinds(c.heard()) == ["system/presence", "stream/open"]
        b = driver.join("b")
        a.received()
        a.put("#stream-1#x")
        driver.run()
        assert (b.frames(), c.frames()) == ([b"#stream-1#x"], [])
        shown = driver.welcome("c")["active_streams"]
        assert [(each["owner"], each.get("target")) for each in shown] == [("a", ["b"]), ("b", None)]
        assert shown[0]["format"] == "seacat/character-position-v1"

    def test_it_opens_once_however_often_its_owner_joins(self) -> None:
        driver = GatewayDriver(settings("a", streams={"position": StreamSettings("a")}))
        driver.join("a")
        driver.join("a").gone()
        driver.join("a")
        assert list(driver.space.state.streams) == ["stream-1"]

    def test_a_stream_of_the_pipeline_is_open_from_the_start(self) -> None:
        robot = participant("robot", is_pipeline=True)
        driver = GatewayDriver(settings("a", robot=robot, streams={"out": StreamSettings("robot", ("a",))}))
        (a,) = driver.joined("a")
        assert driver.spaces.write("demo", "out", [b"1", b"2"]) is None
        driver.run()
        assert a.frames() == [b"#stream-1#1", b"#stream-1#2"]
        assert driver.rows("frame") == []

    @pytest.mark.promise(
        "Targeted delivery: the proposal, line by line",
        "frames for the pipeline are kept in full, others as counts",
    )
    def test_frames_targeted_at_the_pipeline_are_kept_in_full_and_others_as_counts(self) -> None:
        driver = GatewayDriver(settings("a", "b", robot=participant("robot", is_pipeline=True)))
        a, b = driver.joined("a", "b")
        kept, counted = driver.open_stream(a, ["robot"]), driver.open_stream(a, ["b"])
        a.put(f"#{kept}#one", f"#{kept}#two", f"#{counted}#x", f"#{counted}#yy")
        driver.advance(1_000)
        rows = driver.rows("frame")
        assert [(row.channel, row.seq, row.sender, row.body, row.size, row.recipients) for row in rows] == [
            ("demo/stream-1", 1, "a", b"one", 3, 1),
            ("demo/stream-1", 2, "a", b"two", 3, 1),
        ]
        assert rows[0].meta == '{"participants":3,"target":["robot"]}'
        (row,) = driver.rows("frame_counts")
        told = '{"frames":2,"bytes":3,"deliveries":2,"participants":3,"broadcast":6,"dropped":0,"target":["b"]}'
        assert (row.channel, row.seq, row.size, row.recipients, row.meta) == ("demo/stream-2", 2, 3, 2, told)
        assert b.frames() == [b"#stream-2#x", b"#stream-2#yy"]
