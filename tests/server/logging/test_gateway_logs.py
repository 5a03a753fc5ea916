"""A gateway's log files: the lines that existing tools expect, no clear-text token, and no blocking of the loop."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from penstock.core.clock import Now
from penstock.dialects.mew.participants import Decision
from penstock.server.files import line_writer
from penstock.server.logging import gateway_logs
from penstock.server.logging.gateway_logs import GatewayLogs, OutputLog, redact, switches
from tests.server.logging.draining import drain

AT = Now(0, 1_767_225_600_123_456)
STAMP = "2026-01-01T00:00:00.123Z"
CHAT = (
    b'{"protocol":"mew/v0.4","id":"m1","ts":"x","from":"sam","to":["client-b"],"kind":"chat","payload":{"text":"hi"}}'
)
TOKEN = "s3cr3t-token"
DIGEST = "sha256:" + hashlib.sha256(TOKEN.encode()).hexdigest()[:12]


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[GatewayLogs]:
    made = GatewayLogs(tmp_path / "logs", history=True, decisions=True)
    yield made
    made.close()


def history(tmp_path: Path) -> list[bytes]:
    return (tmp_path / "logs" / "envelope-history.jsonl").read_bytes().splitlines()


def decisions(tmp_path: Path) -> list[bytes]:
    return (tmp_path / "logs" / "capability-decisions.jsonl").read_bytes().splitlines()


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "the gateway's log files keep form, order of keys and the sender's bytes",
)
def test_an_envelope_that_came_and_went(logs: GatewayLogs, tmp_path: Path) -> None:
    logs.received(AT, CHAT, "m1", "sam", "demo", "websocket")
    logs.delivered(AT, CHAT, "m1", [("sam", "websocket"), ("bob", "websocket")], "demo")
    logs.rejected(AT, CHAT, "m1", "sam", "demo", "http", "capability_violation")
    logs.close()
    head = f'{{"timestamp":"{STAMP}","event":'.encode()
    body = b',"id":"m1","envelope":' + CHAT + b',"participant":'
    assert history(tmp_path) == [
        head + b'"received"' + body + b'"sam","space_id":"demo","direction":"inbound","transport":"websocket"}',
        head + b'"delivered"' + body + b'"sam","space_id":"demo","direction":"outbound","transport":"websocket"}',
        head + b'"delivered"' + body + b'"bob","space_id":"demo","direction":"outbound","transport":"websocket"}',
        head + b'"rejected"' + body + b'"sam","space_id":"demo","direction":"inbound","transport":"http",'
        b'"metadata":{"reason":"capability_violation"}}',
    ]  # fmt: skip


def test_what_is_not_known_is_left_out(logs: GatewayLogs, tmp_path: Path) -> None:
    logs.received(AT, b"{}", "", None, None, "websocket")  # type: ignore[arg-type]
    logs.delivered(AT, b"{}", "m", [], "demo")
    logs.close()
    line = f'{{"timestamp":"{STAMP}","event":"received","envelope":{{}},"direction":"inbound","transport":"websocket"}}'
    assert history(tmp_path) == [line.encode()], "and a delivery to nobody is none"


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "the gateway's log files keep form, order of keys and the sender's bytes",
)
def test_a_decision(logs: GatewayLogs, tmp_path: Path) -> None:
    held = ({"kind": "chat"}, {"kind": "mcp/*"})
    logs.decided(AT, Decision("m1", "sam", "demo", "mcp/request", held[1], "static", held, "websocket", ("r1", "r2")))
    logs.decided(AT, Decision("m2", "sam", "demo", "stream/open", None, None, (), "polling"))
    logs.close()
    allowed, denied = decisions(tmp_path)
    assert allowed.decode() == (
        f'{{"timestamp":"{STAMP}","event":"capability_check","envelope_id":"m1","participant":"sam","space_id":"demo",'
        '"result":"allowed","required_capability":"mcp/request","matched_capability":{"kind":"mcp/*"},'
        '"matched_source":"static","granted_capabilities":[{"kind":"chat"},{"kind":"mcp/*"}],'
        '"metadata":{"source":"websocket","transport":"websocket","correlation_id":["r1","r2"]}}'
    )
    assert denied.decode() == (
        f'{{"timestamp":"{STAMP}","event":"capability_check","envelope_id":"m2","participant":"sam","space_id":"demo",'
        '"result":"denied","required_capability":"stream/open","granted_capabilities":[],'
        '"metadata":{"source":"http_api","transport":"http"}}'
    )


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "the gateway's log files keep form, order of keys and the sender's bytes",
)
@pytest.mark.parametrize(
    "pattern",
    [
        r'"event":"delivered".*"id":"m1".*"participant":"bob"',
        r'"kind":"stream/open"',
        r'"target":\["aggregator"\]',
        r'"authorized_writers":\["publisher"\]',
        r'"to":\["client-b"\]',
        r'"active_streams":\[\]',
    ],
)
def test_what_tools_search_for_is_found_however_the_envelope_was_written(
    logs: GatewayLogs, tmp_path: Path, pattern: str
) -> None:
    envelope = msgspec.json.decode(CHAT) | {
        "kind": "stream/open",
        "payload": {"target": ["aggregator"], "authorized_writers": ["publisher"], "active_streams": []},
    }
    wide = msgspec.json.format(msgspec.json.encode(envelope), indent=4)
    assert b"\n" in wide
    logs.delivered(AT, wide, "m1", [("bob", "websocket")], "demo")
    logs.close()
    (line,) = history(tmp_path)
    assert re.search(pattern, line.decode())


@pytest.mark.promise(
    "Capabilities and log files of a gateway",
    "the gateway's log files keep form, order of keys and the sender's bytes",
)
def test_an_envelope_keeps_its_own_spelling(logs: GatewayLogs, tmp_path: Path) -> None:
    odd = b'{"id":"m1","n":1.50e3,"big":123456789012345678901234567890,"t":"\\u0041\\/","id":"m2"}'
    logs.received(AT, odd, "m1", "sam", "demo", "websocket")
    logs.close()
    assert b'"envelope":' + odd + b"," in history(tmp_path)[0]


JOINS = [
    '{"type":"join","space":"demo","token":"TOKEN","participantId":"p1"}',
    '{"protocol":"mew/v0.4","kind":"system/join","payload":{"space":"demo","participantId":"p1","token":"TOKEN"}}',
    '{"kind":"system/join","token":"TOKEN","payload":{"participant":"human","token":"TOKEN"}}',
    '{"kind":"space/invite-ack","to":["sam"],"payload":{"status":"created","participant_id":"x","token":"TOKEN"}}',
    '{"type":"join","\\u0074oken":"TOKEN"}',
    '{"type":"join","token":"TOKEN","token":"TOKEN"}',
    '{ "type" : "join" , "token" :\n "TOKEN" }',
    '{"type":"\\u006aoin","token":"TOKEN"}',
]


@pytest.mark.promise("Capabilities and log files of a gateway", "the log files contain no clear-text token")
@pytest.mark.parametrize("join", JOINS)
def test_no_token_is_written_in_clear(logs: GatewayLogs, tmp_path: Path, join: str) -> None:
    logs.received(AT, join.replace("TOKEN", TOKEN).encode(), "j", "p1", "demo", "websocket")
    logs.close()
    (line,) = history(tmp_path)
    assert TOKEN.encode() not in line and DIGEST.encode() in line
    envelope = msgspec.json.decode(line)["envelope"]
    before = msgspec.json.decode(join.replace("TOKEN", DIGEST))
    assert envelope == before, "and everything else is there"


def test_only_what_hands_over_a_token_is_touched() -> None:
    for envelope in (
        CHAT,
        b'{"kind":"chat","payload":{"token":"x"}}',
        b'{"kind":7,"token":1}',
        b'{"kind":"system/join"}',
    ):
        assert redact(envelope) is envelope
    assert msgspec.json.decode(redact(b'{"type":"join","token":{"a":1},"payload":["token"]}'))["payload"] == ["token"]


@pytest.mark.parametrize(
    "broken", [b'{"token":"x"', b'{"type":"join","token":"\xff"}', b'["token"]', b"[" * 9_000 + b"token"]
)
def test_an_unreadable_message_is_logged_by_its_size(logs: GatewayLogs, tmp_path: Path, broken: bytes) -> None:
    logs.rejected(AT, broken, "", "sam", "demo", "http", "invalid")
    logs.close()
    (line,) = history(tmp_path)
    assert msgspec.json.decode(line)["envelope"] == {"unreadable": len(broken)}


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)
marked = st.sampled_from([TOKEN, f"{TOKEN}é", [TOKEN], {"a": TOKEN}])


@pytest.mark.promise("Capabilities and log files of a gateway", "the log files contain no clear-text token")
@given(
    st.sampled_from(["join", "system/join", "space/invite-ack"]),
    marked,
    values,
    st.binary(max_size=4),
    st.data(),
)
def test_redacting_never_raises_and_never_shows_a_token(
    kind: str, token: Any, other: Any, tail: bytes, data: st.DataObject
) -> None:
    payload = data.draw(st.sampled_from([other, {"token": token}, {"a": other, "token": token}]))
    envelope = data.draw(st.permutations([("kind", kind), ("token", token), ("payload", payload), ("x", other)]))
    text = msgspec.json.encode(dict(envelope))
    assert TOKEN.encode() not in redact(text)
    assert TOKEN.encode() not in redact(text + tail)
    assert TOKEN.encode() not in redact(text[: -1 - len(tail)])


def test_what_has_no_json_does_not_end_the_log(logs: GatewayLogs, tmp_path: Path) -> None:
    logs.received(AT, CHAT, "m1", "half \ud800", "demo", "websocket")
    logs.received(AT, CHAT, "m2", "sam", object(), "websocket")  # type: ignore[arg-type]
    logs.received(AT, CHAT, "m3", "sam", "demo", "websocket")
    logs.close()
    lines = [msgspec.json.decode(line) for line in history(tmp_path)]
    assert [("unprintable" in line, line["event"]) for line in lines] == [
        (True, "received"), (True, "received"), (False, "received"),
    ]  # fmt: skip


SWITCHES: list[tuple[str, Any, dict[str, str], tuple[bool, bool]]] = [
    ("silence", None, {}, (True, True)),
    ("the section", {"enabled": False}, {}, (False, False)),
    ("one of the section", {"envelope_history": {"enabled": False}}, {}, (False, True)),
    ("the other of the section", {"capability_decisions": {"enabled": False}}, {}, (True, False)),
    ("the environment over the section", {"enabled": True}, {"GATEWAY_LOGGING": "off"}, (False, False)),
    ("the environment against the section", {"enabled": False}, {"GATEWAY_LOGGING": "YES"}, (True, True)),
    ("one of the environment", None, {"ENVELOPE_HISTORY": "0"}, (False, True)),
    ("the other of the environment", None, {"CAPABILITY_DECISIONS": " False "}, (True, False)),
    ("all is off whatever one says", None, {"GATEWAY_LOGGING": "no", "ENVELOPE_HISTORY": "on"}, (False, False)),
    ("one word against the section", {"envelope_history": {"enabled": False}}, {"ENVELOPE_HISTORY": "1"}, (True, True)),
    ("a word that is none", None, {"GATEWAY_LOGGING": "perhaps"}, (True, True)),
    ("an empty section", {"envelope_history": None}, {}, (True, True)),
]  # fmt: skip


@pytest.mark.promise("Capabilities and log files of a gateway", "switches turn the log files on and off")
@pytest.mark.parametrize(
    ("section", "environment", "expected"),
    [case[1:] for case in SWITCHES],
    ids=[case[0] for case in SWITCHES],
)
def test_switches(section: Any, environment: dict[str, str], expected: tuple[bool, bool], tmp_path: Path) -> None:
    assert switches(section, environment) == expected
    logs = GatewayLogs(tmp_path / "logs", history=expected[0], decisions=expected[1])
    logs.received(AT, CHAT, "m1", "sam", "demo", "websocket")
    logs.decided(AT, Decision("m1", "sam", "demo", "chat", None, "implicit", (), "websocket"))
    logs.close()
    made = sorted(path.name for path in (tmp_path / "logs").glob("*.jsonl"))
    assert made == [
        name for name, on in zip(("capability-decisions.jsonl", "envelope-history.jsonl"), expected[::-1], strict=True) if on
    ]  # fmt: skip
    assert (tmp_path / "logs").exists() == any(expected)


def test_the_directory_stays_out_of_repositories(logs: GatewayLogs, tmp_path: Path) -> None:
    assert (tmp_path / "logs" / ".gitignore").read_text() == "*\n!.gitignore\n"
    assert (tmp_path / "logs" / "envelope-history.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.promise("Capabilities and log files of a gateway", "the log files rotate and never block the loop")
def test_files_are_put_aside_by_size_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "LINGER_S", 0)
    logs = GatewayLogs(tmp_path, history=True, decisions=False, max_bytes=2_000, keep=2)
    assert logs._history is not None
    for n in range(50):
        logs.received(AT, CHAT, f"m{n}", "sam", "demo", "websocket")
        drain(logs._history)  # one write each
    logs.close()
    names = sorted(path.name for path in tmp_path.glob("*.jsonl*"))
    assert names == [f"envelope-history.jsonl{end}" for end in ("", ".1", ".2")]
    kept = [
        msgspec.json.decode(line)["id"]
        for name in reversed(names)
        for line in (tmp_path / name).read_bytes().splitlines()
    ]
    assert kept == [f"m{n}" for n in range(50 - len(kept), 50)] and len(kept) < 50
    assert all((tmp_path / name).stat().st_size <= 2_000 for name in names)


@pytest.mark.promise("Capabilities and log files of a gateway", "the log files rotate and never block the loop")
@pytest.mark.parametrize(("bound", "value"), [("WAITING_MAX", 50), ("WAITING_BYTES_MAX", 50 * len(CHAT))])
def test_what_does_not_fit_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    """The disk stands still: the loop goes on, what waits is bounded, and the file says what is missing."""
    stuck = threading.Event()
    real = os.write

    def slow(file: int, data: Any) -> int:
        stuck.wait(10)
        return real(file, data)

    monkeypatch.setattr(gateway_logs if bound == "WAITING_MAX" else line_writer, bound, value)
    monkeypatch.setattr(os, "write", slow)
    logs = GatewayLogs(tmp_path / "logs", history=True, decisions=False)
    for n in range(100):
        logs.delivered(AT, CHAT, f"m{n}", [(name, "websocket") for name in "abcde"], "demo")
    assert logs.dropped >= 350
    stuck.set()
    logs.close()
    *lines, report = [msgspec.json.decode(line) for line in history(tmp_path)]
    assert report["event"] == "log.dropped" and report["total"] == logs.dropped
    assert len(lines) + logs.dropped == 500


@pytest.mark.promise("Capabilities and log files of a gateway", "the log files rotate and never block the loop")
def test_one_write_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "LINGER_S", 600.0)
    sizes: list[int] = []
    real = os.write

    def measured(file: int, data: Any) -> int:
        sizes.append(len(data))
        return real(file, data)

    monkeypatch.setattr(os, "write", measured)
    log = OutputLog(tmp_path / "out.log")
    big = msgspec.json.encode({"text": "x" * 1_000_000})
    for _ in range(30):
        log.envelope(big)
    log.close()
    assert sum(sizes) == (tmp_path / "out.log").stat().st_size == 30 * (len(big) + 1)
    assert max(sizes) < 10_000_000


@pytest.mark.promise(
    "Capabilities and log files of a gateway", "a virtual participant's file has everything it would receive"
)
def test_a_virtual_participant_has_everything_it_would_receive(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "bot.log"
    log = OutputLog(path)
    log.envelope(b'{ "kind": "chat",\n "payload": {"text": "hi"} }')
    log.frame(b"#stream-1#\x00\xff\n")
    log.envelope(b'{"kind":"space/invite-ack","payload":{"token":"mine"}}')
    log.close()
    assert path.read_bytes().splitlines() == [
        b'{"kind":"chat","payload":{"text":"hi"}}',
        b'{"type":"Buffer","data":[35,115,116,114,101,97,109,45,49,35,0,255,10]}',
        b'{"kind":"space/invite-ack","payload":{"token":"mine"}}',
    ]


def test_an_old_file_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "bot.log"
    path.write_bytes(b'{"kind":"before"}\n')
    log = OutputLog(path)
    log.envelope(b'{"kind":"after"}')
    log.close()
    assert path.read_bytes() == b'{"kind":"before"}\n{"kind":"after"}\n'
