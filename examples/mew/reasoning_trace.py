"""An agent streams its reasoning to its orchestrator only; its conclusion goes to all participants.

Every participant sees that the stream exists and whom it is for. A target saves deliveries; it is neither confidential nor access control.

    python examples/mew/reasoning_trace.py [URL] [NAME=TOKEN …]
"""

import asyncio

from room import participant, run

import penstock

THOUGHTS = ("the tests fail on Tuesdays", "the clock is in another zone", "the fixture has no time zone")


async def agent() -> None:
    async with participant("agent") as space:
        trace = await space.open_stream(
            "orchestrator", content_type="text/plain", description="Chain-of-thought reasoning"
        )
        for thought in THOUGHTS:
            await trace.write(thought)
        await trace.close()
        await space.chat("give the fixture a time zone")


async def listener(name: str, is_there: asyncio.Event, thoughts_expected: int) -> None:
    async with participant(name) as space:
        arrivals = space.arrivals(["chat", "stream/open"])
        is_there.set()
        thoughts: list[str] = []
        async for item in arrivals:
            if isinstance(item, penstock.Frame):
                thoughts.append(item.data.decode())
            elif item.kind == "stream/open":
                print(
                    f"{name} sees {item.payload['stream_id']} from {item.payload['owner']} to {item.payload['target']}"
                )
            else:
                break  # the conclusion; what one participant sends arrives in order, so no thought comes later
        print(f"{name} received {len(thoughts)} thoughts, and the conclusion: {item.payload['text']}")
        assert len(thoughts) == thoughts_expected


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        for name, expected in (("orchestrator", len(THOUGHTS)), ("bystander", 0)):
            is_there = asyncio.Event()
            group.create_task(listener(name, is_there, expected))
            await is_there.wait()
        group.create_task(agent())


if __name__ == "__main__":
    run(main())
