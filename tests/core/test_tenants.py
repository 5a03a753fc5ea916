"""Tenants use the same names and cannot reach each other by any verb."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.errors import Refusal
from penstock.core.queue.settle import Denied
from penstock.core.rate_limits import Rate, Rates
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal, require
from penstock.core.tenants import Quota, dead_name, home_name, is_dead, tenant_of
from penstock.dialects.courier.operations import queries
from penstock.dialects.courier.operations.enqueue import SendRequest, send
from penstock.dialects.courier.operations.outcomes import Result
from penstock.dialects.courier.operations.redrive_and_purge import RedriveRequest, redrive
from penstock.dialects.courier.operations.settle import SettleRequest, settle
from penstock.dialects.courier.sessions.pull import PullRequest, check_pull
from tests.dialects.courier.talking import Broker, HandJournal, Peer, envelope

EVERYTHING = require(["streams:*:*", "views:*:*"])
ACME = Principal("acme/sam", agent="sam", scopes=EVERYTHING, tenant="acme")
BETA = Principal("beta/sam", agent="sam", scopes=EVERYTHING, tenant="beta")
WIDE = Principal("wide", scopes=EVERYTHING)
INBOX = "agents/sam/inbox"


def enqueue(peer: Peer, stream: str, *ids: str) -> list[Any]:
    return [answer for id_ in ids for answer in peer.say(type="enqueue", to=stream, env=envelope(id_), reqId=id_)]


def pull(broker: Broker, who: Principal, stream: str) -> Any:
    peer = broker.control(who)
    (answer,) = peer.say(type="pull", stream=stream, reqId=1)
    return answer


@pytest.mark.parametrize(
    ("name", "tenant", "dead", "home"),
    [
        ("jobs", None, "dlq/jobs", "jobs"),
        ("dlq/jobs", None, "dlq/jobs", "jobs"),
        ("t/acme/jobs", "acme", "t/acme/dlq/jobs", "t/acme/jobs"),
        ("t/acme/dlq/jobs", "acme", "t/acme/dlq/jobs", "t/acme/jobs"),
        ("t/acme/t/beta/x", "acme", "t/acme/dlq/t/beta/x", "t/acme/t/beta/x"),
        ("t/", None, "dlq/t/", "t/"),
        ("tea/x", None, "dlq/tea/x", "tea/x"),
    ],
)
def test_names(name: str, tenant: str | None, dead: str, home: str) -> None:
    assert (tenant_of(name), dead_name(name), home_name(name)) == (tenant, dead, home)
    assert is_dead(dead) and not is_dead(home)


@pytest.mark.promise("Tenants", "two tenants use the same names and never see each other")
def test_two_tenants_use_the_same_names_and_never_meet() -> None:
    broker = Broker()
    acme, beta = broker.control(ACME), broker.control(BETA)
    assert enqueue(acme, INBOX, "1")[0]["result"] == {"id": "1", "seq": 1}
    assert enqueue(beta, INBOX, "1")[0]["result"] == {"id": "1", "seq": 1}
    assert sorted(broker.machine.channels) == ["t/acme/agents/sam/inbox", "t/beta/agents/sam/inbox"]
    for who, other in ((ACME, BETA), (BETA, ACME)):
        (delivery,) = pull(broker, who, INBOX)["result"]["deliveries"]
        assert (delivery["stream"], delivery["deliver"]["to"], delivery["deliver"]["id"]) == (
            INBOX,
            INBOX,
            "1",
        )
        request = SettleRequest("1", "ack", delivery["leaseId"])
        refused = settle(broker.machine, broker.now, other, request)
        assert not isinstance(refused, Result)
        assert isinstance(settle(broker.machine, broker.now, who, request), Result)


@pytest.mark.promise("Tenants", "answers use the caller's names")
def test_every_answer_calls_a_stream_what_the_caller_calls_it() -> None:
    broker = Broker()
    peer = broker.control(ACME)
    sub = peer.say(type="subscribe", stream="jobs", credit=1, expired=True, leaseMs=1_000, reqId=0)
    assert sub[0]["result"]["subId"]
    heard = enqueue(peer, "jobs", "1", "2")
    delivered = [frame for frame in heard if frame["type"] == "deliver"]
    assert [frame["stream"] for frame in delivered] == ["jobs"]
    machine, now = broker.machine, broker.now
    seen = {
        "stats": queries.stats(machine, now, ACME, "jobs"),
        "peek": queries.peek(machine, now, ACME, queries.PeekRequest("jobs", max=5)),
        "where": queries.where(machine, now, ACME, "2"),
        "explain": queries.explain(machine, now, ACME, "jobs"),
        "metrics": Result({"streams": queries.metrics_of(machine, now, ACME, list(machine.channels))}),
    }
    for name, outcome in seen.items():
        assert isinstance(outcome, Result), (name, outcome)
        assert b"t/acme" not in msgspec.json.encode(outcome.value()), name
    assert seen["metrics"].value()["streams"][0]["id"] == "jobs"
    broker.advance(1_500)
    expired = [frame for frame in peer.heard() if frame["type"] == "expired"]
    assert [frame["stream"] for frame in expired] == ["jobs"]


@pytest.mark.promise("Tenants", "a pattern matches no other tenant unless it names it")
@pytest.mark.parametrize("who", [BETA, WIDE, ANONYMOUS])
def test_other_tenants_cannot_see_or_change_a_tenants_streams(who: Principal) -> None:
    broker = Broker()
    enqueue(broker.control(ACME), INBOX, "1")
    machine, now = broker.machine, broker.now
    name = "t/acme/" + INBOX
    before = broker.picture()
    for outcome in (
        queries.stats(machine, now, who, name),
        queries.peek(machine, now, who, queries.PeekRequest(name)),
        queries.explain(machine, now, who, name),
        queries.where(machine, now, who, "1"),
        check_pull(machine, who, PullRequest(name)) if who is not BETA else Refusal("Forbidden", ""),
        redrive(machine, now, who, RedriveRequest(name)),
    ):
        assert isinstance(outcome, Refusal)
        assert outcome.code in ("Forbidden", "UnknownStream", "UnknownEnvelope")
    assert queries.metrics_of(machine, now, who, list(machine.channels)) == []
    assert broker.picture() == before


@pytest.mark.promise("Tenants", "a pattern matches no other tenant unless it names it")
def test_a_scope_that_names_a_tenant_reaches_it_and_the_operator_reaches_all() -> None:
    broker = Broker()
    enqueue(broker.control(ACME), "jobs", "1")
    enqueue(broker.control(BETA), "jobs", "1")
    auditor = Principal("auditor", scopes=require(["streams:t/acme/*:read"]))
    every = list(broker.machine.channels)
    names = [row["id"] for row in queries.metrics_of(broker.machine, broker.now, auditor, every)]
    assert names == ["t/acme/jobs"]
    names = [row["id"] for row in queries.metrics_of(broker.machine, broker.now, OPERATOR, every)]
    assert names == ["t/acme/jobs", "t/beta/jobs"]


def test_scopes_of_a_tenant_are_about_its_own_names() -> None:
    narrow = Principal("acme/n", scopes=require(["streams:jobs/*:enqueue"]), tenant="acme")
    assert narrow.allows("enqueue", "t/acme/jobs/1")
    assert not narrow.allows("enqueue", "t/acme/other")
    assert not narrow.allows("enqueue", "jobs/1")
    assert not narrow.allows("enqueue", "t/beta/jobs/1")


def test_dead_letters_stay_with_their_tenant_and_go_home_again() -> None:
    broker = Broker()
    peer = broker.control(ACME)
    peer.say(type="subscribe", stream="jobs", credit=1)
    enqueue(peer, "jobs", "1")
    peer.say(type="term", id="1", reason="no")
    assert "t/acme/dlq/jobs" in broker.machine.channels
    (answer,) = [frame for frame in peer.say(type="redrive", stream="jobs", reqId=9) if frame["reqId"] == 9]
    assert answer["result"]["moved"] == 1
    assert broker.counts("t/acme/jobs")["q.in"] == 2


@pytest.mark.promise("Tenants", "a rule matches no other tenant unless it names it")
def test_a_rule_sees_a_tenants_envelopes_only_where_it_says_so() -> None:
    def rule(id_: str, **when: Any) -> dict[str, Any]:
        return {"id": id_, "when": when, "do": [{"action": "notify", "to": "told"}]}

    rules = [
        rule("kind", type="note"), rule("all", to="*jobs"), rule("list", to=["jobs", "t*jobs"]), rule("acme", to="t/acme/*")
    ]  # fmt: skip
    broker = Broker(triggers=rules)
    for who, fired in ((BETA, []), (ACME, ["acme"]), (ANONYMOUS, ["kind", "all", "list"])):
        before = {rule.id: rule.activity.run for rule in broker.machine.triggers.on_insert.rules}
        enqueue(broker.control(who), "jobs", who.name)
        after = {rule.id: rule.activity.run for rule in broker.machine.triggers.on_insert.rules}
        assert [id_ for id_ in after if after[id_] > before[id_]] == fired


def test_what_is_not_there_is_called_what_the_caller_called_it() -> None:
    (error,) = Broker().control(ACME).say(type="stats", stream="nowhere", reqId=1)
    assert (error["detail"], error["ref"]) == ("there is no stream `nowhere`", "nowhere")


def test_a_view_shows_a_tenant_its_own_agents_by_its_own_names() -> None:
    broker = Broker()
    enqueue(broker.control(ACME), INBOX, "1")
    enqueue(broker.control(BETA), INBOX, "2")
    enqueue(broker.control(), INBOX, "3")
    rows = {}
    for who in (ACME, BETA, ANONYMOUS, OPERATOR):
        (answer,) = broker.control(who).say(type="snapshot", view="latestPerAgent", reqId=1)
        rows[who.name] = [(row["addr"], row["env"]["id"]) for row in answer["result"]["rows"]]
    assert rows["acme/sam"] == [(INBOX, "1")]
    assert rows["beta/sam"] == [(INBOX, "2")]
    assert rows["anonymous"] == [(INBOX, "3")]
    assert len(rows["operator"]) == 3


def test_send_finds_the_inbox_of_the_same_tenant() -> None:
    broker = Broker()
    request = SendRequest("sam", "note", msgspec.Raw(b"1"))
    first = send(broker.machine, broker.now, ACME, request)
    assert first.value()["recipient"] == {"known": False, "present": False}
    broker.run()
    second = send(broker.machine, broker.now, BETA, request)
    assert second.value()["recipient"]["known"] is False
    assert second.value()["to"] == INBOX


# Quotas


def quota(**bounds: int) -> Broker:
    broker = Broker()
    broker.machine.tenants.quota_for = lambda name: Quota(**bounds) if name == "acme" else Quota()
    return broker


def codes(answers: list[Any]) -> list[str]:
    return [answer.get("code", "ok") for answer in answers if answer["type"] in ("ok", "error")]


@pytest.mark.promise("Tenants", "a tenant has quotas for streams, envelopes and bytes, and a shared rate")
def test_a_tenant_holds_so_many_envelopes_and_no_more_and_others_do_not_notice() -> None:
    broker = quota(envelopes_max=3)
    peer = broker.control(ACME)
    assert codes(enqueue(peer, "a", "1", "2")) == ["ok", "ok"]
    assert codes(enqueue(peer, "b", "3", "4")) == ["ok", "QuotaExceeded"]
    assert codes(enqueue(broker.control(BETA), "a", "1", "2", "3", "4")) == ["ok"] * 4
    (delivery,) = pull(broker, ACME, "a")["result"]["deliveries"]
    settle(broker.machine, broker.now, ACME, SettleRequest("1", "ack", delivery["leaseId"]))
    broker.advance(20)
    assert codes(enqueue(peer, "b", "4", "5")) == ["ok", "QuotaExceeded"]


def test_a_tenant_holds_so_many_bytes() -> None:
    broker = quota(bytes_max=1_000)
    peer = broker.control(ACME)
    answers = [answer for n in range(20) for answer in enqueue(peer, f"s{n}", str(n))]
    assert "QuotaExceeded" in codes(answers)
    assert sum(channel.bytes for channel in broker.machine.channels.values()) <= 1_000


@pytest.mark.promise("Tenants", "a tenant has quotas for streams, envelopes and bytes, and a shared rate")
def test_a_tenant_has_so_many_streams() -> None:
    broker = quota(streams_max=2)
    peer = broker.control(ACME)
    assert codes([a for name in "abc" for a in enqueue(peer, name, "1")]) == ["ok", "ok", "QuotaExceeded"]
    assert codes(enqueue(peer, "a", "2")) == ["ok"]
    assert codes(peer.say(type="subscribe", stream="d", reqId=1)) == ["QuotaExceeded"]


@pytest.mark.promise("Tenants", "a tenant has quotas for streams, envelopes and bytes, and a shared rate")
def test_a_tenants_tokens_share_its_rate() -> None:
    broker = Broker()
    broker.machine.limit_rates(Rates(tenants={"acme": Rate.per_second(1, 3)}))
    other = Principal("acme/jen", scopes=EVERYTHING, tenant="acme")
    assert codes(enqueue(broker.control(ACME), "a", "1", "2")) == ["ok", "ok"]
    assert codes(enqueue(broker.control(other), "a", "3", "4")) == ["ok", "RateLimited"]
    assert codes(enqueue(broker.control(BETA), "a", *"12345")) == ["ok"] * 5


def test_what_a_tenant_holds_is_forgotten_with_its_last_stream() -> None:
    broker = Broker()
    peer = broker.control(ACME)
    peer.say(type="subscribe", stream="jobs", credit=1)
    enqueue(peer, "jobs", "1")
    peer.say(type="ack", id="1")
    assert broker.machine.tenants.holdings["acme"].held() == (0, 0)
    peer.gone()
    broker.advance(61_000)
    assert broker.machine.tenants.holdings == {}


def test_what_a_tenant_holds_counts_after_a_restart_too() -> None:
    before, after = quota(), quota(envelopes_max=3)
    assert codes(enqueue(before.control(ACME), "a", "1", "2", "3")) == ["ok"] * 3
    for row in before.machine.snapshot(before.now):
        after.machine.resume(after.now, row)
    after.machine.recovered(after.now)
    assert codes(enqueue(after.control(ACME), "b", "4")) == ["QuotaExceeded"]


def test_what_comes_back_because_its_settle_was_refused_counts_again() -> None:
    journal = HandJournal()
    broker = Broker(journal=journal)
    broker.machine.tenants.quota_for = lambda name: Quota(envelopes_max=4)
    peer = broker.control(ACME)
    peer.say(type="subscribe", stream="a", credit=9)
    enqueue(peer, "a", "1", "2", "3", "4")
    while journal.waiting:
        journal.commit()
        broker.run()
    broker.machine.ack(broker.now, next(iter(broker.machine.consumers.values())), ["1", "2", "3"])
    broker.runtime.flushed(lambda: None)
    broker.advance(20)
    enqueue(peer, "b", "5")  # counts anew: one is left, and one comes
    journal.refuse()
    broker.run()
    enqueue(peer, "b", "6", "7")
    held = sum(len(channel.live) for channel in broker.machine.channels.values())
    assert held == 5  # those that came back were there before


def test_what_dead_letters_weigh_more_counts() -> None:
    broker = Broker()
    peer = broker.control(ACME)
    peer.say(type="subscribe", stream="a", credit=9)
    enqueue(peer, "a", "1", "2", "3")
    for id_ in "123":
        peer.say(type="term", id=id_, reason="a long story " * 20)
    held = sum(channel.bytes for channel in broker.machine.channels.values())
    broker.machine.tenants.quota_for = lambda name: Quota(bytes_max=held + 50)
    assert codes(enqueue(peer, "b", "4")) == ["QuotaExceeded"]


def test_views_call_a_stream_what_the_reader_calls_it() -> None:
    broker = Broker()
    peer = broker.control(ACME)
    enqueue(peer, "jobs", "t/acme/1")
    enqueue(peer, INBOX, "t/acme/1")
    pull(broker, ACME, "jobs")
    for view in ("inflight", "metrics:streams"):
        (answer,) = peer.say(type="snapshot", view=view, reqId=1)
        assert "t/acme/" not in str(answer).replace("t/acme/1", "")
        assert codes(peer.say(type="live", view=view, subId=view, reqId=2)) == ["ok"]
    enqueue(peer, "jobs", "t/acme/2")
    pull(broker, ACME, "jobs")
    broker.advance(600)
    broker.advance(600)
    heard = str(peer.heard())
    assert "delta" in heard
    assert "t/acme/" not in heard.replace("t/acme/1", "").replace("t/acme/2", "")
    (answer,) = peer.say(type="snapshot", view="latestPerAgent", reqId=1)
    assert answer["result"]["rows"][0]["env"]["id"] == "t/acme/1"


@pytest.mark.parametrize("name", ["sam", "other"])
def test_a_lease_of_another_tenant_is_no_lease_at_all(name: str) -> None:
    broker = Broker()
    mine = Principal("sam", scopes=EVERYTHING, tenant="acme")
    enqueue(broker.control(mine), "secret-plans", "1")
    (delivery,) = pull(broker, mine, "secret-plans")["result"]["deliveries"]
    foreign = Principal(name, scopes=EVERYTHING, tenant="beta")
    request = SettleRequest("1", "ack", delivery["leaseId"])
    outcome = settle(broker.machine, broker.now, foreign, request)
    assert isinstance(outcome, Denied)
    assert outcome.refusal.code == "UnknownEnvelope"
    assert "secret-plans" not in str(outcome.refusal.wire())
