"""Settings that contradict each other."""

import pytest

from penstock.server.files.secret_files import digest_of
from tests.server.config.test_load import Problems, Read


def test_the_same_trigger_id_or_token_twice_is_refused(problems: Problems) -> None:
    rule = "{id: a, when: {to: a}, do: [{action: notify, to: b}]}"
    (found,) = problems(f"triggers: [{rule}, {rule}]")
    assert found.startswith("triggers[1].id: `a` is also the id of triggers[0]")
    token = "{token: x, scopes: ['admin:*']}"
    (found,) = problems(f"auth: {{tokens: [{token}, {{token: 'sha256:{digest_of('x')}', scopes: ['admin:*']}}]}}")
    assert found.startswith("auth.tokens[1].token: is the same token as auth.tokens[0]")
    assert problems(f"auth: {{tokens: [{token}]}}", COURIER_TOKENS="x")


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ("{token: x, scopes: ['admin:*'], name: operator}", "auth.tokens[0].name: `operator` is reserved"),
        (
            "{token: x, scopes: ['admin:*'], agent: anonymous}",
            "auth.tokens[0].agent: `anonymous` is reserved",
        ),
        (
            "{token: x, scopes: ['admin:*'], agent: sam}, {token: y, scopes: ['admin:*'], name: sam}",
            "auth.tokens[1].name: `sam` is also the name",
        ),
        (
            "{token: x, scopes: ['admin:*'], name: a, agent: sam}, {token: y, scopes: ['admin:*'], agent: a}",
            "auth.tokens[1].agent: `a` is also the name",
        ),
    ],
)
def test_no_token_has_the_name_of_another(problems: Problems, tokens: str, problem: str) -> None:
    (found,) = problems(f"auth: {{tokens: [{tokens}]}}")
    assert found.startswith(problem)


def test_one_party_may_have_two_tokens(read: Read) -> None:
    same = "scopes: ['admin:*'], agent: sam"
    assert len(read(f"auth: {{tokens: [{{token: x, {same}}}, {{token: y, {same}}}]}}").auth.tokens) == 2


def test_leases_are_not_compared_with_limits_that_could_not_be_read(problems: Problems) -> None:
    (found,) = problems("streams: {defaultLeaseMs: 10}\nlimits: {lease_min_ms: 5, lease_mx_ms: 6}")
    assert found.startswith("limits.lease_mx_ms")


def test_a_retention_names_a_table_of_the_pipeline(problems: Problems, read: Read) -> None:
    (found,) = problems("pipeline: {retention: {envelope: 90d}}")
    assert found.startswith(
        "pipeline.retention.envelope: `envelope` is not a table of the pipeline; tables: queue_minutes,"
    )
    (found,) = problems("pipeline: {retention: {events: 90d}, tables: [own.py]}")
    assert "`journal.retention`" in found
    assert problems("pipeline: {retention: {envelopes: 0d}}") and problems("pipeline: {retention: {envelopes: 90}}")
    assert read("pipeline: {retention: {frames: 90d, agents: 7d}}").pipeline.retention["agents"] == "7d"
    assert read("pipeline: {retention: {own: 90d}, tables: [own.py]}")  # the pipeline checks it


@pytest.mark.parametrize(
    ("retention", "named"),
    [
        ("envelopes: 90d, deliveries: 400d, conversations: 365d", ["envelopes"]),
        ("deliveries: 9d", ["deliveries"]),
        ("envelopes: 90d, deliveries: 90d, conversations: 90d", []),
        ("conversations: 90d", []),
    ],
)
def test_a_table_that_conversations_are_computed_from_is_kept_as_long(
    problems: Problems, read: Read, retention: str, named: list[str]
) -> None:
    text = f"pipeline: {{retention: {{{retention}}}}}"
    found = problems(text) if named else []
    assert [name for problem in found for name in named if f"keep `{name}`" in problem] == named
    assert len(found) == len(named)
    assert named or read(text)
