"""A token stream under attack on a virtual clock: a publisher, a relay, a reader, and an attacker in between.

The attacker controls both directions, sees everything but the keys, and may drop, repeat, delay, change, forge and record. `attack`
runs one stream to its end and checks the promise: the reader receives a prefix of what was sent, a stream that reports completion is
complete, and everything else is a typed error. `mildly` is an attacker that lets enough through for the stream to complete, which it must.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256

from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.chain import BlockChain
from penstock.dialects.streamservice.compose_stream import Composer, RetentionOptions
from penstock.dialects.streamservice.decode import read_chunk
from penstock.dialects.streamservice.keys import StreamKeys, derive
from penstock.dialects.streamservice.messages import Complete, Heartbeat, StreamFailure, Token
from penstock.dialects.streamservice.verify_stream import (
    Format,
    Gap,
    RetryOptions,
    StreamVerifier,
    Tampered,
    Truncated,
)
from penstock.dialects.streamservice.wire import Chunk, FrameFault, peek

Parts = tuple[bytes, ...]
STEP_US = 10_000
STEPS_MAX = 12_000
CUT_STEP = 4_000
"""From here on an attacker who is not mild lets nothing through, so that a stream which barely moves comes to an end."""
ENDINGS = (Complete, StreamFailure, Gap, Tampered, Truncated)


class Broken(AssertionError):  # noqa: N818 - says what was broken
    """A promise that was not kept."""


def keys_of(seed: object) -> StreamKeys:
    secret = [sha256(f"{seed} {part}".encode()).digest() for part in ("shared", "one", "other")]
    keys = derive(secret[0], secret[1], secret[2])
    assert isinstance(keys, StreamKeys)
    return keys


class ModelRelay:
    """What a relay does, with a memory of so many messages."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.kept: list[Parts] = []

    def take(self, parts: Parts) -> list[Parts]:
        if len(parts) == 1:
            found = peek(parts[0])
            if not isinstance(found, Chunk):
                return []
            parts = (found.topic + parts[0],)
        elif len(parts) != 3 or len(parts[2]) != 16:
            return []
        self.kept.append(parts)
        del self.kept[: -self.memory]
        return [parts]

    def resume(self, topic: bytes, mark: bytes | None) -> list[Parts]:
        if mark is None:
            return list(self.kept)
        # The first of several: after a copy that was sent later, the following messages may be missing.
        for index, parts in enumerate(self.kept):
            if mark_of(parts) == mark:
                return self.kept[index + 1 :]
        return [(topic, b"\x03" + mark)]


def mark_of(parts: Parts) -> bytes | None:
    if len(parts) == 3:
        return parts[2]
    found = peek(parts[0][64:]) if len(parts) == 1 else None
    return found.mac if isinstance(found, Chunk) else None


class Attacker:
    """An attacker in between. `strength` is the share of messages it touches."""

    def __init__(self, dice: random.Random, keys: StreamKeys, strength: float, *, is_mild: bool) -> None:
        self._dice = dice
        self._topic = keys.topic.encode()
        self._other = keys_of("somebody else's")
        self._strength = strength
        self._is_mild = is_mild
        self._recorded: list[Parts] = []
        self._delayed: list[Parts] = []
        self.cut_after = dice.randrange(200) if not is_mild and dice.random() < 0.2 else None
        """Messages after which nothing gets to the reader."""

    def pass_on(self, parts: Parts, *, is_to_reader: bool) -> list[Parts]:
        """What arrives instead of a message."""
        dice = self._dice
        if is_to_reader and self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                return []
        if len(self._recorded) < 500:
            self._recorded.append(parts)
        out: list[Parts] = []
        if dice.random() >= self._strength:
            out.append(parts)
        elif self._is_mild and not is_to_reader:
            out.append(parts)  # a message that no relay ever got cannot be had again
        else:
            out += self._touch(parts)
        if self._delayed and dice.random() < 0.5:
            out.append(self._delayed.pop(dice.randrange(len(self._delayed))))
        if dice.random() < self._strength / 4:
            out.append(self._forge())
        return out

    def _touch(self, parts: Parts) -> list[Parts]:
        match self._dice.choice(("drop", "repeat", "delay", "flip", "cut", "swap", "link")):
            case "drop":
                return []
            case "repeat":
                return [parts] * self._dice.randint(2, 5)
            case "delay":
                self._delayed.append(parts)
                return []
            case "flip":
                return [self._flip(parts)]
            case "cut":
                at = self._dice.randrange(len(parts))
                size = self._dice.randrange(len(parts[at]) + 1)
                return [(*parts[:at], parts[at][:size], *parts[at + 1 :])]
            case "swap":
                return [self._other_form(parts)]
            case _:
                return [self._relink(parts)]

    def _flip(self, parts: Parts) -> Parts:
        at = self._dice.randrange(len(parts))
        part = bytearray(parts[at])
        if part:
            part[self._dice.randrange(len(part))] ^= 1 << self._dice.randrange(8)
        return (*parts[:at], bytes(part), *parts[at + 1 :])

    def _other_form(self, parts: Parts) -> Parts:
        """A chunk as a block with its MAC cut short, or the other way round."""
        if len(parts) == 1:
            chunk = read_chunk(parts[0][64:])
            if isinstance(chunk, FrameFault):
                return parts
            return (self._topic, chunk.data, chunk.mac[:16])
        if len(parts) == 3 and len(parts[2]) == 16:
            return (self._topic + encode.chunk(self._topic, parts[1], parts[2] * 2, b""),)
        return parts

    def _relink(self, parts: Parts) -> Parts:
        """The same data with another message's MACs."""
        mark = self._dice.choice(self._recorded)
        if len(parts) == 3 and len(mark) == 3:
            return (parts[0], parts[1], mark[2])
        if len(parts) == 1 and len(mark) == 1:
            one, other = read_chunk(parts[0][64:]), read_chunk(mark[0][64:])
            if not isinstance(one, FrameFault) and not isinstance(other, FrameFault):
                return (self._topic + encode.chunk(self._topic, one.data, other.mac, other.prev),)
        return parts

    def _forge(self) -> Parts:
        """A message of our own: a copy, one under another key, a negative answer, or noise."""
        dice = self._dice
        kind = dice.choice(("copy", "block", "chunk", "gone", "noise", "next"))
        if kind == "copy" and self._recorded:
            return dice.choice(self._recorded)
        lie = [Token("a lie"), Complete(tokens=1)][: dice.randint(1, 2)]
        if kind == "block":
            frame = encode.block(dice.choice((self._topic[:16], dice.randbytes(16))), lie)
            return (
                self._topic,
                frame,
                BlockChain(self._other.mac_key, self._other.topic).compute_next(frame),
            )
        if kind == "next" and self._recorded and len(last := dice.choice(self._recorded)) == 3:
            return (self._topic, encode.block(last[2][:16].ljust(16), lie), dice.randbytes(16))
        if kind == "chunk":
            data = encode.payload(lie[0])
            prev = dice.choice((b"", dice.randbytes(32)))
            return (self._topic + encode.chunk(self._topic, data, dice.randbytes(32), prev),)
        if kind == "gone":
            known = mark_of(dice.choice(self._recorded)) if self._recorded else None
            return (self._topic, b"\x03" + (known or b""))
        return tuple(dice.randbytes(dice.randrange(200)) for _ in range(dice.randrange(5)))


