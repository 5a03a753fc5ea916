"""Reading a `space.yaml`: real files, rejections, and the sources of tokens."""

from __future__ import annotations

import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dialects.mew.settings import ParticipantSettings, StreamSettings
from penstock.server.admin.reload import differences, merged
from penstock.server.config.load import Config, ConfigError, load
from penstock.server.config.reference import to_yaml
from penstock.server.config.spaces.files import (
    LoadedSpace,
    load_space,
    load_spaces,
    mewdir_of,
    write_invited_token,
)
from penstock.server.config.spaces.schema import id_error
from penstock.server.config.spaces.token_files import environment_name

REAL = """\
space:
  id: "demo"
  name: "Demo"
  description: "with everything that programs beside the gateway read"
  default_participant: human
  ui_theme: neon-pulse
participants:
  human:
    tokens: ["human-token", "human-token-2"]
    capabilities:
      - kind: "*"
    default_to: {chat: ["mew"]}
  mew:
    type: local
    command: node
    args: ["bot.js", "--gateway", "ws://localhost:${PORT}", "--token", "${TOKEN}"]
    env: {A: "${A}"}
    auto_start: true
    restart_policy: on-failure
    fifo: false
    io: http
    capabilities:
      - kind: "chat"
      - kind: "mcp/request"
        payload: {method: "!tools/call", params: {name: [read_file, 7]}}
      - kind: ["a/*", "b"]
  filesystem:
    type: mcp-bridge
    tokens: [fs-token]
    mcp_server: {command: node, args: ["./files.js"]}
    bridge_config: {init_timeout: 30000, reconnect: true}
  test-client:
    tokens: ["test-token"]
    output_log: ./logs/test-client.log
    auto_connect: true
  lake: {type: pipeline}
  anyone:
defaults:
  capabilities:
    - kind: chat
    - kind: stream/*
gateway_logging: {enabled: true, envelope_history: {enabled: false}, level: high}
streams:
  position:
    owner: human
    direction: upload
    target: lake
    content_type: application/json
    format: seacat/character-position-v1
    journal: full
    overflow: disconnect
  world:
    owner: mew
    target: [human, lake, human]
    metadata: {tick: 20}
  all: {owner: mew, target: []}
"""


def digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


Read = Callable[..., LoadedSpace]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str, **env: str) -> LoadedSpace:
        path = tmp_path / "space.yaml"
        path.write_text(text, encoding="utf-8")
        return load_space(path, env)

    return read


