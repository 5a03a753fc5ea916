"""`penstock bench`: what the server does a second and what it costs, measured with real processes.

The parent starts servers and loads as processes and reads their CPU from the kernel. Every message is accounted for: a
run that loses one fails with exit code 3. Nothing outside `penstock bench` imports this package.
"""

from __future__ import annotations

from cyclopts import App

bench = App(name="bench", help="Measure throughput, latency, CPU and memory, with peers for comparison.")
for name, place in {
    "queue": "queue.commands",
    "http": "queue.commands",
    "clients": "clients.commands",
    "live": "queue.live",
    "growth": "growth.commands",
    "fanout": "fanout.commands",
    "relay": "relay.commands",
    "journal": "journal.commands",
    "pipeline": "pipeline.commands",
    "soak": "soak.commands",
    "cluster": "cluster.commands",
    "compare": "compare",
}.items():
    bench.command(f"penstock.bench.{place}:{name}", name=name)
