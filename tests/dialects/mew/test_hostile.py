"""Malicious or unexpected input: it costs only its sender, and the sender gains nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from penstock.core.limits import Limits
from penstock.core.rows import Row
from penstock.dialects.mew.accept import ACTS
from penstock.dialects.mew.envelopes import read_object
from penstock.dialects.mew.settings import ParticipantSettings
from tests.dialects.mew.driving import (
    OPERATOR_TOKEN,
    Client,
    Exchange,
    GatewayDriver,
    envelope,
    error,
    join,
    kinds,
    only,
    participant,
    settings,
    token,
)
from tests.hostile_json import cpu_s, plain, shapes

CHATTER = participant("chatter", {"kind": "chat"})
HUGE = ("1e999", "-1E+400", "9" * 5_000, "9" * 310 + ".0", "9" * 250 + "e99", "[[1e999]]")


# Numbers that no program can hold


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "no message of a participant breaks a session or blocks others",
)
@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"chat","id":"m","payload":{"text":"x","n":%s}}',
        '{"kind":"x","id":"m","payload":%s}',
        '{"kind":"x","id":"m","correlation_id":[%s]}',
        '{"kind":"x","id":"m","to":[%s]}',
        '{"kind":"x","id":"m","context":%s}',
    ],
)
def test_a_number_that_would_stop_others_does_not_reach_them(text: str, number: str) -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    sent = text.replace("%s", number).encode()
    p1.put(sent)
    driver.run()
    assert error(p1.heard())["code"] == "PROCESSING_ERROR"
    assert driver.rows("envelope") == [] and p1.is_open


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "no message of a participant breaks a session or blocks others",
)
@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("kind", list(ACTS))
def test_a_number_that_no_program_can_hold_is_refused_where_the_gateway_acts(kind: str, number: str) -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    p1.put(f'{{"kind":"{kind}","id":"m","payload":{{"stream_id":"stream-1","n":{number}}}}}')
    driver.run()
    assert error(p1.heard())["code"] == "PROCESSING_ERROR"
    assert driver.rows("envelope") == [] and p1.is_open


def test_an_unreadable_join_is_rejected_and_may_be_sent_again() -> None:
    driver = GatewayDriver()
    client = driver.client()
    told = '{"type":"join","space":"demo","participantId":"p2","token":"p2-token"%s}'
    assert error(client.send(told % ',"n":1e999'))["code"] == "PROCESSING_ERROR"
    assert kinds(client.send(told % "")) == ["system/welcome"]


def test_expensive_numbers_delay_no_other_session() -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    body = b'{"kind":"chat","id":"m","payload":{"text":"x","n":[' + b",".join([b"5e-324"] * 140_000) + b"]}}"
    began = time.process_time()
    p1.put(body)
    driver.run()
    took = time.process_time() - began
    assert driver.rows("envelope") == [] and "more than 10000 numbers" in error(p1.heard())["message"]
    assert took < 0.7, f"{took} s; a decoder that is left to itself takes more than a second for each look"
    p1.put(body.replace(b"5e-324", b"5e-32"))
    driver.run()
    assert len(driver.rows("envelope")) == 1


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "no message of a participant breaks a session or blocks others",
)
def test_before_the_join_nothing_large_is_looked_at() -> None:
    driver = GatewayDriver()
    client = driver.client()
    assert error(client.send(envelope("chat", {"text": "x" * 70_000})))["error"] == "too_large"
    assert client.wire.closed == (1009, "too_large")
    assert kinds(driver.client().send(join("p1"), envelope("chat", {"text": "x" * 70_000})))[-1] == "chat"


def test_an_envelope_that_is_much_too_large_is_refused_unread_and_a_frame_is_not() -> None:
    driver = GatewayDriver(limits=Limits(space_envelope_max=1_000))
    (p1,) = driver.joined("p1")
    driver.open_stream(p1)
    assert error(p1.send(b"{" * 80_000))["error"] == "too_large"
    p1.put(b"#stream-1#" + b"{" * 2_001)
    driver.run()
    assert p1.frames() != [] and p1.is_open


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "no message of a participant breaks a session or blocks others",
)
def test_what_waits_behind_a_join_cannot_hurt_others(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    driver.journal.is_by_hand = True
    p1.put(envelope("chat", {"text": "one"}))
    driver.run()
    late = driver.client()
    late.put(join("p2"), envelope("chat", {"text": "poison"}))
    p1.put(envelope("chat", {"text": "two"}))
    driver.run()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("penstock.dialects.mew.session.read_envelope", fail)
    driver.journal.commit()
    driver.scheduler.run()
    assert len(driver.failures) == 1 and "a bug" in driver.failures[0]
    driver.failures.clear()
    monkeypatch.undo()
    while driver.journal.waiting:
        driver.journal.commit()
        driver.run()
    assert late.wire.closed == (1011, "Internal")
    assert [each["payload"].get("text") for each in p1.heard() if each["kind"] == "chat"] == ["one", "two"]
    assert driver.runtime.finished == driver.machine.commit_log.gate - 1


# Work that grows


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "no message of a participant breaks a session or blocks others",
)
def test_a_close_with_very_many_correlations_delays_no_other_session() -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    for _ in range(200):
        p1.put(envelope("stream/request", {"direction": "upload"}))
    driver.run()
    p1.received()
    began = time.process_time()
    heard = p1.say("stream/close", {}, correlation_id=[f"c{no}" for no in range(9_000)])
    assert kinds(heard) == ["stream/close"]
    for name in ("to", "correlation_id"):
        heard = p1.say("stream/close", {}, **{name: [f"c{no}" for no in range(10_001)]})
        assert "more than 10000 items" in error(heard)["message"]
    assert time.process_time() - began < 3.0, "18 million comparisons take several seconds"
    assert len(driver.space.state.streams) == 200


def test_a_message_of_very_many_strings_is_rejected_and_one_with_many_quotes_is_not() -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    (said,) = p1.send(b'{"kind":"chat","payload":{"text":"x","v":[%b]}}' % b",".join([b'"1e000"'] * 100_000))
    assert "more than 100000 strings" in error([said])["message"]
    p1.send(msgspec.json.encode({"kind": "chat", "payload": {"text": '"' * 300_000}}))
    assert len(driver.rows("envelope")) == 1


@pytest.mark.promise("Capabilities and log files of a gateway", "waiting and sent messages are bounded in bytes too")
def test_frames_for_a_pipeline_wait_for_the_journal_up_to_a_bound() -> None:
    collector = ParticipantSettings(is_pipeline=True)
    driver = GatewayDriver(
        settings("p1", collector=collector), limits=Limits(observations_bytes_max=1_000, observations_max=50)
    )
    (p1,) = driver.joined("p1")
    driver.open_stream(p1, ["collector"])
    driver.journal.is_by_hand = True
    for _ in range(30):
        p1.put(b"#stream-1#" + bytes(100))
        driver.run()
    dropped = driver.machine.commit_log.observations_dropped
    assert (driver.machine.commit_log.observed_bytes, dropped) == (1_000, 20)
    while driver.journal.waiting:
        driver.journal.commit()
        driver.run()
    assert [row.seq for row in driver.rows("frame")] == list(range(1, 11))
    assert driver.machine.commit_log.observed_bytes == 0
    driver.journal.is_by_hand = False
    p1.send(b"#stream-1#" + bytes(100))
    assert driver.rows("frame")[-1].seq == 31


@pytest.mark.promise("Capabilities and log files of a gateway", "waiting and sent messages are bounded in bytes too")
def test_the_streams_listed_in_a_welcome_are_bounded() -> None:
    driver = GatewayDriver(limits=Limits(space_streams_bytes_max=10_000))
    (p1,) = driver.joined("p1")
    asked = envelope("stream/request", {"direction": "upload", "metadata": {"x": "y" * 2_000}})
    for _ in range(10):  # in one turn: what is not durable yet counts too
        p1.put(asked)
    driver.run()
    refused = [each["payload"] for each in p1.heard() if each["kind"] == "system/error"]
    assert len(driver.space.state.streams) == 4 and len(refused) == 6
    assert {each["error"] for each in refused} == {"too_many_streams"}
    assert "`limits.space_streams_bytes_max`" in refused[0]["message"]
    p1.say("stream/close", {"stream_id": "stream-1"})
    assert "stream/open" in kinds(p1.send(asked))
    driver.journal.is_by_hand = True
    p1.say("stream/close", {"stream_id": "stream-2"})
    driver.journal.commit()
    p1.send(asked)
    driver.journal.refuse()
    driver.run()
    assert driver.space.opening_bytes == 0
    # A restart counts the same.
    again = driver.again(settings("p1"))
    assert again.space.state.streams_bytes == driver.space.state.streams_bytes > 0
    for stream_id in list(again.space.state.streams):
        again.space.state.apply(Row(door="mew", event="stream_close", channel=f"demo/{stream_id}"))
    assert again.space.state.streams_bytes == 0


# Who may come back


@pytest.mark.promise(
    "Capabilities and log files of a gateway", "a kicked participant stays out, and its inviter gains nothing"
)
def test_inviting_a_kicked_participant_gives_the_inviter_no_more_than_it_has() -> None:
    usher = participant("usher", {"kind": "space/*"}, {"kind": "chat"})
    driver = GatewayDriver(settings("admin", usher=usher, chatter=CHATTER))
    (p,) = driver.joined("usher")
    p.say("space/kick", {"participant_id": "admin"})
    refused = error(p.say("space/invite", {"participant_id": "admin"}))
    assert refused["error"] == "capability_violation" and driver.rows("invite") == []
    assert "admin" in driver.space.state.kicked and driver.minted == []
    # A participant without such powers may return, and an inviter with all powers may invite any participant again.
    p.say("space/kick", {"participant_id": "chatter"})
    assert only(p.say("space/invite", {"participant_id": "chatter"}), "space/invite-ack")["status"] == "created"
    operator = driver.join("operator", key=OPERATOR_TOKEN)
    assert only(operator.say("space/invite", {"participant_id": "admin"}), "space/invite-ack")["status"] == "created"


@pytest.mark.promise(
    "Capabilities and log files of a gateway", "a kicked participant stays out, and its inviter gains nothing"
)
def test_a_pending_request_of_a_kicked_participant_is_rejected() -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    exchange = Exchange("POST", "/participants/p2/messages", envelope("chat", {"text": "x"}), {}, {}, token("p2"))
    exchange.on_read = lambda: p1.say("space/kick", {"participant_id": "p2"})

    async def answered() -> Any:
        answering = asyncio.ensure_future(driver.door.handle(exchange))
        while not answering.done():
            await asyncio.sleep(0)
            driver.run()
        return answering.result()

    assert asyncio.run(answered()).status == 403
    assert [row.kind for row in driver.rows("envelope")] == ["space/kick"]


@pytest.mark.promise(
    "Capabilities and log files of a gateway", "a kicked participant stays out, and its inviter gains nothing"
)
def test_a_kicked_participant_cannot_list_participants() -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    assert driver.ask("GET", "/participants", key=token("p2"))[0] == 200
    p1.say("space/kick", {"participant_id": "p2"})
    assert driver.ask("GET", "/participants", key=token("p2"))[0] == 401


def test_a_page_under_another_host_name_cannot_list_participants() -> None:
    driver = GatewayDriver()
    assert driver.ask("GET", "/participants", headers={"Host": "localhost:8080"})[0] == 200
    assert driver.ask("GET", "/participants", headers={"Host": "evil.example:8080"})[0] == 401
    assert driver.ask("GET", "/participants", headers={"Host": "evil.example"}, key=token("p1"))[0] == 200


@pytest.mark.parametrize("is_kicked", [True, False])
def test_a_join_that_is_refused_in_its_turn_closes_whatever_came_behind_it(is_kicked: bool) -> None:
    driver = GatewayDriver(settings("p1", "p2"), limits=Limits(participants_max=2 if is_kicked else 1))
    (p1,) = driver.joined("p1")
    driver.journal.is_by_hand = True
    p1.put(envelope("space/kick", {"participant_id": "p2"}) if is_kicked else envelope("chat", {"text": "x"}))
    driver.run()
    p2 = driver.client()
    p2.put(join("p2"), envelope("chat", {"text": "hello"}), b"#stream-1#x")
    driver.run()
    driver.journal.commit()
    driver.run()
    assert error(p2.heard())["error"] == ("kicked" if is_kicked else "space_full")
    assert p2.wire.closed is not None and p2.connection.closed


# Names without a participant


def alias(driver: GatewayDriver, id_: str, party: str) -> Client:
    """A client under its own id."""
    return driver.join(id_, key=token(party))


def refused_as(driver: GatewayDriver, id_: str, party: str) -> str:
    """Why a client may not use an id."""
    client = driver.client()
    heard = client.send(join(id_, key=token(party)))
    assert client.wire.closed is not None
    return str(error(heard)["error"])


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "an alias stays reserved for its holder while a stream refers to it",
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stream_of_an_alias_waits_for_that_alias_of_the_same_party(is_restarted: bool) -> None:
    driver = GatewayDriver()
    owner = alias(driver, "tab-7", "p1")
    driver.open_stream(owner)
    owner.gone()
    if is_restarted:
        driver = driver.again(settings("p1", "p2"))
    assert refused_as(driver, "tab-7", "p2") == "invalid_participant"
    assert driver.ask("GET", "/participants/tab-7/messages", key=token("p2"))[0] == 403
    back = alias(driver, "tab-7", "p1")
    assert kinds(back.say("stream/close", {"stream_id": "stream-1"}))[-1] == "stream/close"
    back.gone()
    assert alias(driver, "tab-7", "p2").is_open, "once no stream knows the name it is free"


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "an alias stays reserved for its holder while a stream refers to it",
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_frames_for_an_alias_do_not_reach_another_that_takes_its_name(is_restarted: bool) -> None:
    driver = GatewayDriver()
    target = alias(driver, "tab-7", "p1")
    owner = driver.join("p2")
    driver.open_stream(owner, ["tab-7"])
    target.gone()
    if is_restarted:
        driver = driver.again(settings("p1", "p2", "p3"))
        owner = driver.join("p2")
    assert refused_as(driver, "tab-7", "p3") == "invalid_participant"
    said = only(owner.say("space/invite", {"participant_id": "tab-7"}), "space/invite-ack")
    assert said["status"] == "already_exists"
    back = alias(driver, "tab-7", "p1")
    back.received()
    owner.send(b"#stream-1#x")
    assert back.frames() == [b"#stream-1#x"]


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "an alias stays reserved for its holder while a stream refers to it",
)
@pytest.mark.parametrize("kind", ["stream/grant-write", "stream/transfer-ownership"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_grants_of_an_alias_do_not_pass_to_another_participant(kind: str, is_restarted: bool) -> None:
    driver = GatewayDriver()
    owner, tab = driver.join("p2"), alias(driver, "tab-7", "p1")
    driver.open_stream(owner)
    owner.say(kind, {"stream_id": "stream-1", "participant_id": "tab-7", "new_owner": "tab-7"})
    if is_restarted:  # as after a crash: no client left
        driver = driver.again(settings("p1", "p2", "p3"))
    elif kind == "stream/transfer-ownership":
        tab.gone()
    assert refused_as(driver, "tab-7", "p3") == "invalid_participant"


# Those who come and go


@pytest.mark.promise("Capabilities and log files of a gateway", "waiting and sent messages are bounded in bytes too")
def test_a_poller_that_is_let_go_is_missed_at_once_and_keeps_no_memory() -> None:
    driver = GatewayDriver(limits=Limits(space_outbox_max=4_000))
    (p1,) = driver.joined("p1")
    assert driver.ask("GET", "/participants/p2/messages", key=token("p2"))[0] == 200
    p1.received()
    outbox = driver.space.present["p2"].outbox
    assert outbox is not None
    heard = []
    for _ in range(8):
        heard += p1.say("chat", {"text": "x" * 1_000})
    assert "p2" not in driver.space.present and driver.space.slow_cut == 1
    assert [each["payload"]["event"] for each in heard if each["kind"] == "system/presence"] == ["leave"]
    assert outbox.size == 0


@pytest.mark.parametrize("kind", ["stream/transfer-ownership", "stream/close"])
def test_a_stream_whose_owner_left_is_closed_though_the_journal_refused_what_it_asked_last(kind: str) -> None:
    driver = GatewayDriver()
    p1, p2 = driver.joined("p1", "p2")
    driver.open_stream(p1)
    p2.received()
    driver.journal.is_by_hand = True
    p1.put(envelope(kind, {"stream_id": "stream-1", "new_owner": "p2"}))
    driver.run()
    p1.gone()
    driver.advance(driver.machine.limits.owner_grace_ms + 1)
    driver.journal.refuse()
    driver.journal.is_by_hand = False
    while driver.journal.waiting:
        driver.journal.commit()
    driver.advance(driver.machine.limits.owner_grace_ms + 1)
    assert only(p2.heard(), "stream/close")["reason"] == "owner_disconnected"
    assert driver.space.state.streams == {}


def test_a_participant_that_is_paused_by_a_slow_journal_is_not_disconnected() -> None:
    driver = GatewayDriver(limits=Limits(answers_max=3))
    p1, p2 = driver.joined("p1", "p2")
    driver.journal.is_by_hand = True
    for _ in range(5):
        p1.put(envelope("chat", {"text": "x"}))
    driver.run()
    assert p1.wire.is_held
    for _ in range(4):
        driver.advance(driver.machine.limits.ping_ms, is_answering=False)
        p2.connection.pong_received()
    assert p1.is_open
    driver.journal.is_by_hand = False
    while driver.journal.waiting:
        driver.journal.commit()
        driver.run()
    assert kinds(p1.heard()) == ["chat"] * 5
    for _ in range(2):
        driver.advance(driver.machine.limits.ping_ms, is_answering=False)
    assert p1.wire.is_aborted


@pytest.mark.promise("Benchmarks and robustness", "no shape of JSON costs many times what plain JSON of its size costs")
@pytest.mark.parametrize("name", shapes(100))
def test_no_shape_of_an_envelope_costs_much_more_than_plain_json(name: str) -> None:
    def send(payload: bytes) -> None:
        driver = GatewayDriver()
        (p1,) = driver.joined("p1")
        p1.put(b'{"kind":"chat","id":"m","payload":{"text":"x","n":%b}}' % payload)
        driver.run()

    assert cpu_s(lambda: send(shapes(300_000)[name]), 2) < 12 * cpu_s(lambda: send(plain(300_000)), 2)


# Large envelopes


def turns(client: Client, data: bytes) -> list[float]:
    """The CPU time of each turn that a message takes, with that in which it arrives."""
    client.driver.scheduler._soon.append(lambda: client.put(data))
    times = []
    while client.driver.scheduler._soon:
        began = time.thread_time()
        client.driver.scheduler._soon.popleft()()
        times.append(time.thread_time() - began)
    return times


def large(payload: bytes, id_: str = "large") -> bytes:
    return b'{"kind":"x","id":"%b","payload":{"text":"t","v":%b}}' % (id_.encode(), payload)


def test_a_large_envelope_is_checked_in_steps_and_what_follows_waits_in_order() -> None:
    driver = GatewayDriver()
    p1, p2 = driver.joined("p1", "p2")
    driver.open_stream(p1)
    p2.received()
    p1.put(
        large(plain(100_000), "first"),
        b"#stream-1#frame",
        envelope("chat", {"text": "small"}),
        b"#stream-1#" + b"x" * 70_000,
        large(b"[1e999]" + b" " * 70_000),
        large(plain(100_000), "last"),
        b"#stream-1#end",
    )
    assert driver.rows("envelope")[-1].id != "first", "one step only"
    driver.run()
    heard = p2.received()
    assert [each if isinstance(each, bytes) else each["id"] for each in heard if isinstance(each, bytes)] == [
        b"#stream-1#frame",
        b"#stream-1#" + b"x" * 70_000,
        b"#stream-1#end",
    ]
    order = [bytes(each[:15]) if isinstance(each, bytes) else each["kind"] for each in heard]
    assert order == ["x", b"#stream-1#frame", "chat", b"#stream-1#xxxxx", "x", b"#stream-1#end"]
    assert error([each for each in p1.received() if isinstance(each, dict)])["code"] == "PROCESSING_ERROR"


def test_while_a_large_envelope_is_checked_its_sender_is_not_read() -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    p1.put(large(plain(100_000)))
    driver.scheduler._soon.popleft()()
    driver.scheduler._soon.popleft()()
    assert p1.connection.held
    driver.run()
    assert not p1.connection.held and kinds(p1.heard()) == ["x"]


def test_a_large_envelope_may_come_first_or_right_behind_a_join() -> None:
    driver = GatewayDriver()
    (p1,) = driver.joined("p1")
    driver.journal.is_by_hand = True
    p1.put(envelope("chat", {"text": "one"}))
    driver.run()
    client = driver.client(token=token("p2"), space="demo", participant="p2")
    other = driver.client()
    client.put(large(plain(100_000)), envelope("chat", {"text": "small"}))
    other.put(join("p3"), large(plain(100_000)), envelope("chat", {"text": "small"}))
    driver.run()
    driver.journal.is_by_hand = False
    while driver.journal.waiting:
        driver.journal.commit()
        driver.run()
    for each, name in ((client, "p2"), (other, "p3")):
        assert [heard["kind"] for heard in each.heard() if heard["from"] == name] == ["x", "chat"]


def test_a_sender_that_leaves_or_is_ended_leaves_nothing_to_check() -> None:
    driver = GatewayDriver()
    p1, p2, p3 = driver.joined("p1", "p2", "p3")
    p2.put(large(plain(100_000)), large(plain(100_000)))
    p3.put(large(plain(100_000)), large(plain(100_000)))
    p2.connection.lost()
    p1.put(envelope("space/kick", {"participant_id": "p3"}))
    driver.run()
    assert not p3.is_open and "x" not in kinds(p1.heard())


def test_a_bug_in_a_step_ends_only_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = GatewayDriver()
    p1, p2 = driver.joined("p1", "p2")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("penstock.dialects.mew.session.read_envelope", fail)
    p1.put(large(plain(100_000)), large(plain(100_000)))
    driver.scheduler.run()
    assert len(driver.failures) == 1 and "a bug" in driver.failures[0]
    driver.failures.clear()
    monkeypatch.undo()
    assert p1.wire.closed == (1011, "Internal")
    p2.heard()
    assert kinds(p2.send(large(plain(100_000)))) == ["x"]


@pytest.mark.promise(
    "Benchmarks and robustness", "no turn holds the loop for all checks of a large envelope of a space"
)
@pytest.mark.parametrize("name", ["numbers", "midway", "padded", "escapes", "digits in a string"])
def test_no_turn_does_all_the_checks_of_a_large_envelope(name: str) -> None:
    data = large(shapes(1_000_000)[name])
    (p1,) = GatewayDriver().joined("p1")
    longest = min(max(turns(p1, data)) for _ in range(3))
    assert longest < 0.8 * cpu_s(lambda: read_object(data, Limits()))


# Many small messages


def steps(driver: GatewayDriver) -> int:
    """Run everything that is due, and count the calls."""
    count = 0
    while driver.scheduler._soon:
        driver.scheduler._soon.popleft()()
        count += 1
    return count


@pytest.mark.parametrize("message", [b"{}", b"#x#", b"[", b'{"kind":"chat"}'])
def test_a_stranger_loses_its_connection_after_too_many_errors(message: bytes) -> None:
    driver = GatewayDriver(limits=Limits(strikes_max=3))
    client = driver.client()
    heard = client.send(*[message] * 2_000)
    assert kinds(heard) == ["system/error"] * 4
    assert client.wire.closed is not None and client.wire.closed[0] == 1008


def test_a_few_errors_before_the_join_are_forgiven() -> None:
    client = GatewayDriver().client()
    client.send(b"#x#", b"{}", b"[")
    assert kinds(client.send(join("p1"))) == ["system/welcome"]


@pytest.mark.parametrize("message", [b"#x#", b"[", b'{"kind":"chat","payload":{"text":"x"}}'])
def test_small_messages_of_a_participant_take_several_turns_and_keep_their_order(message: bytes) -> None:
    driver = GatewayDriver()
    (client,) = driver.joined("p1")
    client.put(*[message] * 4_000, envelope("chat", {"text": "last"}, id="last"))
    assert client.session.is_full
    assert steps(driver) > 7
    heard = client.heard()
    assert len(heard) == 4_001 and heard[-1]["id"] == "last"
    assert not client.session.is_full


def test_frames_to_a_stream_never_wait_for_a_turn() -> None:
    driver = GatewayDriver()
    client, reader = driver.joined("p1", "p2")
    stream = driver.open_stream(client)
    client.put(*[f"#{stream}#x".encode()] * 4_000)
    assert not client.session.is_full
    driver.run()
    assert len(reader.frames()) == 4_000
