"""What the relay remembers across restarts."""

from __future__ import annotations

import pytest

from penstock.core.records import Entry
from penstock.core.relay.topic import Remembered
from penstock.core.rows import row_of
from penstock.dialects.streamservice import relay_memory
from penstock.dialects.streamservice.relay_memory import (
    AGE_MAX_MS,
    DOOR,
    SKEW_MAX_MS,
    RelayMemory,
    UsedNonce,
    register_entry,
)

FIRST = Remembered("aa", "signer", 50_000_000)


def memory(*entries: Entry) -> RelayMemory:
    found = RelayMemory()
    for entry in entries:
        found.restore(row_of(entry))
    return found


def test_a_registration_is_remembered_with_the_number_of_its_newest_message():
    found = memory(register_entry(FIRST), Entry(DOOR, "chunk_counts", "aa", 7), Entry(DOOR, "chunk", "aa", 9))
    assert found.registrations == {"aa": Remembered("aa", "signer", 50_000_000, 9)}


def test_a_later_registration_extends_it_and_keeps_the_number():
    longer = Remembered("aa", "signer", 90_000_000)
    found = memory(register_entry(FIRST), Entry(DOOR, "chunk_counts", "aa", 7), register_entry(longer))
    assert found.registrations["aa"] == Remembered("aa", "signer", 90_000_000, 7)


def test_the_end_of_a_topic_is_the_end_of_it():
    found = memory(register_entry(FIRST), Entry(DOOR, "expire", "aa"), Entry(DOOR, "chunk_counts", "aa", 7))
    assert found.registrations == {}


@pytest.mark.promise("Relay", "registrations survive kill -9 of the relay and of the server")
def test_a_snapshot_says_the_same():
    found = memory(register_entry(FIRST), Entry(DOOR, "chunk_counts", "aa", 7), Entry(DOOR, "subscribe", "aa"))
    again = RelayMemory()
    for row in found.snapshot():
        again.restore(row)
    assert again.registrations == found.registrations


def test_what_has_expired_is_not_given_back():
    found = memory(register_entry(FIRST), register_entry(Remembered("bb", "signer", 60_000_000)))
    assert [each.hash for each in found.valid(50_000_000)] == ["bb"]
    assert list(found.registrations) == ["bb"]


@pytest.mark.promise("Relay", "a registration cannot be replayed after a restart")
def test_nonces_outlive_their_topics_and_a_snapshot():
    found = memory(register_entry(FIRST, "0a" * 16, 1_000), register_entry(FIRST, "0b" * 16, 2_000))
    found.restore(row_of(Entry(DOOR, "expire", "aa")))
    again = RelayMemory()
    for row in found.snapshot():
        again.restore(row)
    used = [UsedNonce("signer", "0a" * 16, 1_000), UsedNonce("signer", "0b" * 16, 2_000)]
    assert again.used_nonces(0) == found.used_nonces(0) == used
    assert again.used_nonces((2_000 + AGE_MAX_MS + SKEW_MAX_MS) * 1000) == used[1:]


def test_nonces_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relay_memory, "NONCES_MAX", 2)
    found = memory(*(register_entry(FIRST, f"{number:032x}", number) for number in range(5)))
    assert [each.timestamp_ms for each in found.used_nonces(0)] == [3, 4]
