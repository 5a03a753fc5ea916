"""The config file: what it accepts, the messages for what it rejects, and its printed reference."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy, Retry
from penstock.server.config.load import Config, ConfigError, load, policy_for
from penstock.server.config.reference import to_yaml
from penstock.server.files import yaml_tree
from penstock.server.files.secret_files import digest_of
from tests.paths import ROOT

REFERENCE = ROOT / "docs/reference"

SEED_SAMPLE = """\
streams:
  defaultLeaseMs: 30000
  maxDepth: 100000
  perStreamCaps: { "agents/*": { maxDepth: 50000 } }
triggers:
  - { id: trig.jen.log.notify.architect, when: {type: sprint.log, from: agents/Jen/outbox}, do: [{action: notify, to: agents/architect/inbox}] }
auth:
  tokens:
    - { token: "dev-local", scopes: ["streams:*:enqueue","streams:*:subscribe","views:*:read"] }
"""

Read = Callable[..., Config]


Problems = Callable[..., list[str]]


# Accepting


def test_without_a_file_everything_has_its_default() -> None:
    config = load(None, {})
    assert config == Config()
    assert (config.listen.http, config.listen.control) == ("localhost:8787", "127.0.0.1:9787")
    assert config.limits == Limits()
    assert config.notices == ()


@pytest.mark.promise("Foundations", "the sample config of the design document loads unchanged")
def test_the_sample_of_the_courier_document_loads_unchanged(read: Read) -> None:
    config = read(SEED_SAMPLE)
    assert config.streams.per_stream_caps["agents/*"].max_depth == 50_000
    (trigger,) = config.triggers
    assert (trigger.when.type, trigger.when.from_) == ("sprint.log", "agents/Jen/outbox")
    assert [action.to for action in trigger.do] == ["agents/architect/inbox"]
    (token,) = config.auth.tokens
    assert token.scopes == ("streams:*:enqueue", "streams:*:subscribe", "views:*:read")
    assert config.notices == ()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "streams:\nauth:\n", "streams: {}"])
def test_an_empty_file_or_section_means_defaults(read: Read, text: str) -> None:
    assert read(text) == Config(source=read("").source)


def test_typed_tables_use_the_schemas_of_the_streams_unless_told_otherwise(read: Read, tmp_path: Path) -> None:
    assert read("").pipeline.schemas is None
    text = f"schemas: {{dir: {tmp_path}}}\n"
    assert read(text).pipeline.schemas == str(tmp_path)
    assert read(text + "pipeline: {schemas: other}\n").pipeline.schemas == "other"


def test_effective_config_loads_again(read: Read) -> None:
    config = read("streams: {retry: {}, perStreamCaps: {'a*': {retry: null}}}\nlisten: {control: off}")
    assert read(to_yaml(config)).streams == config.streams
    assert read(to_yaml(config)).listen == config.listen


# Policies


# Refusing


@pytest.mark.promise("Foundations", "the config rejects an unknown key and suggests the nearest one")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("streams: {maxDept: 3}", "streams.maxDept: unknown key; did you mean `maxDepth`? (line 1)"),
        ("streams: {max_depth: 3}", "streams.max_depth: unknown key; did you mean `maxDepth`? (line 1)"),
        ("stream: {}", "stream: unknown key; did you mean `streams`? (line 1)"),
        ("auth: {tokens: [{token: a, tenant: 'x y', scopes: ['streams:*:*']}]}", "auth.tokens[0].tenant: got `x y`, expected a name without `/`, `:`, `*` or spaces (line 1)"),
        ("auth: {tokens: [{token: a, tenant: x, scopes: ['admin:*']}]}", "auth.tokens[0].scopes[0]: administers the whole server, which is not allowed for a tenant (line 1)"),
        ("tenants: {'a/b': {streams_max: 1}}", 'tenants["a/b"]: expected a name without `/`, `:`, `*` or spaces, or `*` for all others (line 1)'),
        ("lake_credentials: README.md", "lake_credentials: needs an object store, such as `lake: s3://bucket/lake`"),
        ("{lake: tables, lake_credentials: README.md}", "lake_credentials: needs an object store"),
        ("lake: s3:/x", "lake: `s3:/x` cannot be a lake; use a path, or a URL with `s3://`, `abfss://`, `gs://` (line 1)"),
        ("lake: http://host/x", "lake: `http://host` cannot be a lake; use a path"),
        ("lake: ''", "lake: got ``, expected a text that is not empty"),
        ("logs: {zzz: 1}", "logs.zzz: unknown key; known keys are `level`, `format`, `payload`, `file`, `record`, `redact`, `events`, `events_max_bytes`, `events_keep` (line 1)"),
        ("stream:", "stream: unknown key; did you mean `streams`? (line 1)"),
        ("notices: []", "notices: unknown key; known keys are"),
        ("relay: {pub: 'tcp://0.0.0.0:5556'}", "relay.pub: `tcp://0.0.0.0:5556` would serve other machines without encryption"),
        ("relay: {pull: 'tcp://127.0.0.1'}", "relay.pull: `tcp://127.0.0.1` has no host or no port; write tcp://HOST:PORT"),
        ("relay: {pull: 'inproc://x'}", "relay.pull: `inproc:` is not reachable"),
        ("relay: {pub: 'ipc://@streams'}", "relay.pub: `ipc://@streams` is no path of a file, so nothing would keep other users out"),
        ("relay: {pub: 'ipc:///tcp', curve: {secret: README.md, allowed: ['*']}}", "relay.curve: applies to tcp:// only, and neither `pub` nor `pull` uses it"),
        ("relay: {signers: {me: abc}}", "relay.signers.me: got `abc`, expected 64 lower case hexadecimal digits"),
        ("relay: {curve: {secret: nowhere, allowed: ['*']}}", "relay.curve.secret: there is no file `nowhere`"),
        ("relay: {curve: {secret: README.md, allowed: [abc]}}", "relay.curve.allowed[0]: expected the 40 characters of a public key"),
        ("relay: {curve: {secret: nowhere, allowed: []}}", "relay.curve.allowed: holds 0 entries, expected 1 or more"),
        ("relay: {message_tl: 3}", "relay.message_tl: unknown key; did you mean `message_ttl`?"),
        ("relay: {max_pending_per_topic: 0}", "relay.max_pending_per_topic: got `0`, expected a whole number of 1 or more"),
        ("console: {sql_row: 3}", "console.sql_row: unknown key; did you mean `sql_rows`?"),
        ("streams: {maxDepth: many}", "streams.maxDepth: got `many`, expected a whole number of 1 or more"),
        ("streams: {maxDepth: 0}", "streams.maxDepth: got `0`, expected a whole number of 1 or more"),
        ("streams: {maxDepth: -1}", "streams.maxDepth: got `-1`"),
        ("streams: {maxDepth: 1.5}", "streams.maxDepth: got `1.5`"),
        ("streams: {maxDepth: true}", "streams.maxDepth: got `true`"),
        ("streams: {maxDepth: }", "streams.maxDepth: got nothing"),
        ("streams: {maxDepth: '5'}", "streams.maxDepth: got `5`"),
        ("streams: {maxInflight: -1}", "streams.maxInflight: got `-1`, expected a whole number of 0 or more"),
        ("streams: {autoCreate: yes}", "streams.autoCreate: got `yes`, expected `true` or `false`"),
        ("streams: {overflow: drop}", "streams.overflow: got `drop`, expected one of `drop-oldest`, `reject`"),
        ("streams: {retry: {jitter: 2}}", "streams.retry.jitter: got `2`, expected a number from 0 to 1"),
        ("streams: {retry: {factor: .inf}}", "streams.retry.factor: got `.inf`"),
        ("streams: {retry: {baseMs: 9, maxMs: 8}}", "streams.retry.baseMs: `9` is more than `maxMs`, which is 8"),
        ("streams: {retry: soon}", "streams.retry: got `soon`, expected a mapping or `none` or nothing"),
        ("streams: {perStreamCaps: {'a/*': {maxDeep: 1}}}", 'streams.perStreamCaps["a/*"].maxDeep: unknown key; did'),
        ("streams: {perStreamCaps: {'a:b': {}}}", 'streams.perStreamCaps["a:b"]: is not a valid pattern'),
        ("streams: {perStreamCaps: {'': {}}}", "streams.perStreamCaps: holds an empty key"),
        ("streams: {partitioned: true, priority: true}", "streams.partitioned: excludes `priority`"),
        ("streams: {priority: true, perStreamCaps: {a: {partitioned: true}}}", "streams.perStreamCaps.a.partitioned: excludes"),
        ("streams: {priorityMaxWaitMs: 0}", "streams.priorityMaxWaitMs: got `0`"),
        ("streams: {perStreamCaps: {a: {autoCreate: true}}}", "streams.perStreamCaps.a.autoCreate: unknown key"),
        ("streams: {defaultLeaseMs: 10}", "streams.defaultLeaseMs: got `10`, expected a number from 1000 to 43200000"),
        ("streams: []", "streams: got a list, expected a mapping"),
        ("[]", "got a list, expected a mapping of sections"),
        ("streams:\n  maxDepth: 1\n  maxDepth: 2", "streams.maxDepth: duplicate key, again in line 3 (line 2)"),
        ("triggers: {}", "triggers: got a mapping, expected a list"),
        ("triggers: [{when: {to: a}, do: [{action: notify, to: b}]}]", "triggers[0].id: missing"),
        ("triggers: [{id: a, when: {to: a}, do: []}]", "triggers[0].do: holds 0 entries, expected 1 or more"),
        ("triggers: [{id: a, when: {}, do: [{action: notify, to: b}]}]", "triggers[0].when: is empty"),
        ("triggers: [{id: a, when: {to: 5}, do: [{action: notify, to: b}]}]", "triggers[0].when.to: got `5`, expected a"),
        ("triggers: [{id: a, when: {to: [b, 5]}, do: [{action: notify, to: b}]}]", "triggers[0].when.to[1]: got `5`"),
        ("triggers: [{id: a, when: {to: a}, do: [{action: shell, to: b}]}]", "triggers[0].do[0].action: got `shell`"),
        ("triggers: [{id: a, when: {to: a}, do: [{action: notify, to: 'b:c'}]}]", "triggers[0].do[0].to: 'b:c' is not a stream name"),
        ("auth: {tokens: [{token: x}]}", "auth.tokens[0].scopes: missing, expected a list"),
        ("auth: {tokens: [{token: x, scopes: [everything]}]}", "auth.tokens[0].scopes[0]: `everything` should start"),
        ("auth: {tokens: [{token: x, scopes: ['admin:*'], agent: a/b}]}", "auth.tokens[0].agent: got `a/b`"),
        ("auth: {tokens: [{token: 'sha256:abc', scopes: ['admin:*']}]}", "auth.tokens[0].token: expected 64"),
        ("auth: {tokens: [{token: 'env:NOPE', scopes: ['admin:*']}]}", "the environment has no variable `NOPE`"),
        ("auth: {tokens: [{token: '***', scopes: ['admin:*']}]}", "more than asterisks"),
        ("auth: {tokens: [{token: 'a b', scopes: ['admin:*']}]}", "printable ASCII without spaces"),
        ("auth: {allowAnonymous: true, tokens: [{token: x, scopes: ['admin:*']}]}", "auth.allowAnonymous: excludes"),
        ("listen: {http: '8787'}", "listen.http: `8787` should be HOST:PORT"),
        ("listen: {control: false}", "listen.control: got `false`, expected a text"),
        ("listen: {control: 'unix:'}", "listen.control: `unix:` should name a path"),
        ("listen: {origins: ['*']}", "listen.origins[0]: got `*`, expected e.g. `https://app.example.com`"),
        ("listen: {origins: ['https://a.b/']}", "listen.origins[0]: got"),
        ("limits: {streams_max: 0}", "limits.streams_max: got `0`, expected 1 or more"),
        ("limits: {envelope_max: 9, frame_max: 8}", "limits.envelope_max: `9` is more than `frame_max`, which is 8"),
        ("logs: {level: loud}", "logs.level: got `loud`"),
        ("journal: {sync: true}", "journal.sync: got `true`, expected one of"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_path_and_hint(problems: Problems, text: str, problem: str) -> None:
    (found,) = problems(text)
    assert problem in found


def test_keys_count_for_publishers_on_tcp_alone(read: Read) -> None:
    curve = "curve: {secret: README.md, allowed: ['*']}"
    config = read(f"relay: {{pub: 'ipc:///tmp/pub.sock', pull: 'tcp://127.0.0.1:0', {curve}}}")
    assert config.relay.curve is not None


@pytest.mark.promise("Foundations", "the config rejects an unknown key and suggests the nearest one")
def test_all_problems_are_reported_at_once(problems: Problems) -> None:
    found = problems(
        "streams: {maxDept: 1, maxDepth: many}\nauth: {tokens: [5, {token: 7, name: 8}]}\nconsole: {enable: true}\nlogs: {level: 1}",
        COURIER_HTTP_PORT="high",
    )
    assert len(found) == 9
    assert len([problem for problem in found if problem.startswith("auth.tokens[1]")]) == 3


@pytest.mark.parametrize(
    ("caps", "limit"),
    [
        ("{}", 0),
        ("{'*': {maxDeliveries: 5}}", 0),
        ("{'dlq/*': {maxDepth: 5}}", 0),
        ("{'dlq/*': {maxDeliveries: 5}}", 5),
    ],
)
def test_dead_letters_are_not_given_up_by_a_bound_meant_for_others(read: Read, caps: str, limit: int) -> None:
    config = read(f"streams: {{maxDeliveries: 3, perStreamCaps: {caps}}}")
    assert policy_for(config, "dlq/a").max_deliveries == limit
    assert policy_for(config, "a").max_deliveries in (3, 5)


@pytest.mark.parametrize(
    ("text", "retry"),
    [
        ("{}", Policy().retry),
        ("{retry: none}", None),
        ("{retry: null}", None),
        ("{retry: {baseMs: 500}}", Retry(500_000, 2.0, 60_000_000, 0.2)),
        ("{retry: {immediate: 2, jitter: 0}}", Retry(1_000_000, 2.0, 60_000_000, 0.0, 2)),
        ("{perStreamCaps: {'a*': {retry: none}}}", None),
    ],
)
def test_an_explicit_back_off_keeps_its_meaning(read: Read, text: str, retry: Retry | None) -> None:
    policy = policy_for(read(f"streams: {text}"), "a")
    assert policy == Policy(retry=retry)


@pytest.mark.parametrize(
    "text",
    [
        "a: [", "a: b: c", "\ta: 1", "a: 1\n---\nb: 2", "a: *nowhere", "a: !!python/name:os.system x", "? [a]\n: 1", "a: !!int x",
        "streams: {<<: {maxDepth: 1}}", "a: &a [*a]", "[" * 2000, "a: \x00", "x" * (yaml_tree.TEXT_MAX + 1),
        "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\n"
        "e: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]",
    ],
)  # fmt: skip
def test_what_is_not_plain_yaml_is_refused(problems: Problems, text: str) -> None:
    assert all("\n" not in problem for problem in problems(text))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("ab:{}[]-?*&!<>|'\"#%@, \n0123x", max_size=40))
def test_any_text_loads_or_is_refused(read: Read, text: str) -> None:
    found = []
    try:
        read(text)
    except ConfigError as error:
        found = error.errors
    assert all(problem and "\n" not in problem for problem in found)


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    for path, words in (
        (tmp_path / "missing", "cannot read"),
        (tmp_path, "cannot read"),
        (tmp_path / "binary", "UTF-8"),
    ):
        with pytest.raises(ConfigError, match=words):
            load(path, {})


# Secrets


@pytest.mark.promise("Security", "tokens have scopes and are stored as hashes")
def test_tokens_are_kept_as_digests_only(read: Read) -> None:
    config = read(
        "auth: {tokens: [{token: plain-secret, scopes: ['admin:*']}, {token: 'env:MY_TOKEN', scopes: ['admin:*']}]}",
        MY_TOKEN="env-secret",
    )
    assert [token.token for token in config.auth.tokens] == [
        f"sha256:{digest_of(text)}" for text in ("plain-secret", "env-secret")
    ]
    for shown in (repr(config), to_yaml(config)):
        assert "plain-secret" not in shown and "env-secret" not in shown
    assert digest_of("plain-secret") not in to_yaml(config)


def test_a_masked_config_does_not_load_as_if_the_mask_were_a_token(read: Read, problems: Problems) -> None:
    masked = to_yaml(read(SEED_SAMPLE))
    assert "asterisks" in problems(masked)[0]


@pytest.mark.parametrize(
    "text",
    [
        "auth: {tokens: [hunter2]}",
        "auth: {tokens: hunter2}",
        "auth: {tokens: [{token: [hunter2], scopes: []}]}",
        "auth: {tokens: [{token: hunter2, scopes: [}]}",
        "auth: {tokens: [{token: hunter2, token: hunter2, scopes: ['admin:*']}]}",
        "auth: {tokens: [{token: 'hunter2 ', scopes: ['admin:*']}]}",
    ],
)
def test_no_problem_quotes_a_token(problems: Problems, text: str) -> None:
    assert all("hunter2" not in problem for problem in problems(text))


# The environment


def test_the_environment_has_the_last_word(read: Read) -> None:
    config = read("listen: {http: 'localhost:1'}", COURIER_BIND="0.0.0.0", COURIER_HTTP_PORT="8788")
    assert config.listen.http == "0.0.0.0:8788"
    assert read("", COURIER_BIND="::1").listen.http == "[::1]:8787"
    assert read("listen: {http: 'a.b:1'}", COURIER_HTTP_PORT="0").listen.http == "a.b:0"


def test_tokens_of_the_environment_are_added(read: Read) -> None:
    config = read(SEED_SAMPLE, COURIER_TOKENS="one, two,,")
    assert [token.name for token in config.auth.tokens] == [None, "env-1", "env-2"]
    assert config.auth.tokens[1].scopes == ("streams:*:*", "views:*:*")


def test_the_environment_names_the_file_unless_the_caller_does(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("streams: {maxDepth: 1}")
    (tmp_path / "b.yaml").write_text("streams: {maxDepth: 2}")
    env = {"COURIER_CONFIG": str(tmp_path / "a.yaml")}
    assert load(None, env).streams.max_depth == 1
    assert load(tmp_path / "b.yaml", env).streams.max_depth == 2


@pytest.mark.parametrize("env", [{"COURIER_HTTP_PORT": "x"}, {"COURIER_HTTP_PORT": "70000"}, {"COURIER_BIND": "a b"}])
def test_a_wrong_environment_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="COURIER_BIND or COURIER_HTTP_PORT"):
        load(None, env)


# The reference pages


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.parametrize("text", [LAUGHS, "[" * 20_000, "x: " + "y" * (2 * yaml_tree.TEXT_MAX), "a: &a {b: *a}"])
def test_a_bomb_in_a_config_or_a_space_file_is_one_error(text: str, tmp_path: Path) -> None:
    """The text of a bomb is never repeated in the error, and every file goes through the same bounds."""
    space = tmp_path / "space.yaml"
    space.write_text(text)
    config = tmp_path / "config.yaml"
    config.write_text("spaces: [space.yaml]")
    for path in (space, config):
        with pytest.raises(ConfigError) as caught:
            load(path, {})
        assert len(str(caught.value)) < 2_000
        assert "values, or is nested deeper" in str(caught.value) or "are read" in str(caught.value)
