"""An agent that takes alerts as work: `pipeline.alerts.to: ops` in the config sends them to its inbox.

It runs until Ctrl-C. Run `python examples/alerts.py` as many times as you like: each alert goes to one of the processes, and to another
if that one dies.
"""

import asyncio
import sys

import penstock


async def main() -> None:
    async with penstock.connect(agent="ops") as client:
        async for alert in client.inbox():
            facts = alert.payload
            print(f"{facts['severity']} {facts['state']}: {facts['message']}", flush=True)
            await alert.ack()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
    except penstock.PenstockError as error:
        sys.exit(f"error: {error}")
