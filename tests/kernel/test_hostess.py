"""The kernel's registry of guests, on a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import PenstockError
from penstock.kernel import Hostess, Manifest


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def manifest(**more: Any) -> dict[str, Any]:
    return {
        "servername": "courier",
        "capabilities": {"type": "transform", "accepts": ["envelope"], "produces": ["envelope", "view"]},
        "terminals": [{"name": "input"}, {"name": "output", "direction": "output"}],
        **more,
    }


class TestHostess:
    def test_an_identity_is_seven_words_and_a_uuid_is_made_where_none_is_given(self) -> None:
        hostess = Hostess(Clock())
        given = hostess.register(manifest(uuid="u-1"))
        assert given == "localhost:courier:0x0000:system:no:none:u-1"
        made = {hostess.register(manifest()) for _ in range(2)}
        assert len(made) == 2
        assert all(identity.startswith("localhost:courier:0x0000:system:no:none:") for identity in made)

    @pytest.mark.promise("Stream Kernel", "Hostess and Router list, renew and expire their entries")
    def test_silence_makes_a_guest_unavailable_and_never_forgets_it(self) -> None:
        clock = Clock()
        hostess = Hostess(clock)
        id_ = hostess.register(manifest())
        clock.ms += 20_000
        assert hostess.is_available(id_)
        clock.ms += 1
        assert not hostess.is_available(id_)
        assert hostess.query() == [id_]
        assert hostess.query(available_only=True) == []
        hostess.heartbeat(id_)
        assert hostess.query(available_only=True) == [id_]

    def test_a_guest_is_available_while_a_terminal_is_free(self) -> None:
        hostess = Hostess(Clock())
        id_ = hostess.register(manifest())
        hostess.mark_in_use(id_, "input", "c1")
        assert hostess.is_available(id_)
        hostess.mark_in_use(id_, "output", "c1")
        assert not hostess.is_available(id_)
        hostess.mark_available(id_, "input")
        assert hostess.is_available(id_)
        with pytest.raises(PenstockError):
            hostess.mark_in_use(id_, "nowhere", "c1")

    def test_a_question_has_many_sides(self) -> None:
        hostess = Hostess(Clock())
        id_ = hostess.register(manifest(classHex="0x0002"))
        for asked in (
            {"kind": "transform"}, {"class_hex": "0x0002"}, {"accepts": "envelope"}, {"produces": "view"},
        ):  # fmt: skip
            assert hostess.query(**asked) == [id_], asked
        for asked in (
            {"kind": "source"}, {"class_hex": "0x0001"}, {"accepts": "view"}, {"produces": "x"}, {"features": ["y"]},
        ):  # fmt: skip
            assert hostess.query(**asked) == [], asked

    def test_endpoints_have_the_shape_of_the_report(self) -> None:
        hostess = Hostess(Clock())
        id_ = hostess.register(Manifest("courier", {"type": "transform"}, uuid="u"))  # type: ignore[arg-type]
        hostess.register_endpoint(id_, "process", "node:courier", {"a": 1})
        assert hostess.endpoints() == [
            {"id": id_, "type": "process", "coordinates": "node:courier", "metadata": {"a": 1}}
        ]
        with pytest.raises(PenstockError):
            hostess.register_endpoint("nobody", "process", "x")
        with pytest.raises(PenstockError):
            hostess.register({"servername": "x"})
