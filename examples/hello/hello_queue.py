"""Hello through the queue: one agent asks, another answers. Run it where `penstock up` runs, or with PENSTOCK_URL set."""

import asyncio

import penstock


async def greet(question: penstock.Delivery) -> None:
    await question.reply(f"hello, {question.payload}")


async def main() -> None:
    async with penstock.connect(agent="greeter") as greeter, penstock.connect(agent="sam") as sam:
        greeting = asyncio.create_task(greeter.inbox().work(greet))
        answer = await sam.ask("greeter", "queue")
        print(answer.payload)
        greeting.cancel()


asyncio.run(main())
