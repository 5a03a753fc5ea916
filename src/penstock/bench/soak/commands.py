"""`penstock bench soak`: normal traffic under attack. Exit code 3 if a bound is exceeded or an envelope is lost."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from cyclopts import Parameter

from penstock.bench.harness.processes import ProcessGroup, read_proc, to_round
from penstock.bench.harness.result import BenchError, BenchResult
from penstock.bench.queue.loads import QueueJob
from penstock.bench.relay.loads import SIGNERS
from penstock.bench.soak.loads import SoakJob
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_table
from penstock.journal.audit import audit

BOUNDS = {"longestTurnMs": 50.0, "serverRssMib": 600.0, "relayRssMib": 600.0, "lost": 0.0}
P99_RATIO_MAX = 5.0
Figures = dict[str, float]  # what one run showed


def soak(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of each of the two runs.")] = 600.0,
    rate: Annotated[int, Parameter(help="Envelopes per second of the normal clients.")] = 500,
    connections: Annotated[int, Parameter(help="Connections that never read.")] = 500,
    output: Output = PLAIN,
) -> int:
    """Attack a server in every way at once during normal traffic, and compare with attackers that only burn CPU.

    `longestTurnMs` is wall time, by the server's own metric: on a machine that does other work it includes what the loop waits for a
    processor. `longestTurnCpuMs` is the CPU time of the loop's thread in a turn, and has no bound.

    For example:

      penstock bench soak --seconds 60 --json
    """
    result = BenchResult.begin("soak", locals())

    def run(group: ProcessGroup) -> None:
        attacked = _run(group, "attack", SoakJob(seconds=seconds, connections=connections), rate)
        control = _run(group, "burn", SoakJob(seconds=seconds, share=attacked["attackersCpuS"] / seconds), rate)
        result.failures += judge(attacked, control)
        if not output.as_json:
            print_table(["", *attacked], [["attack", *attacked.values()], ["control", *control.values()]])

    return ProcessGroup(result, durable=True).run(run, output)


def judge(attacked: Figures, control: Figures) -> list[str]:
    """The bounds that the attack exceeded. Only the latency of normal clients is compared with the control run."""
    ratio = attacked["p99Ms"] / max(control["p99Ms"], 0.001)
    over = [
        f"{name} is {attacked[name]:,.0f}, at most {most:,.0f}"
        for name, most in BOUNDS.items()
        if attacked[name] > most
    ]
    return over + [f"p99 is {ratio:.1f} times that of the control run"] * (ratio > P99_RATIO_MAX)


def _peak_mib(pid: int) -> float:
    """The largest resident memory that a process had; 0 when it has ended."""
    found = re.search(r"VmHWM:\s+(\d+) kB", read_proc(pid, "status"))
    return round(int(found[1]) / 1024, 1) if found else 0.0


def _run(group: ProcessGroup, role: str, job: SoakJob, rate: int) -> Figures:
    server = group.penstock({"relay": {"signers": SIGNERS}, "spaces": [{"space": {"id": "soak"}}]}, "tcp")
    job.port, job.http_port, job.pub, job.token = server.port, server.http_port, server.pub, server.token()
    attackers = group.load(f"soak.loads:{role}", job, is_announced=True)
    normal = QueueJob(port=server.port, seconds=job.seconds, stream="soak/normal", rate=rate, board=group.board())
    sent, taken = group.flow(server.pid, "queue.loads:pace", normal, "queue.loads:consume")
    report = attackers.report()
    server.check_counts("soak/normal", sent.count)
    done, longest_ms = to_round(server.pid, sent, taken), server.metric("penstock_loop_turn_longest_seconds") * 1e3
    cpu_ms = server.metric("penstock_loop_turn_longest_cpu_seconds") * 1e3
    group.result.add(role, f"nothing: one envelope a write; {report.count:,} attacks", [done])
    sizes = [_peak_mib(pid) for pid in (server.pid, server.relay_pid)]
    server.stop()
    if not (checked := audit(server.data)).is_sound:
        raise BenchError(f"the journal is damaged: {checked.findings[0].what}")
    values = (round(longest_ms, 1), *sizes, abs(sent.count - taken.count), (done.latency_ms or {})["p99"], report.cpu_s)
    figures = dict(zip((*BOUNDS, "p99Ms", "attackersCpuS"), values, strict=True)) | {
        "longestTurnCpuMs": round(cpu_ms, 1)
    }
    group.result.notes.append(f"{role}: {msgspec.json.encode(figures).decode()}")
    return figures
