"""A process tree has the descendants of a process, their CPU and their memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from penstock.bench.harness.processes import cpu_s
from penstock.bench.pipeline.processes import ProcessTree


def test_a_tree_has_the_processes_that_a_process_started():
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    try:
        tree = ProcessTree(process.pid)
        assert tree.pids() == [process.pid, child]
        spent = tree.cpu_s()
        assert spent >= cpu_s(process.pid) > 0
        assert tree.rss_bytes() > tree.pss_bytes() > 0
        assert tree.names()["sleep"] == [child]
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()
    assert tree.pids() == [process.pid] and tree.cpu_s() >= spent
