"""`penstock bench`: what the server does a second, and what it costs, measured with real processes.

The parent starts a server, a producer and a consumer, each a process of its own, and reads their CPU from the kernel. Every
envelope is accounted for: a run that loses one, or leaves one unacked, fails with exit code 3.
"""

from __future__ import annotations

from cyclopts import App

bench = App(
    name="bench",
    help="""Measure throughput, latency, CPU and memory; peers side by side.

`queue` is Control v1 beside Redis Streams, `http` is POST /v1/enqueue,
`streams` is memory and waits with very many streams, `live` is the
followers of a view, `fanout` is frames of streams in a space beside a
Node relay, `relay` is token streams beside libzmq's own proxy, `journal`
is the log on disk beside SQLite, `pipeline` is the Spark side beside
Spark's own file sources.""",
)
bench.command("penstock.bench.commands:queue", name="queue")
bench.command("penstock.bench.commands:http", name="http")
bench.command("penstock.bench.streams:streams", name="streams")
bench.command("penstock.bench.live:live", name="live")
bench.command("penstock.bench.fanout:fanout", name="fanout")
bench.command("penstock.bench.relay:relay", name="relay")
bench.command("penstock.bench.journaling:journal", name="journal")
bench.command("penstock.bench.pipeline:pipeline", name="pipeline")
