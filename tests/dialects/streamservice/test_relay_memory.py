"""What the relay remembers across restarts."""

from __future__ import annotations

import pytest

from penstock.core.records import Entry
from penstock.core.relay.topic import Remembered
from penstock.core.rows import row_of
from penstock.dialects.streamservice.relay_memory import DOOR, RelayMemory, register_entry

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