@pytest.fixture
def problems(read: Read) -> Callable[..., list[str]]:
    def problems(text: str, **env: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read(text, **env)
        return [problem.partition("space.yaml`: ")[2] or problem for problem in caught.value.errors]

    return problems


Problems = Callable[..., list[str]]


# What a file says


@pytest.mark.promise("Configuration of a space", "a real `space.yaml` loads, and keys for other programs are ignored")
def test_a_real_file_is_read_and_what_is_for_others_is_left_alone(read: Read) -> None:
    space = read(REAL)
    assert (space.settings.id, space.settings.name) == ("demo", "Demo")
    people = space.settings.participants
    assert list(people) == ["human", "mew", "filesystem", "test-client", "lake", "anyone"]
    assert people["human"] == ParticipantSettings((digest("human-token"), digest("human-token-2")), ({"kind": "*"},))
    assert people["mew"].capabilities == (
        {"kind": "chat"},
        {"kind": "mcp/request", "payload": {"method": "!tools/call", "params": {"name": ["read_file", 7]}}},
        {"kind": ["a/*", "b"]},
    )
    assert people["test-client"].output_log == "./logs/test-client.log"
    assert people["test-client"].auto_connect
    assert people["lake"] == ParticipantSettings(is_pipeline=True)
    assert people["anyone"].capabilities is None
    assert space.settings.default_capabilities == ({"kind": "chat"}, {"kind": "stream/*"})
    assert space.unstarted == ("mew", "filesystem")
    assert space.notices == ()
    assert (space.logging.enabled, space.logging.envelope_history.enabled) == (True, False)
    assert space.logging.capability_decisions.enabled


@pytest.mark.promise(
    "Configuration of a space",
    "the `streams:` block of the proposal loads, with a target as a string or a list",
)
def test_streams_carry_their_request_and_their_targets_once(read: Read) -> None:
    streams = read(REAL).settings.streams
    assert streams["position"] == StreamSettings(
        "human",
        ("lake",),
        {
            "direction": "upload",
            "content_type": "application/json",
            "format": "seacat/character-position-v1",
        },
        "full",
        "disconnect",
    )
    assert streams["world"] == StreamSettings(
        "mew", ("human", "lake"), {"direction": "upload", "metadata": {"tick": 20}}
    )
    assert streams["all"].target == ()


def test_what_is_left_out_has_its_default(read: Read) -> None:
    space = read("participants:\n  sam:\nstreams:\ndefaults:\n").settings
    assert (space.id, space.name, space.default_capabilities) == ("default", "default", ({"kind": "chat"},))
    assert space.streams == {}
    # Nothing at all is not the same as nothing said.
    assert read("defaults: {capabilities: []}").settings.default_capabilities == ()


@pytest.mark.promise("Configuration of a space", "a real `space.yaml` loads, and keys for other programs are ignored")
def test_a_typo_is_reported_and_a_foreign_key_is_not(read: Read) -> None:
    (notice,) = read("participants: {sam: {capabilites: [], auto_start: true, commands: x}}").notices
    assert notice.endswith("participants.sam.capabilites: is ignored; did you mean `capabilities`?")


def test_unknown_names_are_reported(read: Read) -> None:
    notices = read("participants: {sam: {tokens: ['${TOKEN}']}}\nstreams: {a: {owner: jen, target: kim}}").notices
    assert [notice.partition("space.yaml`: ")[2].partition(":")[0] for notice in notices] == [
        "participants.sam.tokens",
        "streams.a.owner",
        "streams.a.target",
    ]


# What is refused


@pytest.mark.promise(
    "Configuration of a space",
    "an invalid file is rejected with every problem, its path and line, and no default replaces it",
)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty, expected a space and its participants"),
        ("- a", "got a list, expected a mapping"),
        ("space: {id: 7}", "space.id: got `7`, expected a text that is not empty (line 1)"),
        ("space: {id: a/b}", "space.id: got `a/b`, expected a name without `/`, `\\`, `..` and control characters (line 1)"),
        ("participants: [sam]", "participants: got a list, expected a mapping or nothing (line 1)"),
        ("participants: {sam: {tokens: secret}}", "participants.sam.tokens: got a value, expected a list"),
        ("participants: {sam: {tokens: [1234]}}", "participants.sam.tokens[0]: got a value, expected a text that is not empty (line 1)"),
        ("participants: {sam: {tokens: ['a b']}}", "participants.sam.tokens[0]: expected printable ASCII without spaces"),
        ("participants: {sam: {tokens: ['********']}}", "participants.sam.tokens[0]: expected printable ASCII without spaces, and more"),
        ("participants: {sam: {tokens: ['sha256:12']}}", "participants.sam.tokens[0]: expected 64 lower case"),
        ("participants: {sam: {capabilities: [chat]}}", "participants.sam.capabilities[0]: got `chat`, expected a mapping"),
        ("participants: {sam: {capabilities: [{knd: chat}]}}", "participants.sam.capabilities[0].kind: missing, expected a text (line 1)"),
        ("participants: {sam: {capabilities: [{kind: []}]}}", "participants.sam.capabilities[0].kind: got a list, expected a text, or"),
        ("defaults: {capabilities: [{kind: 5}]}", "defaults.capabilities[0].kind: got `5`, expected a text"),
        ("participants: {'../x': {}}", 'participants["../x"]: expected a name without'),
        ("participants: {'a\\b': {}}", 'participants["a\\b"]: expected a name without'),
        ("participants: {gateway: {}}", "participants.gateway: `gateway` is reserved by the gateway"),
        ("participants: {'system:x': {}}", 'participants["system:x"]: `system:x` is reserved'),
        ("participants: {operator: {}}", "participants.operator: `operator` is reserved"),
        ("participants: {sam: {auto_connect: yes}}", "participants.sam.auto_connect: got `yes`, expected `true` or `false`"),
        ("participants: {lake: {type: pipeline, tokens: [x]}}", "participants.lake.tokens: a `pipeline` participant is virtual"),
        ("streams: {a: {target: b}}", "streams.a.owner: missing"),
        ("streams: {a: {owner: b, tagret: c}}", "streams.a.tagret: unknown key; did you mean `target`?"),
        ("streams: {a: {owner: b, journal: all}}", "streams.a.journal: got `all`, expected one of `counts`, `full`, `off`"),
        ("streams: {a: {owner: b, target: {c: d}}}", "streams.a.target: got a mapping, expected a text that is not empty or a list"),
        ("streams: {stream-3: {owner: b}}", "streams.stream-3: looks like an id that the gateway assigns"),
        ("gateway_logging: {enabled: on}", "gateway_logging.enabled: got `on`, expected `true` or `false`"),
        ("participants: {a: }\nparticipants: {b: }", "participants: duplicate key, again in line 2"),
        ("participants: {a: [}", "not valid YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_path_and_line(problems: Problems, text: str, problem: str) -> None:
    (found,) = problems(text)
    assert found.startswith(problem)
    assert "secret" not in found and "1234" not in found


@pytest.mark.promise(
    "Configuration of a space",
    "an invalid file is rejected with every problem, its path and line, and no default replaces it",
)
def test_all_problems_are_reported_at_once_and_nothing_is_written(problems: Problems, tmp_path: Path) -> None:
    found = problems("space: {id: 5}\nparticipants:\n  a: {tokens: [5]}\n  b: {capabilities: x}\nstreams: []")
    assert len(found) == 4
    assert found[2].endswith("(line 4)")
    assert not (tmp_path / "tokens").exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read `.*nowhere.yaml`: No such file"):
        load_space(tmp_path / "nowhere.yaml", {})


@pytest.mark.promise("Configuration of a space", "an id cannot leave its directory")
@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_an_id_that_is_let_through_is_one_name_in_one_directory(text: str) -> None:
    if id_error(text) is None:
        path = Path("/a/tokens") / f"{text}.token"
        assert path.parent == Path("/a/tokens") and path.name == f"{text}.token"
        assert len(path.name.encode()) <= 255 and "\0" not in path.name


# Tokens


@pytest.mark.promise(
    "Configuration of a space",
    "every source of a token works, a missing token is created permanently, and no token is shared or shown",
)
def test_every_source_of_a_token_counts_beside_the_others(read: Read, tmp_path: Path) -> None:
    write_invited_token(tmp_path, "code-bot", "from-file")
    space = read("participants: {code-bot: {tokens: [listed]}}", MEW_TOKEN_CODE_BOT="from-env")
    assert space.settings.participants["code-bot"].token_digests == tuple(
        digest(token) for token in ("listed", "from-env", "from-file")
    )
    assert space.made == ()
    assert environment_name("code-bot") == "MEW_TOKEN_CODE_BOT"


@pytest.mark.promise(
    "Configuration of a space",
    "every source of a token works, a missing token is created permanently, and no token is shared or shown",
)
def test_a_participant_without_a_token_gets_a_permanent_one(read: Read, tmp_path: Path) -> None:
    text = "participants: {sam: {}, jen: {tokens: [x]}, lake: {type: pipeline}}"
    first = read(text)
    assert first.made == ("sam",)
    file = tmp_path / "tokens" / "sam.token"
    token = file.read_text()
    assert len(token) >= 43 and first.settings.participants["sam"].token_digests == (digest(token),)
    assert sorted(path.name for path in file.parent.iterdir()) == [".gitignore", "sam.token"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert (file.parent / ".gitignore").read_text() == "*\n!.gitignore\n"
    again = read(text)
    assert again.settings == first.settings and again.made == ()
    # One that was emptied, as `touch` would leave it, is made anew.
    file.write_text("\n")
    assert read(text).settings != first.settings


def test_a_digest_may_stand_for_a_token(read: Read) -> None:
    (person,) = read(f"participants: {{sam: {{tokens: ['sha256:{digest('x')}']}}}}").settings.participants.values()
    assert person.token_digests == (digest("x"),)


@pytest.mark.promise(
    "Configuration of a space",
    "every source of a token works, a missing token is created permanently, and no token is shared or shown",
)
def test_two_cannot_have_the_same_token(problems: Problems, tmp_path: Path) -> None:
    (found,) = problems("participants: {a: {tokens: [x]}, b: {tokens: [y, x]}, c: {}}")
    assert found.startswith("participants.b: has the same token as `a`; each needs its own")
    # `a-b` and `a_b` look at the same variable.
    (found,) = problems("participants: {a-b: {}, a_b: {}}", MEW_TOKEN_A_B="z")
    assert found.startswith("participants.a_b: has the same token as `a-b`; each needs its own")
    write_invited_token(tmp_path, "d", "w")
    (found,) = problems("participants: {c: {tokens: [w]}, d: {}}")
    assert found.startswith("participants.d:")
    assert not (tmp_path / "tokens" / "c.token").exists(), "tokens are made only when all is well"


@pytest.mark.parametrize("content", [b"two words", b"\xff\xfe", b"a" * 5000])
def test_a_file_that_holds_no_token_is_named_and_kept(problems: Problems, tmp_path: Path, content: bytes) -> None:
    file = write_invited_token(tmp_path, "sam", "x")
    file.write_bytes(content)
    (found,) = problems("participants: {sam: {tokens: [y]}}")
    assert "sam.token` holds no token" in found
    assert file.read_bytes() == content
    (found,) = problems("participants: {jen: {}}", MEW_TOKEN_JEN="a b")
    assert found == "MEW_TOKEN_JEN: expected printable ASCII without spaces"


@pytest.mark.promise("Configuration of a space", "an id cannot leave its directory")
def test_a_token_is_not_written_outside_its_directory(tmp_path: Path) -> None:
    for name in ("../sam", "a/b", "", "a\\b"):
        with pytest.raises(ValueError, match="is not a valid id"):
            write_invited_token(tmp_path, name, "x")
    assert list(tmp_path.iterdir()) == []


def test_files_are_kept_in_the_mew_directory_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    assert mewdir_of(file) == tmp_path
    (tmp_path / ".mew").mkdir()
    assert mewdir_of(file) == tmp_path / ".mew"
    assert mewdir_of(tmp_path / ".mew" / "space.yaml") == tmp_path / ".mew"
    file.write_text("participants: {sam: {}}")
    assert load_space(file, {}).mewdir == tmp_path / ".mew"
    assert (tmp_path / ".mew" / "tokens" / "sam.token").exists()


# The section of the config file


def config_of(folder: Path, text: str) -> Config:
    file = folder / "penstock.yaml"
    file.write_text(text)
    return load(file, {})


INLINE = (
    "{space: {id: two}, participants: {jen: {tokens: [sesame], capabilities: [{kind: chat}]}, lake: {type: pipeline}}}"
)


@pytest.mark.promise(
    "Configuration of a space", "`spaces` in the config accepts paths or mappings and rejects a repeated id"
)
def test_spaces_are_files_beside_the_config_or_mappings_in_it(tmp_path: Path) -> None:
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "space.yaml").write_text("space: {id: one}\nparticipants: {sam: {}}")
    config = config_of(tmp_path, f"spaces:\n  - game/space.yaml\n  - {INLINE}")
    assert not (tmp_path / "game" / "tokens").exists(), "a check writes nothing"
    one, two = load_spaces(config.spaces, tmp_path / "data" / "spaces", {})
    assert (one.settings.id, one.mewdir) == ("one", tmp_path / "game")
    assert (two.settings.id, two.mewdir) == ("two", tmp_path / "data" / "spaces" / "two")
    assert two.settings.participants["jen"].token_digests == (digest("sesame"),)
    assert config.notices == ()


@pytest.mark.promise(
    "Configuration of a space",
    "every source of a token works, a missing token is created permanently, and no token is shared or shown",
)
def test_the_effective_config_shows_no_token_and_loads_again(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"spaces: [{INLINE}]")
    assert "sesame" not in repr(config)
    shown = to_yaml(config)
    assert "sesame" not in shown and digest("sesame") not in shown
    with pytest.raises(ConfigError, match="more than asterisks"):
        config_of(tmp_path, shown)
    assert config_of(tmp_path, shown.replace("********", "sesame")).spaces == config.spaces


@pytest.mark.promise(
    "Configuration of a space", "`spaces` in the config accepts paths or mappings and rejects a repeated id"
)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("spaces: {a: b}", "spaces: got a mapping, expected a list"),
        ("spaces: [5]", "spaces[0]: got `5`, expected a text that is not empty or a mapping (line 1)"),
        ("spaces: [nowhere.yaml]", "nowhere.yaml`: No such file or directory"),
        (f"spaces: [{INLINE}, {INLINE}]", "spaces[1]: the space `two` is also that of spaces[0] (line 1)"),
        ("spaces: [{participants: {a: {tokens: [5]}}}]", "spaces[0].participants.a.tokens[0]: got a value"),
        ("spaces: [{space: {id: ..}}]", "spaces[0].space.id: got `..`, expected a name without"),
        (f"spaces: [{INLINE}, {{space: {{id: x}}}}]\nlimits: {{spaces_max: 1}}", "spaces: has 2 spaces, but `limits.spaces_max` is 1 (line 1)"),
        ("spaces: [bad.yaml]", "bad.yaml`: participants.a: got `5`, expected a mapping or nothing (line 2)"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_section_is_named_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "bad.yaml").write_text("participants:\n  a: 5")
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, text)
    (found,) = caught.value.errors
    assert problem in found


def test_a_slip_in_a_mapping_is_a_notice(tmp_path: Path) -> None:
    (notice,) = config_of(tmp_path, "spaces: [{participants: {a: {token: [x]}}}]").notices
    assert notice == "spaces[0]: participants.a.token: is ignored; did you mean `tokens`?"


def test_spaces_change_with_the_next_start(tmp_path: Path) -> None:
    before, after = config_of(tmp_path, f"spaces: [{INLINE}]"), config_of(tmp_path, "spaces: []")
    assert differences(before, after).restart == ["spaces"]
    assert merged(before, after).spaces == before.spaces


def test_problems_of_tokens_are_reported_for_every_space(tmp_path: Path) -> None:
    spaces = [f"{{space: {{id: {name}}}, participants: {{sam: {{}}}}}}" for name in ("one", "two")]
    config = config_of(tmp_path, f"spaces: [{', '.join(spaces)}]")
    with pytest.raises(ConfigError) as caught:
        load_spaces(config.spaces, tmp_path, {"MEW_TOKEN_SAM": "a b"})
    assert [problem.partition(":")[0] for problem in caught.value.errors] == ["spaces[0]", "spaces[1]"]
