"""The benchmarks, for a moment each: they must run, add up and print what programs can read. Nothing here is timed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, date, datetime
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from penstock.bench.board import UNKNOWN, Board
from penstock.bench.jobs import percentiles_ms
from penstock.bench.pipeline_live import PROBE_EVERY_S, PROBE_STREAM, Probes
from penstock.bench.pipeline_plot import plot
from penstock.bench.pipeline_processes import FedStage, Tree
from penstock.bench.pipeline_rows import BODY_BYTES, make_history
from penstock.bench.processes import BenchError, Stage, cpu_s
from penstock.bench.template import Adds, Lines, Posts, envelope
from penstock.bench.workloads import Workloads
from penstock.cli import main
from penstock.journal.reader import JournalReader
from penstock.spark.lake.schemas import QUEUE_MINUTES
from penstock.spark.lake.table import LakeTable, Progress
from tests.server_process import environment

KEYS = {
    "schema", "bench", "startedAt", "machine", "versions", "options", "commands", "cells", "notes", "failures",
}  # fmt: skip


def bench(*words, folder, timeout=120):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "bench", *words, "--json"],
        capture_output=True,
        text=True,
        env=environment(TMPDIR=str(folder)),
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == [], "the run left something behind"
    found = json.loads(done.stdout)
    assert set(found) == KEYS and found["schema"] == "penstock.bench/1" and found["failures"] == []
    assert found["machine"]["cores"] >= 1 and "python" in found["versions"]
    return found


@pytest.mark.promise(
    "The document's testing strategy", "Load: synthetic producers and consumers, latency percentiles"
)
@pytest.mark.promise(
    "Surface and speed", "`penstock bench queue` and `bench http` account for every envelope"
)
def test_queue_cells_are_accounted_for(tmp_path):
    found = bench(
        "queue", "--seconds", "0.2", "--rounds", "1", "--batch", "16,1", "--no-peer",
        "--queued", "300", "--subscribers", "10", folder=tmp_path,
    )  # fmt: skip
    cells = {cell["workload"]: cell for cell in found["cells"]}
    assert list(cells) == [
        "closed loop, 16 a frame",
        "closed loop, 1 a frame",
        "open loop, 2,000 a second",
        "memory, 320 envelopes queued",
        "idle, 10 subscribers",
        "core alone, 64 records a call",
        "core alone, 1 records a call",
    ]
    assert all(cell["rounds"][0]["count"] > 0 and cell["batched"] for cell in cells.values())
    paced = cells["open loop, 2,000 a second"]["rounds"][0]
    assert paced["count"] == 400
    assert paced["latencyMs"]["p50"] <= paced["latencyMs"]["p99"] <= paced["latencyMs"]["max"]
    assert "penstock" in found["commands"]


def test_queue_beside_its_peer_or_saying_why_not(tmp_path):
    found = bench(
        "queue", "--only", "closed", "--batch", "16", "--seconds", "0.2", "--rounds", "1", folder=tmp_path
    )
    targets = [(cell["target"], cell["client"]) for cell in found["cells"]]
    if found["notes"]:
        assert found["notes"][0].startswith("no peer: ") and targets == [("penstock", "lean")]
    else:
        assert targets == [("penstock", "lean"), ("redis", "lean"), ("redis", "redis-py")]
        assert [cell.get("ratio", 0) > 0 for cell in found["cells"]] == [False, True, False]


@pytest.mark.promise("Surface and speed", "`penstock bench journal` beside SQLite")
def test_journal_cells_are_accounted_for_beside_sqlite(tmp_path):
    found = bench(
        "journal", "--rounds", "1", "--count", "600", "--commit", "100", "--live", "300", folder=tmp_path
    )
    cells = [(cell["workload"], cell["target"], cell["rounds"][0]["count"]) for cell in found["cells"]]
    words = "100 records a commit, synced"
    assert cells == [
        (f"append, {words}", "penstock", 600),
        (f"append, {words}", "sqlite", 600),
        (f"read back, {words}", "penstock", 600),
        (f"read back, {words}", "penstock, sealed", 600),
        (f"read back, {words}", "sqlite", 600),
        ("recover, 300 live records", "penstock", 300),
    ]
    assert found["cells"][1]["ratio"] > 0


@pytest.mark.promise(
    "Surface and speed", "`penstock bench queue` and `bench http` account for every envelope"
)
def test_http_cells_are_accounted_for(tmp_path):
    found = bench(
        "http", "--seconds", "0.2", "--rounds", "1", "--batch", "1,10", "--connections", "4",
        "--queued", "200", folder=tmp_path,
    )  # fmt: skip
    assert len(found["cells"]) == 4
    assert all(cell["rounds"][0]["count"] > 0 for cell in found["cells"])


def test_pipeline_refuses_a_part_that_is_none(capsys):
    assert main(["bench", "pipeline", "--only", "source,speed"]) == 1
    shown = capsys.readouterr().err
    assert "there is no part `speed`" in shown and "source, freshness, idle" in shown


def test_profile_names_functions(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "penstock",
            "bench",
            "queue",
            "--profile",
            "--batch",
            "16",
            "--seconds",
            "0.2",
        ],
        capture_output=True,
        text=True,
        env=environment(TMPDIR=str(tmp_path)),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "own us each" in done.stdout and "core/" in done.stdout


@pytest.mark.promise(
    "Surface and speed", "`penstock bench queue` and `bench http` account for every envelope"
)
def test_an_envelope_that_nobody_acked_fails_the_run():
    with Stage() as stage:
        server = stage.penstock()
        Workloads(stage, 300, 100).memory(server, 10)
        with pytest.raises(BenchError, match="10 envelopes were sent"):
            server.check_held("bench/nowhere", 10)


def test_an_interrupted_run_ends_what_it_started(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "bench", "queue", "--only", "closed", "--batch", "1", "--no-peer"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(TMPDIR=str(tmp_path)),
        start_new_session=True,
    )
    try:
        ends = None
        while ends is None and process.poll() is None:
            ends = next(tmp_path.glob("penstock-bench-*/server-0/*/endpoints.json"), None)
        assert ends is not None
        pid = json.loads(ends.read_text())["pid"]
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert cpu_s(pid) is None, "the server outlived the run"
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.wait()


class TestTemplate:
    @pytest.mark.parametrize("size", [220, 300, 5000])
    def test_envelopes_have_the_size_asked_for(self, size):
        made = envelope("bench/a", size, "t") % (7, 123)
        assert len(made) == size
        assert json.loads(made)["payload"]["t"].lstrip("0") == "123"

    def test_too_small_a_size_is_refused(self):
        with pytest.raises(ValueError, match="at least"):
            envelope("bench/a", 50, "t")

    @pytest.mark.parametrize("batch", [1, 3])
    def test_lines_carry_every_number_once(self, batch):
        lines = [json.loads(line) for line in Lines("s", 300, "t", batch).make(6, 2, 1).splitlines()]
        found = [env["id"] for line in lines for env in ([line["env"]] if batch == 1 else line["env"])]
        assert found == [f"t-{number:010d}" for number in range(6, 6 + 2 * batch)]

    def test_posts_and_adds_say_their_length(self):
        head, _, body = Posts("s", 300, "t", 2, "h", "token").make(0, 1).partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head and len(json.loads(body)["envelopes"]) == 2
        assert Adds("s", 300, "t").make(0, 2, 1).count(b"$300\r\n") == 2


class TestPipeline:
    def test_history_is_sealed_rows_of_envelopes_and_acks(self, tmp_path):
        reader = JournalReader(make_history(tmp_path / "data", 1_001))
        assert reader.bounds().end == 1_001
        rows = pa.Table.from_batches(list(reader.batches(0, 1_001))).to_pylist()
        enqueued = {row["offset"]: row for row in rows if row["event"] == "enqueue"}
        acks = [row for row in rows if row["event"] == "ack"]
        assert len(enqueued) + len(acks) == 1_001 and len(enqueued) - len(acks) < 300
        for row in enqueued.values():
            body = json.loads(row["body"])
            assert len(row["body"]) == BODY_BYTES and body["id"] == row["id"] and body["corr"] == row["corr"]
        for ack in acks:
            begun = enqueued[ack["ref_offset"]]
            assert (begun["channel"], begun["seq"], begun["id"]) == (ack["channel"], ack["seq"], ack["id"])
            assert begun["recorded_at"] == ack["ref_at"] < ack["first_at"] < ack["recorded_at"]
        assert len({ack["ref_offset"] for ack in acks}) == len(acks)

    def test_a_probe_is_seen_when_its_table_counts_it(self):
        with FedStage() as stage:
            server = stage.fed(has_pipeline=False)
            table = LakeTable(server.data / "lake", QUEUE_MINUTES)
            counted = threading.Event()

            def count():
                while server.counts(PROBE_STREAM).get("q.in", 0) < 2:
                    pass
                counted.set()
                row = {"journal": "j", "date": date(2026, 1, 1), "minute": datetime(2026, 1, 1, tzinfo=UTC)}
                row |= {"channel": PROBE_STREAM, "enqueued": 2, "final": False}
                table.merge(pa.Table.from_pylist([row], QUEUE_MINUTES.schema), {"j/0": Progress(0, 2)})

            writer = threading.Thread(target=count)
            writer.start()
            probes = Probes(server)
            try:
                took = probes.run(PROBE_EVERY_S * 1.5)
            finally:
                writer.join()
                probes.close()
        assert counted.is_set() and len(took) == 2
        assert took[0] > took[1] > 0 and took[0] - took[1] >= PROBE_EVERY_S * 0.9e9

    def test_a_tree_has_the_processes_that_a_process_started(self):
        script = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        child = int(process.stdout.readline())
        try:
            tree = Tree(process.pid)
            assert tree.pids() == [process.pid, child]
            spent = tree.cpu_s()
            assert spent >= cpu_s(process.pid) > 0
            assert tree.rss_bytes() > tree.pss_bytes() > 0
            assert tree.names()["sleep"] == [child]
        finally:
            os.kill(child, signal.SIGKILL)
            process.communicate()
        assert tree.pids() == [process.pid] and tree.cpu_s() >= spent

    def test_a_plot_places_points_on_logarithmic_axes(self):
        lines = {"all": [(100, 1), (1_000, 10), (10_000, 1_000)], "a <table>": [(100, 1), (10_000, 1)]}
        root = ElementTree.fromstring(plot("Growth", "rows", "seconds", lines))
        space = "{http://www.w3.org/2000/svg}"
        points = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter(f"{space}circle")]
        assert len(points) == 5
        (x1, y1), (x2, y2), (x3, y3) = points[:3]
        assert abs((x2 - x1) - (x3 - x2)) < 0.2 and abs(2 * (y1 - y2) - (y2 - y3)) < 0.4
        words = [text.text for text in root.iter(f"{space}text")]
        assert {"Growth", "rows", "seconds", "10,000", "all", "a <table>", "linear"} <= set(words)


def test_board_is_shared(tmp_path):
    path = Path(tmp_path / "board")
    Board.create(path)
    one, other = Board(path), Board(path)
    assert (other.acked, other.total) == (0, UNKNOWN)
    one.acked, one.total = 5, 9
    assert (other.acked, other.total) == (5, 9)


@pytest.mark.promise(
    "The document's testing strategy", "Load: synthetic producers and consumers, latency percentiles"
)
def test_percentiles_are_nearest_ranks():
    values = [number * 1_000_000 for number in range(1, 101)]
    assert percentiles_ms(values) == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert percentiles_ms([]) == {}


def test_followers_of_a_view_all_come_to_the_same_version(tmp_path):
    found = bench(
        "live", "--seconds", "0.5", "--watchers", "0,5", "--rows", "10", "--changes", "200", folder=tmp_path
    )
    alone, followed = (cell["rounds"][0] for cell in found["cells"])
    assert alone["count"] == 100
    assert 50 <= followed["count"] <= 500  # each row at least once, each change at most once a follower
    assert followed["latencyMs"]["p50"] > 0 and followed["serverCpuShare"] > 0


def test_very_many_streams_are_filled_asked_and_accounted_for(tmp_path):
    found = bench("streams", "--count", "300", "--no-minute", folder=tmp_path)
    fill, *looks = found["cells"]
    assert fill["workload"] == "fill, 300 streams" and fill["rounds"][0]["bytesEach"] > 0
    assert [cell["workload"] for cell in looks] == ["GET /metrics", "GET /v1/metrics", "GET /v1/envelopes/1"]


@pytest.mark.promise("Surface and speed", "deliveries of the aggregation pattern grow as O(N)")
@pytest.mark.promise(
    "Surface and speed", "`penstock bench fanout` accounts for every delivery, to one and to all"
)
def test_frames_of_a_space_are_accounted_for_on_every_way(tmp_path):
    plot_file = tmp_path.parent / f"{tmp_path.name}.svg"
    found = bench(
        "fanout", "--seconds", "0.2", "--rounds", "1", "--no-peer", "--participants", "5", "--rate", "50",
        "--only", "targeted,broadcast,growth", "--sizes", "4", "--broadcast-max", "0", "--plot", str(plot_file),
        folder=tmp_path,
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
