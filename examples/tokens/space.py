"""The same with a MEW space: two envelopes agree on the keys, and the tokens do not pass through the space.

penstock up --config examples/tokens/config.yaml
python examples/tokens/space.py [URL] [NAME=TOKEN …]
"""

import asyncio
import sys

from story import tokens

import penstock

URL = next((word for word in sys.argv[1:] if "=" not in word), None)
TOKENS = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
DEADLINE_S = 60.0


def participant(name: str) -> penstock.Space:
    return penstock.Space(URL, space="demo", participant=name, token=TOKENS.get(name, f"{name}-token"))


async def writer(relay, is_there: asyncio.Event) -> None:
    async with participant("writer") as space:
        asked = space.envelopes("tokens/start")
        is_there.set()
        question = await asked.next()
        assert question is not None
        answer = penstock.answer_offer(question.payload["offer"], relay.pub, signer=relay.signer)
        async with penstock.TokenPublisher(relay.push, answer.agreement.keys, signer=relay.signer) as publisher:
            await space.send("tokens/info", {"answer": answer.text}, to=question.sender, correlation_id=question.id)
            for token in tokens(question.payload["prompt"], 50):
                await publisher.send(token)


async def reader(relay) -> None:
    async with participant("reader") as space:
        offer = penstock.StreamOffer()
        answer = await space.request("tokens/start", {"offer": offer.text, "prompt": "a mill"}, to="writer")
        agreed = offer.accept(answer.payload["answer"], signer=relay.signer.public)
        async with penstock.TokenStream(agreed.endpoint, agreed.keys) as stream:
            story = "".join([token async for token in stream])
        print(f"{story}\nverified: {stream.counts.accepted} messages")


async def main() -> None:
    relay = penstock.local_relay()
    is_there = asyncio.Event()
    writing = asyncio.create_task(writer(relay, is_there))
    await asyncio.wait([writing, asyncio.create_task(is_there.wait())], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(writing, reader(relay))


if __name__ == "__main__":
    try:
        asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    except TimeoutError:
        sys.exit(
            f"error: not done after {DEADLINE_S:g} seconds\nhint: `penstock doctor` checks the server and its relay"
        )
    except penstock.PenstockError as error:
        sys.exit(f"error: {error}")
