"""Players send positions to the game server only, and the server sends the world to all participants.

With N players that is N + 1 streams and O(N) deliveries per tick; without a target each position would go to each player, which is O(N²).

    python examples/mew/game_positions.py [URL] [NAME=TOKEN …]
"""

import asyncio
import json

from room import participant, run

PLAYERS = ("player-1", "player-2", "player-3")
TICKS = 5


async def game_server(is_there: asyncio.Event) -> None:
    async with participant("game-server") as space:
        positions = space.frames()
        world = await space.open_stream(format="world-state", content_type="application/json")
        is_there.set()
        ticks: dict[int, dict[str, list[int]]] = {}
        count = 0
        async for frame in positions:
            if frame.stream_id == world.id:
                continue  # a broadcast returns to its sender
            count += 1
            step = json.loads(frame.data)
            tick = ticks.setdefault(step["tick"], {})
            tick[step["player"]] = step["at"]
            if len(tick) == len(PLAYERS):
                await world.write(json.dumps({"tick": step["tick"], "world": tick}))
                if step["tick"] == TICKS - 1:
                    break
        await world.close()
    print(f"game-server received {count} positions, and sent {TICKS} states of the world")


async def player(name: str, number: int) -> None:
    async with participant(name) as space:
        received = space.frames()
        mine = await space.open_stream("game-server", format="position", content_type="application/json")
        worlds = others = 0
        for tick in range(TICKS):
            await mine.write(json.dumps({"tick": tick, "player": name, "at": [number, tick]}))
        async for frame in received:
            update = json.loads(frame.data)
            worlds += "world" in update
            others += "player" in update
            if update["tick"] == TICKS - 1:
                break
        await mine.close()
    print(f"{name} received {worlds} states of the world, and {others} positions of others")
    assert (worlds, others) == (TICKS, 0)


async def main() -> None:
    async with asyncio.TaskGroup() as game:
        is_there = asyncio.Event()
        game.create_task(game_server(is_there))
        await is_there.wait()  # a target must be in the space when the stream is opened
        for number, name in enumerate(PLAYERS):
            game.create_task(player(name, number))


if __name__ == "__main__":
    run(main())
