"""Ask `writer.py` for a story and show it as it arrives, with a badge that says how much of it was verified.

Restart the relay or cut the connection: the story continues where it was, or an error says why it cannot.

    python examples/tokens/reader.py ["a prompt"] [--count N] [--plain]
"""

import argparse
import asyncio
import sys

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

import penstock


def picture(story: str, stream: penstock.TokenStream, state: str) -> Panel:
    counts = stream.counts
    badge = Text(f" ✔ verified: {counts.accepted} messages ", style="bold white on green")
    notes = f"  {counts.duplicates} repeated, {counts.ahead} early, {counts.tampered} not the writer's, asked again {counts.asked}"
    return Panel(Group(Text(story), Text.assemble("\n", badge, (notes, "dim"))), title=state)


async def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("prompt", nargs="?", default="a mill")
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--plain", action="store_true", help="only the text, as it arrives")
    options.add_argument("--pub", help="subscribe here instead of where the writer says")
    wanted = options.parse_args()
    relay = penstock.local_relay()
    offer = penstock.StreamOffer()
    async with penstock.connect(agent="reader") as client:
        question = {"offer": offer.text, "prompt": wanted.prompt, "count": wanted.count}
        answer = await client.ask("writer", question, timeout=10)  # without `writer.py` the error says so
    # The writer's key is known beforehand, so the answer cannot contain another one.
    agreed = offer.accept(answer.payload["answer"], signer=relay.signer.public)
    story = ""
    try:
        async with penstock.TokenStream(wanted.pub or agreed.endpoint, agreed.keys) as stream:
            if wanted.plain:
                async for token in stream:
                    print(token, end="", flush=True)
            else:
                with Live(console=Console(), refresh_per_second=12) as live:
                    while batch := await stream.next_batch():
                        story += "".join(batch)
                        live.update(picture(story, stream, "streaming"))
                    live.update(picture(story, stream, "complete"))
    except penstock.BrokenStream as error:
        print(f"\nwhat you read is genuine, but incomplete: {error}", file=sys.stderr)
        return 1
    stats = stream.stats
    assert stats is not None
    print(f"\nverified: {stats.tokens} tokens, {stream.counts.tampered} forged, finish {stats.finish_reason}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except penstock.PenstockError as error:
        sys.exit(f"error: {error}")
