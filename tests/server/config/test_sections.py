"""The sections of the config: every key, and the policy that patterns give a stream."""

import pytest

from penstock.core.queue.policy import Policy, Retry
from penstock.server.config.load import Config, policy_for
from penstock.server.config.sections import JournalSection
from tests.server.config.test_load import Read


def test_every_key_of_every_section_is_read(read: Read) -> None:
    config = read("""\
streams:
  overflow: drop-oldest
  redelivery: head
  onDisconnect: hold
  lateAck: accept
  autoCreate: false
  assignId: true
  retry: {baseMs: 10, factor: 1.5, maxMs: 1_000, jitter: 0}
triggers:
  - id: t
    when: {to: [a, "b*"], tags: x, tagsAny: [y], headers: {priority: high, n: 1}}
    do: [{action: notify, to: "agents/${env.from}", type: x, payload: {deep: [1, null]}}]
    limits: {cooldownMs: 5000, cooldownKey: "${env.from}", trailing: true}
auth: {queryToken: true}
listen: {http: "[::1]:0", control: off, origins: ["https://app.example.com"]}
limits: {envelope_max: 0x1000}
journal: {sync: off, linger_us: 0}
logs: {level: debug, format: text, payload: true, file: logs/penstock.log}
""")
    assert config.streams.retry is not None and config.streams.retry.factor == 1.5
    assert config.triggers[0].when.headers == {"priority": "high", "n": 1}
    assert config.triggers[0].do[0].payload == {"deep": [1, None]}
    assert config.listen.control == "off"
    assert config.limits.envelope_max == 4096
    assert config.journal == JournalSection("off", 0)
    assert config.logs.file == "logs/penstock.log"


def test_history_is_kept_as_long_as_the_config_says(read: Read) -> None:
    journal = read("journal: {sync: interval, retention: {age_ms: 1000, hold_bytes_max: 7}}").journal
    assert (journal.sync, journal.retention.age_ms, journal.retention.hold_bytes_max) == ("interval", 1000, 7)


@pytest.mark.promise("Streams", "`perStreamCaps` accepts globs")
def test_a_policy_is_the_default_until_a_pattern_changes_it(read: Read) -> None:
    config = read("""\
streams:
  maxDepth: 10
  perStreamCaps:
    "agents/*": {maxDepth: 20, overflow: drop-oldest}
    "agents/sam/*": {defaultLeaseMs: 5000, retry: {baseMs: 100, maxMs: 2000}}
    "agents/sam/inbox": {dedupWindow: 7, dedupWindowMs: 9, maxDeliveries: 3, maxInflight: 1}
""")
    assert policy_for(config, "jobs") == Policy(max_depth=10)
    assert policy_for(config, "agents/jen/inbox") == Policy(max_depth=20, overflow="drop-oldest")
    # Only the closest pattern applies: nothing is inherited from `agents/*`.
    sam = policy_for(config, "agents/sam/outbox")
    assert sam == Policy(max_depth=10, lease_us=5_000_000, retry=Retry(100_000, 2.0, 2_000_000, 0.2))
    inbox = policy_for(config, "agents/sam/inbox")
    assert inbox == Policy(max_depth=10, dedup_count=7, dedup_us=9_000, max_deliveries=3, max_inflight=1)


def test_the_default_policy_of_config_and_core_agree() -> None:
    assert policy_for(Config(), "jobs") == Policy()


def test_a_pattern_can_switch_the_retry_off(read: Read) -> None:
    config = read("streams: {retry: {}, perStreamCaps: {fast: {retry: null}}}")
    assert policy_for(config, "fast").retry is None
    assert policy_for(config, "slow").retry == Retry(1_000_000, 2.0, 60_000_000, 0.2)
