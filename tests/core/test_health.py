"""The model of a server's health: states, times, failures, and the status that follows from the parts."""

from __future__ import annotations

import pytest

from penstock.core.health import (
    DISK_FULL,
    DISK_LOW_BYTES,
    JOURNAL_ENDED,
    PARTS,
    Health,
    PartHealth,
    disk_finding,
    doors_finding,
    journal_finding,
    lake_finding,
    relay_finding,
    size_text,
)

MIB = 1024**2


def model(**findings: PartHealth) -> Health:
    health = Health()
    health.update(1, dict.fromkeys(PARTS, PartHealth("ok")) | findings)
    return health


@pytest.mark.parametrize(
    ("part", "state", "status"),
    [
        ("pipeline", "failed", "degraded"),
        ("relay", "failed", "degraded"),
        ("lake", "degraded", "degraded"),
        ("pipeline", "starting", "ok"),
        ("pipeline", "off", "ok"),
        ("disk", "degraded", "degraded"),
        ("disk", "failed", "refusing"),
        ("journal", "failed", "refusing"),
    ],
)
def test_only_journal_and_disk_stop_envelopes(part: str, state: str, status: str) -> None:
    health = model(**{part: PartHealth(state)})  # type: ignore[arg-type]
    assert health.status(is_draining=False) == status
    assert health.status(is_draining=True) == "draining"


def test_a_state_keeps_its_time_and_a_failure_outlives_it() -> None:
    health = Health()
    assert health.update(1_000_000, {"lake": PartHealth("ok")}) == [], "a part that starts sound is no news"
    assert health.update(2_000_000, {"lake": PartHealth("failed", "torn")}) == ["lake"]
    assert health.update(3_000_000, {"lake": PartHealth("failed", "torn")}) == []
    shown = health.parts["lake"].to_json()
    assert shown["since"] == shown["lastFailure"]["at"] == "1970-01-01T00:00:02.000Z"
    assert health.update(4_000_000, {"lake": PartHealth("failed", "gone")}) == []
    assert health.parts["lake"].failure == (4_000_000, "gone"), "another reason is another failure"
    assert health.update(5_000_000, {"lake": PartHealth("ok")}) == ["lake"]
    assert (health.parts["lake"].since_us, health.parts["lake"].failure) == (5_000_000, (4_000_000, "gone"))


def test_a_part_may_know_its_own_times() -> None:
    health = Health()
    assert health.update(9, {"pipeline": PartHealth("failed", "x", failure=(4, "y"), since_us=3)}) == ["pipeline"]
    assert (health.parts["pipeline"].since_us, health.parts["pipeline"].failure) == (3, (4, "y"))


def test_texts_are_only_for_those_who_may_read_them() -> None:
    part = model(pipeline=PartHealth("failed", "secret", "do")).parts["pipeline"]
    assert set(part.to_json(is_full=False)) == {"state", "since"}
    assert (part.to_json()["reason"], part.to_json()["action"]) == ("secret", "do")


def test_free_space_says_what_is_reserved_and_why() -> None:
    sound = disk_finding(DISK_LOW_BYTES, 16 * MIB, MIB)
    assert sound.state == "ok" and "256 MiB free; 16.0 MiB more are reserved for settles" in sound.reason
    low = disk_finding(DISK_LOW_BYTES - 1, 16 * MIB, MIB)
    assert (low.state, low.action != "") == ("degraded", True)
    full = disk_finding(MIB - 1, 0, MIB)
    assert full.state == "failed" and "in use" in full.reason and full.action
    unknown = disk_finding(None, 16 * MIB, MIB)
    assert unknown.state == "failed" and "cannot be read" in unknown.reason and "full" not in unknown.reason
    assert "settles" not in disk_finding(0, None, MIB).reason


def test_each_bad_finding_says_what_to_do() -> None:
    calm = {"is_draining": False, "is_full": False, "slow": None, "failure": None}
    assert doors_finding(3, **calm).state == "ok"  # type: ignore[arg-type]
    assert doors_finding(3, **{**calm, "is_draining": True}).state == "off"  # type: ignore[arg-type]
    bad = [doors_finding(3, **{**calm, name: value}) for name, value in  # type: ignore[arg-type]
           (("is_full", True), ("slow", "sam holds 9 bytes unread"))]  # fmt: skip
    bad += [
        journal_finding("the disk is full", None, 20 * MIB),
        lake_finding("torn"),
        relay_finding(False, 2, 0, (1, "exit 3")),
    ]
    assert all(one.is_bad and one.reason and one.action for one in bad)
    assert relay_finding(False, 0, 0, None).state == "starting"
    assert relay_finding(True, 1, 2, (1, "exit 3")).failure == (1, "exit 3")
    assert journal_finding(None, "rows may be lost", MIB) == PartHealth("ok", "rows may be lost")
    assert "20.0 MiB of free space" in journal_finding("the disk is full", None, 20 * MIB).action


def test_a_journal_says_what_it_refuses() -> None:
    full, broken, ended = (
        journal_finding(why, None, MIB) for why in (DISK_FULL, "the disk reports an error", JOURNAL_ENDED)
    )
    assert full.reason == "the disk is full: new envelopes are refused, settles go on"
    assert all("new envelopes and settles are refused" in one.reason for one in (broken, ended))
    assert "restart the server" in ended.action and "free space" not in ended.action


def test_sizes_have_the_digits_that_matter() -> None:
    sizes = (0, 1023, 1536, 100 * MIB, 5 * 1024**3, 2000 * 1024**3)
    assert [size_text(size) for size in sizes] == ["0 bytes", "1023 bytes", "1.5 KiB", "100 MiB", "5.0 GiB", "2000 GiB"]
