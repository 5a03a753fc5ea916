"""Token streams from journal rows, without Spark: their extent, and what their chain proves."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.messages import Complete, Heartbeat, Payload, StreamFailure, Token
from penstock.spark.lake_tables.stream_state import TokenEvent, TokenStreamRow, fold
from penstock.spark.lake_tables.verification_keys import TokenKey, topic_hash

TOPIC = "0f" * 32
KEY = TokenKey(TOPIC, b"\x07" * 32)
HASH = topic_hash(TOPIC)
SECOND_US = 1_000_000


@dataclass
class Tale:
    """Rows of one topic, a second apart."""

    rows: list[TokenEvent] = field(default_factory=list)
    chunks: ChainedStreamHmac = field(default_factory=lambda: ChainedStreamHmac(KEY.mac_key, TOPIC))
    blocks: BlockChain = field(default_factory=lambda: BlockChain(KEY.mac_key, TOPIC))

    def add(self, event: str, **more: object) -> None:
        place = len(self.rows)
        self.rows.append(TokenEvent("j", HASH, place, place * SECOND_US, event, **more))  # type: ignore[arg-type]

    def counts(self, chunks: int, **more: int) -> None:
        meta = msgspec.json.encode({"chunks": chunks, **more}).decode()
        self.add("chunk_counts", format="chunk", size=100 * chunks, meta=meta)

    def chunk(self, payload: Payload) -> bytes:
        """A chunk of the publisher, which is journaled."""
        data = encode.payload(payload)
        prev = self.chunks.prev
        frame = encode.chunk(TOPIC.encode(), data, self.chunks.compute_next(data), prev)
        self.add("chunk", format="chunk", body=frame)
        return frame

    def block(self, *payloads: Payload) -> None:
        frame = encode.block(self.blocks.prev, payloads)
        self.add("chunk", format="block", body=frame + self.blocks.compute_next(frame))

    def fold(self, key: TokenKey | None = None) -> list[TokenStreamRow]:
        return fold(self.rows, None, key)

    def one(self, key: TokenKey | None = None) -> dict:
        [stream] = self.fold(key)
        return stream.row()


@pytest.mark.promise("Spark: pipeline", "`token_chunks` and `token_streams` do not depend on how rows are batched")
def test_without_keys_a_stream_is_what_was_counted():
    tale = Tale()
    tale.add("register", meta='{"exp":1,"signer":"s"}')
    tale.add("subscribe")
    tale.counts(40)
    tale.add("register")  # it is renewed
    tale.counts(60, replayed=5, lost=2)
    tale.add("resume", meta='{"found":true,"messages":5}')
    tale.add("resume", meta='{"found":false,"messages":0}')
    tale.add("expire", reason="expired")
    tale.counts(10)
    made = tale.one()
    assert made == made | {
        "started_at": 0,
        "ended_at": 7 * SECOND_US,
        "ended": "expired",
        "chunks": 110,
        "bytes": 11_000,
        "chunks_per_s": 110 / 8,
        "resumes": 2,
        "replayed": 5,
        "lost": 2,
        "gaps": 2,
        "max_gap_ms": 4_000.0,
        "journaled": 0,
    }
    assert made["tokens"] is made["chain_ok"] is made["forged"] is made["mark"] is None


@pytest.mark.promise("Spark: pipeline", "`token_chunks` and `token_streams` do not depend on how rows are batched")
def test_another_registration_is_another_stream_and_one_that_ends_early_was_unregistered():
    tale = Tale()
    tale.add("register")
    tale.add("expire", reason="idle")
    tale.add("register")
    tale.counts(1)
    first, second = tale.fold()
    assert (first.ended, first.chunks, first.started_at) == ("unregistered", 0, 0)
    assert (second.ended, second.chunks, second.started_at) == ("open", 1, 2 * SECOND_US)


def test_chunks_are_checked_and_their_tokens_counted():
    tale = Tale()
    tale.add("register")
    for text in ("a", "b", "c"):
        tale.chunk(Token(text))
    tale.chunk(Heartbeat())
    tale.chunk(Complete(3, "length", perplexity=2.5, entropy=0.5))
    tale.counts(5)
    tale.add("expire", reason="unsubscribed")
    made = tale.one(KEY)
    assert made == made | {
        "tokens": 3,
        "tokens_per_s": 3 / 5,
        "finish_reason": "length",
        "perplexity": 2.5,
        "entropy": 0.5,
        "chain_ok": True,
        "forged": 0,
        "breaks": 0,
        "ended": "complete",
        "ended_at": 5 * SECOND_US,
        "expired_at": 7 * SECOND_US,
        "journaled": 5,
        "chunks": 5,
        "max_gap_ms": 1_000.0,
    }


def test_blocks_are_checked_too_and_the_first_end_counts():
    tale = Tale()
    tale.add("register")
    tale.block(Token("a"), Token("b"))
    tale.block(Token("c"), StreamFailure("no memory", "internal"))
    tale.block(Complete(3))
    made = tale.one(KEY)
    assert (made["tokens"], made["ended"], made["finish_reason"]) == (3, "error", "error")
    assert made["chain_ok"] and made["ended_at"] == 2 * SECOND_US


@pytest.mark.promise(
    "Spark: pipeline",
    "with keys, tokens and endings are counted, and an audit of whole chains detects forged, lost and moved messages",
)
@pytest.mark.parametrize("harm", ["flip", "other key", "other topic", "cut", "nothing"])
def test_forged_messages_are_recognised_and_left_out(harm):
    tale = Tale()
    tale.add("register")
    good = tale.chunk(Token("a"))
    other = ChainedStreamHmac(b"\x08" * 32, TOPIC, state=tale.chunks.state)
    data = encode.payload(Token("evil"))
    forged = {
        "flip": good[:-1] + bytes([good[-1] ^ 1]),
        "other key": encode.chunk(TOPIC.encode(), data, other.next_mac(data), other.prev),
        "other topic": good.replace(TOPIC.encode(), b"1f" * 32),
        "cut": good[:-40],
        "nothing": b"",
    }[harm]
    tale.add("chunk", format="chunk", body=forged)
    tale.chunk(Token("b"))
    made = tale.one(KEY)
    assert (made["tokens"], made["forged"], made["breaks"], made["chain_ok"]) == (2, 1, 0, False)


@pytest.mark.promise(
    "Spark: pipeline",
    "with keys, tokens and endings are counted, and an audit of whole chains detects forged, lost and moved messages",
)
def test_a_message_that_the_journal_lacks_is_a_break_and_one_that_came_twice_is_none():
    tale = Tale()
    tale.add("register")
    tale.chunk(Token("a"))
    tale.rows.append(tale.rows[-1])
    tale.chunk(Token("b"))
    assert tale.one(KEY)["chain_ok"] is True
    del tale.rows[-1]
    tale.chunk(Token("c"))
    made = tale.one(KEY)
    assert (made["tokens"], made["forged"], made["breaks"], made["chain_ok"]) == (2, 0, 1, False)


@pytest.mark.promise(
    "Spark: pipeline",
    "with keys, tokens and endings are counted, and an audit of whole chains detects forged, lost and moved messages",
)
def test_messages_that_moved_are_seen():
    tale = Tale()
    for text in "abcd":
        tale.block(Token(text))
    tale.rows[1], tale.rows[2] = tale.rows[2], tale.rows[1]
    assert tale.one(KEY)["breaks"] == 3


@st.composite
def tales(draw: st.DrawFn) -> Tale:
    tale = Tale()
    steps = st.sampled_from(["register", "expire", "counts", "chunk", "block", "end", "resume", "forged", "subscribe"])
    for step in draw(st.lists(steps, max_size=25)):
        match step:
            case "counts":
                tale.counts(draw(st.integers(0, 300)), lost=draw(st.integers(0, 2)))
            case "chunk":
                tale.chunk(Token("a"))
            case "block":
                tale.block(Token("a"), Token("b"))
            case "end":
                tale.chunk(Complete(1))
            case "resume":
                tale.add("resume", meta='{"found":false}')
            case "forged":
                tale.add("chunk", format="block", body=b"x" * 40)
            case _:
                tale.add(step, reason="expired")
    return tale


@pytest.mark.promise("Spark: pipeline", "`token_chunks` and `token_streams` do not depend on how rows are batched")
@given(tales(), st.lists(st.integers(0, 25), max_size=4))
def test_any_way_of_cutting_the_rows_gives_the_same_streams(tale, cuts):
    whole = [stream.row() for stream in tale.fold(KEY)]
    made: dict[int, dict] = {}
    before: TokenStreamRow | None = None
    edges = sorted({0, *cuts, len(tale.rows)})
    for first, end in pairwise(edges):
        for stream in fold(tale.rows[first:end], before, KEY):
            row = stream.row()
            made[row["started_at"]] = row
            before = TokenStreamRow(**row)  # what the table holds is all that is remembered
    assert [made[at] for at in sorted(made)] == whole
