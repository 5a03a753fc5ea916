"""Token streams: `TokenPublisher` on one side, `TokenStream` on the other, and how they agree on keys."""

from __future__ import annotations

from penstock.client.tokens_agreement import (
    Agreement,
    Answer,
    StreamOffer,
    answer_offer,
    answer_offer_with_key,
    new_signing_key,
)
from penstock.client.tokens_blocking import TokenPublisherSync, TokenStreamSync
from penstock.client.tokens_errors import (
    BrokenStream,
    GapError,
    StreamCancelled,
    StreamFailed,
    TamperedStream,
    TruncatedStream,
)
from penstock.client.tokens_line import Curve
from penstock.client.tokens_publisher import TokenPublisher
from penstock.client.tokens_stream import TokenStream
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.signing import SigningKey

__all__ = [
    "Agreement",
    "Answer",
    "BlockChain",
    "BrokenStream",
    "ChainedStreamHmac",
    "Curve",
    "GapError",
    "SigningKey",
    "StreamCancelled",
    "StreamFailed",
    "StreamOffer",
    "TamperedStream",
    "TokenPublisher",
    "TokenPublisherSync",
    "TokenStream",
    "TokenStreamSync",
    "TruncatedStream",
    "answer_offer",
    "answer_offer_with_key",
    "new_signing_key",
]
