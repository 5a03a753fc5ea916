"""The relay bench: rejected options, and every message of a short run is accounted for."""

from __future__ import annotations

import pytest

from penstock.cli import main


@pytest.mark.promise(
    "Benchmarks and robustness",
    "`penstock bench relay` accounts for every message, and measures the queue next to the relay",
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "one,speed"], "there is no kind `speed`"),
        (["--transports", "udp"], "there is no transport `udp`"),
        (["--size", "190"], "at least 200 bytes"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, said, capsys):
    assert main(["bench", "relay", *words]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.more
@pytest.mark.promise(
    "Benchmarks and robustness",
    "`penstock bench relay` accounts for every message, and measures the queue next to the relay",
)
def test_every_message_of_a_run_is_accounted_for(bench):
    found = bench(
        "relay", "--seconds", "0.2", "--rounds", "1", "--transports", "ipc", "--only", "one,register,memory,verify,beside",
        "--registrations", "20", "--held", "20",
    )  # fmt: skip
    cells = [(cell["workload"].split(",")[0], cell["target"]) for cell in found["cells"]]
    assert cells == [
        ("one topic", "penstock"),
        ("one topic", "zmq.proxy"),
        ("registrations", "penstock"),
        ("20 open topics", "penstock"),
        ("tokens verified", "penstock"),
        ("queue alone", "penstock"),
        ("queue beside the relay", "penstock"),
        ("relay beside the queue", "penstock"),
    ]
    assert all(cell["rounds"][0]["count"] > 0 and cell["batched"] for cell in found["cells"])
    assert found["notes"] == []
    registered, held = found["cells"][2]["rounds"][0], found["cells"][3]["rounds"][0]
    assert (registered["count"], held["count"]) == (20, 20)
    assert found["cells"][1]["ratio"] > 0 and set(found["commands"]) == {"penstock", "zmq.proxy"}