def script(dice: random.Random) -> Iterator[Token | Heartbeat | Complete | StreamFailure | None]:
    """What a publisher says, with pauses; the end is always there."""
    for number in range(dice.randrange(120)):
        yield Token(f"{number} " + "x" * dice.choice((0, 1, 8, 40)))
        if dice.random() < 0.2:
            for _ in range(dice.randrange(20)):
                yield None
        if dice.random() < 0.05:
            yield Heartbeat()
    yield (Complete(tokens=7, finish_reason="length") if dice.random() < 0.8 else StreamFailure("no", "internal"))


def attack(seed: int, *, is_mild: bool = False) -> str:
    """One stream under attack, to its end; returns what happened, for comparison."""
    dice = random.Random(seed)
    keys = keys_of(seed)
    form: Format = dice.choice(("chunk", "block"))
    strength = dice.choice((0.0, 0.05, 0.3)) if is_mild else dice.choice((0.05, 0.3, 0.6, 0.95))
    attacker = Attacker(dice, keys, strength, is_mild=is_mild)
    relay = ModelRelay(10_000 if is_mild else dice.choice((3, 50, 1_000)))
    now_us = dice.randrange(10**9)
    composer = Composer(now_us, keys, format=form, keeping=RetentionOptions(sent_max=dice.choice((5, 1_000))))
    follower = StreamVerifier(now_us, keys, RetryOptions(resume_tries_max=8), jitter=dice.random())
    said: list[Token] = []
    end: Complete | StreamFailure | None = None
    heard: list[str] = []
    lines = script(dice)
    is_up = True
    accepted = 0

    def deliver(messages: list[Parts]) -> None:
        for message in messages:
            for parts in attacker.pass_on(message, is_to_reader=True):
                payloads = follower.take(now_us, parts)
                heard.extend(payload.text for payload in payloads if isinstance(payload, Token))

    for step in range(STEPS_MAX):
        if step == CUT_STEP and not is_mild:
            attacker.cut_after = 0
        now_us += dice.randrange(STEP_US)
        line = next(lines, None)
        if line is not None and composer.add(now_us, line):
            if isinstance(line, Token):
                said.append(line)
            elif not isinstance(line, Heartbeat):
                end = line
        composer.step(now_us)
        if dice.random() < 0.02:
            is_up = not is_up
            if is_up:
                composer.again()
        while is_up and (parts := composer.next()) is not None:
            if dice.random() < 0.1:
                break  # a send that fails is tried again later
            composer.sent()
            for arrived in attacker.pass_on(parts, is_to_reader=False):
                deliver(relay.take(arrived))
        ask = follower.step(now_us)
        if ask is not None and (is_mild or dice.random() < 0.7):
            deliver(relay.resume(keys.topic.encode(), ask.mark))
        if dice.random() < 0.01:
            follower.reconnected(now_us)
        if follower.counts.accepted > accepted or follower.ending is not None:
            accepted = follower.counts.accepted
            check(heard, said, end, follower)
        if follower.ending is not None:
            break
    else:
        raise Broken("the reader never came to an end")
    if is_mild and type(follower.ending) is not type(end):
        raise Broken(f"a mild attack ended the stream with {follower.ending}")
    return repr((heard, follower.ending, follower.counts, now_us))


def check(heard: list[str], said: list[Token], end: Complete | StreamFailure | None, follower: StreamVerifier) -> None:
    """The promise, at every moment."""
    if len(heard) > len(said) or heard != [token.text for token in said[: len(heard)]]:
        raise Broken("the reader was given what is not a beginning of what was sent")
    ending = follower.ending
    if ending is None:
        return
    if not isinstance(ending, ENDINGS):
        raise Broken(f"the stream ended with {ending}, which nobody caused")
    if isinstance(ending, Complete | StreamFailure):
        if type(ending) is not type(end):
            raise Broken(f"the reader was told {ending}, which was not said")
        if len(heard) != len(said):
            raise Broken("the stream seems to be whole, and is not")
