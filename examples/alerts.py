"""An agent that takes alerts as work: `pipeline.alerts.to: ops` in the config sends them to its inbox.

Run it with `python examples/alerts.py`, as often as you like: each alert goes to one of them, and to another if that one dies.
"""

import asyncio

import penstock


async def main() -> None:
    async with penstock.connect(agent="ops") as client:
        async for alert in client.inbox():
            facts = alert.payload
            print(f"{facts['severity']} {facts['state']}: {facts['message']}", flush=True)
            await alert.ack()


if __name__ == "__main__":
    asyncio.run(main())
