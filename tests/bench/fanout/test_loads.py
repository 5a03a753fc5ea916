"""Every frame of a space is accounted for, targeted and broadcast."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest


@pytest.mark.more
@pytest.mark.promise("Benchmarks and robustness", "deliveries of the aggregation pattern grow as O(N)")
@pytest.mark.promise(
    "Benchmarks and robustness", "`penstock bench fanout` accounts for every delivery, targeted and broadcast"
)
def test_frames_of_a_space_are_accounted_for_on_every_way(bench, tmp_path):
    plot_file = tmp_path / "growth.svg"
    found = bench(
        "fanout", "--seconds", "0.2", "--rounds", "1", "--no-peer", "--participants", "5", "--rate", "50",
        "--only", "targeted,broadcast,growth", "--sizes", "4", "--broadcast-max", "0", "--plot", str(plot_file),
            )  # fmt: skip
    cells = {cell["workload"]: cell["rounds"][0] for cell in found["cells"]}
    assert list(cells) == [
        "targeted, 1 to 1 of 5",
        "broadcast, 1 to 5 of 5",
        "growth, 4 participants, targeted",
    ]
    to_one, to_all, grown = cells.values()
    assert to_one["count"] + to_one.get("dropped", 0) == to_one["frames"] > 0
    assert to_all["count"] + to_all.get("dropped", 0) == 5 * to_all["frames"] > 0
    # One sends to all, its own echo included; the three others send to it.
    assert (grown["frames"], grown["count"]) == (40, 10 * 4 + 30)
    assert ElementTree.parse(plot_file).getroot().tag.endswith("svg")
