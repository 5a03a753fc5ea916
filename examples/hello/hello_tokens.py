"""Hello through the relay: a stream of tokens that its reader verifies. Run it where `penstock up` runs."""

import asyncio
import sys

import penstock


async def main() -> None:
    relay, offer = penstock.local_relay(), penstock.StreamOffer()
    answer = penstock.answer_offer(offer.text, relay.pub, signer=relay.signer)
    agreed = offer.accept(answer.text, signer=relay.signer.public)
    async with penstock.TokenPublisher(relay.push, answer.agreement.keys, signer=relay.signer) as publisher:
        for token in ("hello", ", ", "tokens"):
            await publisher.send(token)
    async with penstock.TokenStream(agreed.endpoint, agreed.keys) as stream:
        print("".join([token async for token in stream]))


try:
    asyncio.run(asyncio.wait_for(main(), timeout=30))
except penstock.PenstockError as error:
    sys.exit(f"error: {error}")
except TimeoutError:
    sys.exit("error: no answer after 30 seconds\nhint: `penstock doctor` checks the server")
