"""A small inference service: it answers questions on its inbox with a stream of tokens that the asker verifies.

Run it next to `penstock up` until Ctrl-C, and ask it with `reader.py`:

    python examples/tokens/writer.py [--pace SECONDS]
"""

import argparse
import asyncio
import sys

from story import tokens

import penstock


async def write_answer(question: penstock.Delivery, relay, pace: float) -> None:
    """Agree on keys with the asker, then generate."""
    wanted = question.payload
    answer = penstock.answer_offer(wanted["offer"], relay.pub, signer=relay.signer)
    keys, stream_id = answer.agreement.keys, answer.agreement.stream_id
    publisher = penstock.TokenPublisher(
        relay.push, keys, signer=relay.signer, stream_id=stream_id, pub=relay.pub, sub="writer"
    )
    async with publisher:
        await question.reply({"answer": answer.text})
        await question.ack()
        try:
            for token in tokens(wanted["prompt"], wanted.get("count", 200)):
                await publisher.send(token)
                await asyncio.sleep(pace)
        except penstock.StreamCancelled:
            print(f"{stream_id}: the reader cancelled", flush=True)
            return
        stats = await publisher.complete("length", perplexity=3.2)
    print(f"{stream_id}: {stats.tokens} tokens, {stats.tokens_per_second:.0f} a second", flush=True)


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--pace", type=float, default=0.02, help="seconds between two tokens")
    pace = options.parse_args().pace
    relay = penstock.local_relay()
    async with (
        penstock.connect(agent="writer") as client,
        asyncio.TaskGroup() as group,
        client.inbox() as inbox,
    ):
        print(f"ready; readers trust {relay.signer.public.hex()}", flush=True)
        async for question in inbox:
            group.create_task(write_answer(question, relay, pace))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
    except penstock.PenstockError as error:
        sys.exit(f"error: {error}")
