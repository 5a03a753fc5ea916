"""The result of a run: medians, ratios, notes and the table."""

from __future__ import annotations

import json

import pytest

from penstock.bench.harness.result import (
    BenchCell,
    BenchResult,
    BenchRound,
    find_versions,
    parse_names,
    take_turns,
    to_rows,
)
from penstock.cli.options import PLAIN, Output
from penstock.core.errors import PenstockError


def cell(*speeds, **fields):
    return BenchCell("closed loop", "penstock", "lean", "", [BenchRound(1, 1.0, speed, **fields) for speed in speeds])


def test_a_round_divides_cpu_by_its_messages():
    done = BenchRound.timed(200, 4.0, 3 * 1024 * 1024, server=0.001, producer=0.002)
    assert (done.per_second, done.server_cpu_us, done.producer_cpu_us, done.server_rss_mib) == (50, 5, 10, 3)
    assert done.consumer_cpu_us is None


def test_medians_leave_out_rounds_without_the_figure():
    found = cell(10.0, 30.0, 20.0)
    found.rounds[0].bytes_each = 7.0
    assert found.speed == 20.0 and found.middle("bytes_each") == 7.0 and found.middle("wall_s") is None


def test_a_ratio_is_ours_over_the_peers():
    peer = cell(80.0)
    assert peer.compare(cell(100.0)) == peer.ratio == 1.25
    assert cell(0.0).compare(cell(100.0)) is None


def test_dropped_deliveries_are_noted():
    result = BenchResult.begin("fanout")
    result.add("broadcast", "", [BenchRound(90, 1.0, 90.0, dropped=10)])
    assert result.notes == ["broadcast, penstock: 10 of 100 deliveries were dropped for slow readers"]


@pytest.mark.parametrize(("failures", "code"), [([], 0), (["one was lost"], 3)])
def test_a_failure_is_exit_code_3_and_in_the_json(failures, code, capsys):
    result = BenchResult.begin("queue", seconds=1)
    result.failures += failures
    assert result.show(Output(as_json=True)) == code
    found = json.loads(capsys.readouterr().out)
    assert found["failures"] == failures and found["options"] == {"seconds": 1}


def test_the_table_has_figures_bars_and_remarks(capsys):
    times = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0}
    ours, theirs = cell(100.0, server_cpu_us=5.0, latency_ms=times), cell(50.0)
    theirs.compare(ours)
    rows = to_rows([ours, theirs])
    assert rows[0][2:5] == ["100", "█" * 20, "5.0"] and rows[0][7] == "1.00/2.00/3.00/4.00"
    assert rows[1][3] == "█" * 10 and rows[1][-1] == "ours is 2.00x"
    result = BenchResult.begin("queue")
    result.cells += [ours, theirs]
    result.judge("the goal of 90", True)
    assert result.show(PLAIN) == 0 and "note: the goal of 90 is met" in capsys.readouterr().out


def test_sides_alternate():
    order = []

    def measure(side):
        order.append(side)
        return BenchRound(len(order), 1.0, 1.0)

    found = take_turns(["a", "b"], 2, measure)
    assert order == ["a", "b", "a", "b"] and [one.count for one in found[1]] == [2, 4]


def test_names_must_be_known():
    assert parse_names("kind", "a,b", ("a", "b")) == ["a", "b"]
    with pytest.raises(PenstockError, match="there is no kind `c`"):
        parse_names("kind", "a,c", ("a", "b"))


def test_only_installed_libraries_have_versions():
    assert list(find_versions("msgspec", "no-such-library")) == ["msgspec"]
