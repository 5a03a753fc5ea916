"""Keys: valid public keys, and the keys that each suite derives from a shared secret."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.streamservice import ristretto
from penstock.dialects.streamservice.keys import SUITES, StreamKeys, Suite, agree, derive
from penstock.dialects.streamservice.ristretto import KeyPair, check_public, key_pair, pair_of, shared_secret
from penstock.dialects.streamservice.wire import is_topic

entropies = st.binary(min_size=64, max_size=64).filter(any)
CLIENT, SERVER = key_pair(b"c" * 64), key_pair(b"s" * 64)


@settings(max_examples=30)
@given(entropies, entropies, st.sampled_from(SUITES))
def test_both_ends_come_to_the_same_keys(one: bytes, other: bytes, suite: Suite) -> None:
    ours, theirs = key_pair(one), key_pair(other)
    keys = agree(ours, theirs.public, suite)
    assert keys == agree(theirs, ours.public, suite)
    if ours.public == theirs.public:
        assert isinstance(keys, Refusal)
        return
    assert isinstance(keys, StreamKeys)
    assert is_topic(keys.topic.encode()) and is_topic(keys.ctrl_topic.encode())
    made = [
        bytes.fromhex(keys.topic),
        keys.mac_key,
        bytes.fromhex(keys.ctrl_topic),
        keys.ctrl_mac_key,
        keys.enc_key,
    ]
    assert len(set(made)) == 5


def refused(public: bytes) -> str:
    refusal = check_public(public)
    assert isinstance(refusal, Refusal)
    assert shared_secret(CLIENT, public) == agree(CLIENT, public) == refusal
    return refusal.message


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "the identity, set top bits and wrong sizes are rejected as public keys",
)
def test_the_identity_is_no_key() -> None:
    assert "identity" in refused(bytes(32))


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "the identity, set top bits and wrong sizes are rejected as public keys",
)
@settings(max_examples=30)
@given(entropies)
def test_the_top_bit_is_never_set(entropy: bytes) -> None:
    """The library takes such an encoding for the point without it, so one key would have two spellings."""
    public = key_pair(entropy).public
    assert check_public(public) is None
    assert "top bit" in refused(public[:-1] + bytes([public[-1] | 0x80]))


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "the identity, set top bits and wrong sizes are rejected as public keys",
)
@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_keys_have_one_size(size: int) -> None:
    assert f"{size} bytes instead of 32" in refused(b"\x02" * size)


@given(st.binary(min_size=32, max_size=32))
def test_bytes_that_are_no_point_are_refused_and_nothing_raises(public: bytes) -> None:
    outcome = shared_secret(CLIENT, public)
    assert isinstance(outcome, Refusal) == (check_public(public) is not None)


def test_both_ends_cannot_have_the_same_key() -> None:
    outcome = agree(CLIENT, CLIENT.public)
    assert isinstance(outcome, Refusal)
    assert "same public key" in outcome.message


def test_a_secret_is_made_of_enough_entropy() -> None:
    for wrong in (b"", b"x" * 32):
        with pytest.raises(ValueError, match="64 bytes of entropy"):
            key_pair(wrong)
    for wrong in (bytes(32), b"x"):
        with pytest.raises(ValueError, match="a secret has 32 bytes"):
            pair_of(wrong)


def test_the_suites_share_nothing() -> None:
    shared = shared_secret(CLIENT, SERVER.public)
    assert isinstance(shared, bytes)
    one, other = (derive(shared, CLIENT.public, SERVER.public, suite) for suite in SUITES)
    assert isinstance(one, StreamKeys) and isinstance(other, StreamKeys)
    assert one.topic != other.topic
    assert one.mac_key != other.mac_key


def test_an_unknown_suite_is_rejected_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    missing = agree(CLIENT, SERVER.public, "blake3")
    assert isinstance(missing, Refusal)
    assert "penstock[streams]" in str(missing.hint)
    unknown = agree(CLIENT, SERVER.public, "md5")  # type: ignore[arg-type]
    assert isinstance(unknown, Refusal)
    assert "no suite `md5`" in unknown.message


def test_a_library_that_cannot_be_loaded_is_reported_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rbcl", None)
    with pytest.raises(PenstockError, match="TMPDIR"):
        ristretto._group.__wrapped__()


def test_no_secret_is_shown() -> None:
    keys = agree(CLIENT, SERVER.public)
    assert isinstance(keys, StreamKeys)
    assert CLIENT.secret.hex() not in repr(CLIENT) and repr(CLIENT.secret) not in repr(CLIENT)
    assert keys.mac_key.hex() not in repr(keys) and repr(keys.mac_key) not in repr(keys)
    assert isinstance(CLIENT, KeyPair)


def test_the_library_leaves_no_copy_of_itself_behind() -> None:
    assert check_public(CLIENT.public) is None
    loaded = sys.modules["rbcl._sodium"]._sodium._name
    assert not Path(loaded).exists()
