"""Hello through a space: Ann talks to all participants, and streams to Bob only.

Run it where `penstock up --config …/hello/config.yaml` runs.
"""

import asyncio
import sys

import penstock


async def main() -> None:
    ann = penstock.Space(space="hello", participant="ann", token="ann-token")
    bob = penstock.Space(space="hello", participant="bob", token="bob-token")
    async with bob, ann:
        received, frames = bob.envelopes("chat"), bob.frames()
        await ann.chat("hello, everybody")
        stream = await ann.open_stream("bob")
        await stream.write("hello, bob")
        print((await received.next()).payload["text"], (await frames.next()).data.decode(), sep="\n")


try:
    asyncio.run(asyncio.wait_for(main(), timeout=30))
except penstock.PenstockError as error:
    sys.exit(f"error: {error}")
except TimeoutError:
    sys.exit("error: no answer after 30 seconds\nhint: `penstock doctor` checks the server")
