"""Penstock as a service of a Stream Kernel, all in one process: an envelope enters by one pipe and leaves by another.

Run it with `python examples/kernel.py`; it needs no server.
"""

import asyncio

import penstock
from penstock.kernel import Kernel, courier_pipe


async def main() -> None:
    async with Kernel() as kernel:
        pipe = courier_pipe(penstock.QueueCore(), object_mode=True)
        kernel.register(
            "courier",
            {"type": "transform", "accepts": ["envelope"], "produces": ["envelope", "view"]},
            pipe,
        )

        # Another program finds Penstock by its capabilities, and connects pipes to it.
        (courier,) = kernel.lookup(accepts="envelope", produces="envelope")
        requests = kernel.create_pipe(object_mode=True)
        results = kernel.create_pipe(object_mode=True)
        kernel.connect(requests, courier)
        kernel.connect(courier, results)

        envelope = {"id": "e-1", "ts": "2026-01-01T00:00:00Z", "type": "note", "payload": {"text": "hello"}}
        await requests.write({"type": "subscribe", "stream": "agents/jen/inbox", "credit": 1})
        await requests.write({"type": "enqueue", "to": "agents/jen/inbox", "env": envelope})

        # The answer and the delivery, in either order.
        frames_by_type = {frame["type"]: frame for frame in [await results.read(), await results.read()]}
        print("enqueued:", frames_by_type["ok"]["result"])
        print("delivered:", frames_by_type["deliver"]["env"]["payload"]["text"])

        await requests.write({"type": "ack", "id": "e-1", "reqId": "done"})
        print("acked:", (await results.read())["result"])
        requests.end()
        assert await results.read() is None


if __name__ == "__main__":
    asyncio.run(main())
