"""Reading a `space.yaml`: real files, rejections, and the sources of tokens."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.dialects.mew.settings import ParticipantSettings, StreamSettings
from penstock.server.admin.reload import differences, merged
from penstock.server.config.load import Config, ConfigError, load
from penstock.server.config.reference import to_yaml
from penstock.server.config.spaces.space_yaml import (
    LoadedSpace,
    load_space,
    load_spaces,
    mewdir_of,
)

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


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read `.*nowhere.yaml`: No such file"):
        load_space(tmp_path / "nowhere.yaml", {})


# Tokens


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
