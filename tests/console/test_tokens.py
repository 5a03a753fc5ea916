"""The console's verifier of token streams agrees with the reader in Python, message for message, under every attack.

All cases go through one process of Node. The result of Python's reader is the expectation.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
from typing import Any

import msgspec
import pytest

from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.decode import read_block, read_chunk, read_payload
from penstock.dialects.streamservice.keys import StreamKeys, Suite, derive
from penstock.dialects.streamservice.messages import Complete, Heartbeat, Payload, StreamFailure, Token
from penstock.dialects.streamservice.verify_stream import StreamVerifier
from penstock.dialects.streamservice.wire import FrameFault
from tests.dialects.streamservice.attacker import Attacker, keys_of, script
from tests.dialects.streamservice.reference import (
    built_block,
    built_chunk,
    built_payload,
    far_pointer,
    frame_of,
    list_pointer,
    scattered,
    struct_pointer,
)
from tests.paths import ROOT

CONSOLE = ROOT / "console"
Parts = tuple[bytes, ...]

pytestmark = pytest.mark.usefixtures("console_tools")

STORY: list[Payload] = [Token("Once"), Token(" upon"), Heartbeat(), Token(" a time…"), Token(" ∎")]
END = Complete(tokens=4, finish_reason="stop", generation_ms=120, tokens_per_second=33.5, perplexity=3.25, entropy=0.5)


def verify_in_console(streams: list[dict[str, Any]], frames: list[bytes] | None = None) -> dict[str, Any]:
    """The results of the console's verifier."""
    cases = {"streams": streams, "frames": [frame.hex() for frame in frames or []]}
    done = subprocess.run(
        ["node", "--import", "tsx", "test/verify_cases.ts"],
        cwd=CONSOLE,
        input=json.dumps(cases).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def published(keys: StreamKeys, payloads: list[Payload], form: str, size: int = 1) -> list[Parts]:
    """The messages of a stream as a relay sends them."""
    topic = keys.topic.encode()
    if form == "chunk":
        chunks = ChainedStreamHmac(keys.mac_key, keys.topic, keys.suite)
        out: list[Parts] = []
        for payload in payloads:
            data, prev = encode.payload(payload), chunks.prev
            out.append((topic + encode.chunk(topic, data, chunks.compute_next(data), prev),))
        return out
    blocks = BlockChain(keys.mac_key, keys.topic, keys.suite)
    parts = []
    for at in range(0, len(payloads), size):
        frame = encode.block(blocks.prev, payloads[at : at + size])
        parts.append((topic, frame, blocks.compute_next(frame)))
    return parts


def on_socket(parts: Parts, topic: bytes) -> str | None:
    """The WebSocket message that the server makes from a relay message; None if it forwards nothing."""
    if not parts or parts[0][:64] != topic:
        return None
    if len(parts) == 2:
        return "gone:" + parts[1][1:].hex()
    return (parts[0][64:] if len(parts) == 1 else b"".join(parts[1:])).hex()


def off_socket(message: str, topic: bytes) -> Parts:
    """The relay message of a WebSocket message, for the Python reader."""
    if message.startswith("gone:"):
        return (topic, b"\x03" + bytes.fromhex(message[5:]))
    whole = bytes.fromhex(message)
    count = int.from_bytes(whole[:4], "little") + 1
    table = -(-(4 + 4 * count) // 8) * 8
    if len(whole) < 16 or count > 512 or table > len(whole):
        return (b"",)
    words = (int.from_bytes(whole[4 + 4 * at : 8 + 4 * at], "little") for at in range(count))
    size = table + 8 * sum(words)
    if size == len(whole):
        return (topic + whole,)
    return (topic, whole[:size], whole[size:]) if size + 16 == len(whole) else (b"",)


def stream(keys: StreamKeys, messages: list[str], **more: Any) -> dict[str, Any]:
    return {
        "topic": keys.topic,
        "key": keys.mac_key.hex(),
        "suite": keys.suite,
        "messages": messages,
        **more,
    }


def shown(payload: Payload) -> dict[str, Any]:
    """A payload as the console represents it."""
    match payload:
        case Token():
            return {"kind": "token", "text": payload.text}
        case Heartbeat():
            return {"kind": "heartbeat"}
        case StreamFailure():
            return {
                "kind": "failure",
                "message": payload.message,
                "code": payload.code,
                "details": payload.details,
            }
        case Complete():
            plain = {
                "tokens": payload.tokens,
                "finishReason": payload.finish_reason,
                "generationMs": payload.generation_ms,
                "tokensPerSecond": payload.tokens_per_second,
                "perplexity": payload.perplexity,
                "entropy": payload.entropy,
            }
            return {"kind": "complete"} | {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in plain.items()
            }


def expected(keys: StreamKeys, messages: list[str]) -> dict[str, Any]:
    """The result of the Python reader for a stream."""
    follower = StreamVerifier(0, keys)
    given: list[Payload] = []
    for message in messages:
        given += follower.take(0, off_socket(message, keys.topic.encode()))
    counts = msgspec.structs.asdict(follower.counts)
    ending = follower.ending
    return {
        "given": [shown(payload) for payload in given],
        "ending": shown(ending) if isinstance(ending, Complete | StreamFailure) else ending and type(ending).__name__,
        "counts": counts,
    }


def normalize(answer: dict[str, Any]) -> dict[str, Any]:
    """The console's result in the same form."""
    ending = answer["ending"]
    if ending is not None and ending["kind"] not in ("complete", "failure"):
        ending = ending["kind"].capitalize()
    return {"given": answer["given"], "ending": ending, "counts": answer["counts"]}


@pytest.mark.promise(
    "Console",
    "the console's verifier of token streams agrees with the reader in Python under every attack",
)
def test_the_console_reads_what_python_reads_under_attack() -> None:
    streams: list[dict[str, Any]] = []
    wanted: list[dict[str, Any]] = []
    for seed in range(60):
        dice = random.Random(f"console {seed}")
        keys = keys_of(seed)
        topic = keys.topic.encode()
        payloads = [payload for payload in script(dice) if payload is not None]
        parts = published(keys, payloads, dice.choice(("chunk", "block")), dice.randint(1, 4))
        attacker = Attacker(dice, keys, dice.choice((0.0, 0.02, 0.3)), is_mild=False)
        passed: list[Parts] = []
        for at, each in enumerate(parts):
            passed += attacker.pass_on(each, is_to_reader=True)
            if dice.random() < 0.3:  # the relay replays
                passed += parts[max(0, at - 5) : at + 1]
        messages = [text for each in passed if (text := on_socket(each, topic)) is not None]
        streams.append(stream(keys, messages))
        wanted.append(expected(keys, messages))
    answers = verify_in_console(streams)["streams"]
    for seed, (answer, want) in enumerate(zip(answers, wanted, strict=True)):
        assert normalize(answer) == want, seed
    endings = {str(want["ending"] and type(want["ending"])) for want in wanted}
    assert len(endings) == 2  # some streams ended, others did not
    assert sum(want["counts"]["tampered"] for want in wanted) > 15
    assert sum(want["counts"]["ahead"] for want in wanted) > 50


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    """Streams with one fault each, by name."""
    made: dict[str, dict[str, Any]] = {}
    for suite in ("sha256", "blake3"):
        for form in ("chunk", "block"):
            made.update(damaged(suite, form))  # type: ignore[arg-type]
    answers = verify_in_console(list(made.values()))["streams"]
    return dict(zip(made, answers, strict=True))


def damaged(suite: Suite, form: str) -> dict[str, dict[str, Any]]:
    keys, other = (derive(bytes([seed]) * 32, b"\x01" * 32, b"\x02" * 32, suite) for seed in (7, 8))
    assert isinstance(keys, StreamKeys)
    assert isinstance(other, StreamKeys)
    wrong = msgspec.structs.replace(keys, mac_key=other.mac_key)
    swapped_suite = msgspec.structs.replace(keys, suite="blake3" if suite == "sha256" else "sha256")
    topic = keys.topic.encode()
    good = [on_socket(each, topic) or "" for each in published(keys, [*STORY, END], form)]
    failed = [on_socket(each, topic) or "" for each in published(keys, [*STORY, StreamFailure("x", "cancelled")], form)]
    at = good[2].rindex(b"upon".hex()) if b"upon".hex() in good[2] else good[1].rindex(b"upon".hex())
    tampered = [*good]
    tampered[1] = good[1][:at] + b"down".hex() + good[1][at + 8 :]
    streams = {
        "good": stream(keys, good),
        "cancelled": stream(keys, failed),
        "tampered": stream(keys, tampered),
        "swapped": stream(keys, [good[0], good[2], good[1], *good[3:]]),
        "missing": stream(keys, [*good[:2], *good[3:]]),
        "missing, then sent again": stream(keys, [*good[:2], *good[3:], *good[2:]]),
        "wrong key": stream(wrong, good),
        "wrong suite": stream(swapped_suite, good),
        "truncated": stream(keys, good[:-1]),
        "replayed": stream(keys, [*good[:3], *good[:3], *good[1:]]),
        "cut short": stream(keys, [*good[:2], good[2][:-2], *good[2:]]),
        "late": stream(keys, good[2:]),
        "late, then skipping": stream(keys, good[2:], skip=True),
        "a gap, then skipping": stream(keys, [*good[:2], *good[3:]], skip=True),
        "wrong key, then skipping": stream(wrong, good, skip=True),
    }
    return {f"{name}, {form}, {suite}": each for name, each in streams.items()}


FORMS = [f"{form}, {suite}" for form in ("chunk", "block") for suite in ("sha256", "blake3")]
WHOLE = [shown(payload) for payload in STORY]


@pytest.mark.promise(
    "Console",
    "it shows only what the chain proves, in both formats and suites, and reports errors",
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "given", "ending"),
    [
        ("good", WHOLE, "complete"),
        ("cancelled", WHOLE, "failure"),
        ("tampered", WHOLE[:1], None),
        ("swapped", WHOLE[:2], None),
        ("missing", WHOLE[:2], None),
        ("missing, then sent again", WHOLE, "complete"),
        ("wrong key", [], None),
        ("wrong suite", [], None),
        ("truncated", WHOLE, None),
        ("replayed", WHOLE, "complete"),
        ("cut short", WHOLE, "complete"),
        ("late", [], None),
        ("late, then skipping", [{"kind": "skipped"}, *WHOLE[2:]], "complete"),
        ("a gap, then skipping", [*WHOLE[:2], {"kind": "skipped"}, *WHOLE[3:]], "complete"),
        ("wrong key, then skipping", [], None),
    ],
)
def test_only_verified_payloads_are_returned(
    cases: dict[str, dict[str, Any]], name: str, given: list[Any], ending: str | None, form: str
) -> None:
    answer = cases[f"{name}, {form}"]
    assert answer["given"] == given
    assert (answer["ending"] and answer["ending"]["kind"]) == ending


@pytest.mark.promise(
    "Console",
    "it shows only what the chain proves, in both formats and suites, and reports errors",
)
def test_faults_are_counted_by_kind(cases: dict[str, dict[str, Any]]) -> None:
    for form in FORMS:
        assert cases[f"replayed, {form}"]["counts"]["duplicates"] == 5
        assert cases[f"tampered, {form}"]["counts"]["tampered"] == 1
        assert cases[f"missing, {form}"]["doubtful"] == 3
        assert cases[f"missing, then sent again, {form}"]["doubtful"] == 0
        assert cases[f"wrong key, {form}"]["counts"]["accepted"] == 0
        assert cases[f"truncated, {form}"]["doubtful"] == 0


def hostile() -> list[bytes]:
    """Messages with bad pointers, or with a traversal cost far above their size."""
    block = struct_pointer(0, 0, 2)
    nothing = bytes(8)
    many = (2**29 - 1 << 2).to_bytes(8, "little")  # a huge number of zero-size structs
    return [
        frame_of(block + list_pointer(-3, 2, 8) + nothing),
        frame_of(nothing, block + list_pointer(-4, 2, 8) + nothing),
        frame_of(far_pointer(1, 0), struct_pointer(-2, 0, 1)),
        frame_of(far_pointer(1, 0), block + nothing + list_pointer(-4, 7, 1)),
        frame_of(far_pointer(1, 9), block + nothing * 2),
        frame_of(far_pointer(7, 0), block + nothing * 2),
        frame_of(far_pointer(0, 0)),
        frame_of(far_pointer(1, 0, double=True), far_pointer(0, 0) + nothing),
        frame_of(far_pointer(1, 0, double=True), far_pointer(0, 1) + struct_pointer(0, 0, 2)),
        frame_of(b"\x03" + bytes(7)),
        frame_of(nothing),
        frame_of(b""),
        frame_of(block + nothing + list_pointer(0, 7, 0) + many),
        frame_of(block + nothing + list_pointer(0, 7, 0) + (40 << 2).to_bytes(8, "little")),
        frame_of(block + nothing + list_pointer(-2, 7, 1)),
        frame_of(block + list_pointer(1, 2, 2**29 - 1) + nothing),
        *(frame_of(*[struct_pointer(0, 0, 0)] * count) for count in (2, 511, 512, 513)),
        b"",
        bytes(8),
        b"\xff" * 64,
    ]


@pytest.mark.promise(
    "Console",
    "the console's verifier of token streams agrees with the reader in Python under every attack",
)
def test_untrusted_messages_are_decoded_as_in_python() -> None:
    """Messages in several segments, with flipped bits and truncations: same values, same reasons."""
    dice = random.Random("console frames")
    frames = hostile()
    for _ in range(150):
        payloads = [dice.choice([*STORY, END, StreamFailure("m", "c", "d")]) for _ in range(dice.randrange(5))]
        frame = dice.choice(
            [
                built_block(dice.randbytes(16), payloads),
                built_payload(dice.choice([*STORY, END])),
                built_chunk("ab" * 32, built_payload(END), bytes(32), dice.choice((b"", bytes(32)))),
            ]
        )
        whole = [frame, scattered(frame, dice, dice.randint(2, 5))]
        frames += whole
        for _ in range(4):
            broken = bytearray(dice.choice(whole))
            for _ in range(dice.randint(1, 3)):
                broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
            frames.append(bytes(broken[: dice.choice((len(broken), dice.randrange(len(broken))))]))
    answers = verify_in_console([], frames)["frames"]
    faults = 0
    for frame, answer in zip(frames, answers, strict=True):
        payload, block, chunk = read_payload(frame), read_block(frame), read_chunk(frame)
        faults += isinstance(block, FrameFault)
        assert answer["payload"] == (
            {"kind": "fault", "reason": payload.reason} if isinstance(payload, FrameFault) else shown(payload)
        )
        assert answer["block"] == (
            {"kind": "fault", "reason": block.reason}
            if isinstance(block, FrameFault)
            else [shown(each) for each in block.payloads]
        )
        if not isinstance(chunk, FrameFault) and chunk.topic.isascii():  # a topic is always ASCII
            assert answer["chunk"] == chunk.data.hex()
        else:
            assert answer["chunk"]["kind"] == "fault"
    assert 100 < faults < len(frames) - 100
