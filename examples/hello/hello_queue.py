"""Hello through the queue: one agent asks, another answers. Run it where `penstock up` runs, or with PENSTOCK_URL set."""

import asyncio
import sys

import penstock


async def greet(question: penstock.Delivery) -> None:
    await question.reply(f"hello, {question.payload}")


async def main() -> None:
    async with penstock.connect(agent="greeter") as greeter, penstock.connect(agent="sam") as sam:
        greeting = asyncio.create_task(greeter.inbox().work(greet))
        answer = await sam.ask("greeter", "queue")
        print(answer.payload)
        greeting.cancel()


try:
    asyncio.run(asyncio.wait_for(main(), timeout=30))
except penstock.PenstockError as error:
    sys.exit(f"error: {error}")
except TimeoutError:
    sys.exit("error: no answer after 30 seconds\nhint: `penstock doctor` checks the server")
