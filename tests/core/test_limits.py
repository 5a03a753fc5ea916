"""The limits of the config: every bound has a reason, and bounds that depend on each other agree."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.limits import Limits
from penstock.server.config.reference import field_docs


def test_every_bound_is_a_positive_whole_number_with_a_reason() -> None:
    documented = field_docs(Limits)
    for name in Limits.__struct_fields__:
        value = getattr(Limits(), name)
        assert type(value) is int and value > 0, name
        assert documented.get(name), f"`{name}` has no reason"


def test_an_unknown_bound_is_rejected() -> None:
    with pytest.raises(msgspec.ValidationError, match="strems_max"):
        msgspec.convert({"strems_max": 1}, Limits)


def test_limits_do_not_change_while_the_server_runs() -> None:
    with pytest.raises(AttributeError):
        Limits().envelope_max = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("envelope_max", "frame_max"),
        ("envelope_max", "copies_max"),
        ("frame_max", "outbox_hard_max"),
        ("outbox_max", "outbox_hard_max"),
        ("view_bytes_max", "outbox_hard_max"),
        ("lease_min_ms", "lease_max_ms"),
        ("space_request_max", "space_frame_max"),
        ("join_bytes_max", "space_frame_max"),
        ("space_frame_max", "space_outbox_max"),
        ("space_frame_max", "space_telemetry_max"),
        ("join_pause_ms", "join_ms"),
        ("pending_max", "memory_max"),
    ],
)
def test_by_default_a_part_fits_into_its_whole(smaller: str, larger: str) -> None:
    assert getattr(Limits(), smaller) <= getattr(Limits(), larger)
