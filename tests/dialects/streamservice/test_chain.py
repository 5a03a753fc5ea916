"""Chains detect everything left out, added, moved or changed, and a failed send breaks nothing."""

from __future__ import annotations

import hmac

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penstock.core.errors import PenstockError
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.keys import SUITES, Suite
from tests.dialects.streamservice.reference import TOPIC

KEY = b"k" * 32
CHAINS = [ChainedStreamHmac, BlockChain]

chains = st.sampled_from(CHAINS)
suites = st.sampled_from(SUITES)


@given(chains, suites, st.lists(st.binary(max_size=40), max_size=6))
def test_both_ends_walk_the_same_chain(kind: type[ChainedStreamHmac], suite: Suite, parts: list[bytes]) -> None:
    sender, reader = kind(KEY, TOPIC, suite), kind(KEY, TOPIC, suite)
    for part in parts:
        assert sender.prev == reader.prev
        mac = sender.compute_next(part)
        assert len(mac) == kind.SIZE
        assert reader.verify_next(part, mac)
    assert sender.state == reader.state


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a chain accepts only the next message, in constant time; a failed send breaks nothing",
)
@given(chains, suites, st.lists(st.binary(max_size=8), min_size=1, max_size=6), st.data())
def test_only_the_next_message_is_accepted(
    kind: type[ChainedStreamHmac], suite: Suite, parts: list[bytes], data: st.DataObject
) -> None:
    """An attacker who may drop, repeat, reorder and change messages gets a prefix accepted, and nothing else."""
    sender, reader = kind(KEY, TOPIC, suite), kind(KEY, TOPIC, suite)
    sent = [(part, sender.compute_next(part)) for part in parts]
    accepted = 0
    for index in data.draw(st.lists(st.integers(0, len(sent) - 1), max_size=20)):
        part, mac = sent[index]
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(mac) - 1))
            mac = mac[:at] + bytes([mac[at] ^ 1]) + mac[at + 1 :]
        before = reader.state
        is_next = index == accepted and (part, mac) == sent[index]
        assert reader.verify_next(part, mac) == is_next
        accepted += is_next
        if not is_next:
            assert reader.state == before


def test_what_stands_before_the_first() -> None:
    chunks, blocks = ChainedStreamHmac(KEY, TOPIC), BlockChain(KEY, TOPIC)
    assert (chunks.prev, chunks.state) == (b"", None)
    assert (blocks.prev, blocks.state) == (TOPIC[:16].encode(), None)
    assert chunks.compute_next(b"x") == chunks.prev == chunks.state
    assert blocks.compute_next(b"x") == blocks.prev == blocks.state


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a chain accepts only the next message, in constant time; a failed send breaks nothing",
)
@pytest.mark.parametrize("kind", CHAINS)
def test_a_send_that_failed_can_be_tried_again(kind: type[ChainedStreamHmac]) -> None:
    sender, reader = kind(KEY, TOPIC), kind(KEY, TOPIC)
    first = sender.next_mac(b"one")
    assert sender.state is None
    assert sender.next_mac(b"one") == first
    sender.advance(first)
    assert reader.verify_next(b"one", first)
    assert reader.verify_next(b"two", sender.next_mac(b"two"))
    with pytest.raises(ValueError, match="bytes"):
        sender.advance(first + b"x")


@pytest.mark.parametrize("kind", CHAINS)
def test_a_chain_goes_on_from_its_last_mac(kind: type[ChainedStreamHmac]) -> None:
    whole = kind(KEY, TOPIC)
    state = whole.compute_next(b"one")
    assert kind(KEY, TOPIC, state=state).compute_next(b"two") == whole.compute_next(b"two")


def test_the_parts_of_a_chain_do_not_fit_another() -> None:
    mac = ChainedStreamHmac(KEY, TOPIC).compute_next(b"one")
    others = [
        ChainedStreamHmac(b"x" * 32, TOPIC),
        ChainedStreamHmac(KEY, "0" * 64),
        ChainedStreamHmac(KEY, TOPIC, "blake3"),
        BlockChain(KEY, TOPIC),
    ]
    assert not any(chain.verify_next(b"one", mac) for chain in others)
    assert not BlockChain(KEY, TOPIC).verify_next(b"one", mac[:8])


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a chain accepts only the next message, in constant time; a failed send breaks nothing",
)
def test_no_mac_is_never_a_good_mac() -> None:
    chain = ChainedStreamHmac(KEY, TOPIC)
    mac = ChainedStreamHmac(KEY, TOPIC).compute_next(b"one")
    for wrong in (b"", mac[:16], mac + b"\0", bytes(32)):
        assert not chain.verify_next(b"one", wrong)


def test_chains_are_made_of_whole_keys_and_topics() -> None:
    for key, topic, state in (
        (bytes(32), TOPIC, None),
        (b"k" * 31, TOPIC, None),
        (KEY, TOPIC.upper(), None),
        (KEY, "", None),
        (KEY, TOPIC, b"s" * 16),
    ):
        with pytest.raises(ValueError, match=r"bytes|digits"):
            ChainedStreamHmac(key, topic, state=state)
    with pytest.raises(PenstockError, match="there is no suite `md5`"):
        ChainedStreamHmac(KEY, TOPIC, "md5")  # type: ignore[arg-type]


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "a chain accepts only the next message, in constant time; a failed send breaks nothing",
)
@pytest.mark.parametrize("kind", CHAINS)
def test_macs_are_compared_in_constant_time(kind: type[ChainedStreamHmac], monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def watch(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", watch)
    chain = kind(KEY, TOPIC)
    good = chain.next_mac(b"one")
    assert [chain.verify_next(b"one", mac) for mac in (bytes(kind.SIZE), b"", good)] == [False, False, True]
    assert compared == [(good, bytes(kind.SIZE)), (good, b""), (good, good)]
