"""`bench cluster` with real nodes and NATS servers: it accounts for everything, leaves nothing, and refuses wrong options."""

from __future__ import annotations

import json

import pytest

from penstock.bench.cluster.commands import cluster
from penstock.core.errors import PenstockError


@pytest.mark.parametrize(("options", "what"), [({"only": "move,storm"}, "storm"), ({"rounds": 0}, "rounds")])
def test_a_wrong_option_is_refused_before_anything_starts(options: dict[str, object], what: str) -> None:
    with pytest.raises(PenstockError, match=what):
        cluster(**options)  # type: ignore[arg-type]


@pytest.mark.more
def test_a_move_is_measured_and_loses_nothing(bench) -> None:
    found = bench("cluster", "--rounds", "1", "--only", "move", timeout=600)
    assert [cell["workload"] for cell in found["cells"]] == ["move"]
    pauses, envelopes = (json.loads(note.partition(": ")[2]) for note in found["notes"][:2])
    assert pauses["shards"] == 4 and pauses["p50S"] <= pauses["maxS"]
    assert envelopes["confirmed"] > 0 and envelopes["lost"] == envelopes["returned"] == 0
