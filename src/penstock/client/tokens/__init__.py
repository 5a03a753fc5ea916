"""Token streams: `TokenPublisher` on one side, `TokenStream` on the other, and how they agree on keys."""

from __future__ import annotations

from penstock.client.tokens.errors import (
    BrokenStream,
    GapError,
    StreamCancelled,
    StreamFailed,
    TamperedStream,
    TruncatedStream,
)
from penstock.client.tokens.offer import (
    Agreement,
    Answer,
    LocalRelay,
    StreamOffer,
    answer_offer,
    answer_offer_with_key,
    load_signing_key,
    local_relay,
    new_signing_key,
)
from penstock.client.tokens.publisher import TokenPublisher
from penstock.client.tokens.reader import TokenStream
from penstock.client.tokens.zmq_socket import Curve
from penstock.dialects.streamservice.chain import ChainedStreamHmac
from penstock.dialects.streamservice.compose_stream import Batching, RetentionOptions
from penstock.dialects.streamservice.signatures import SigningKey
from penstock.dialects.streamservice.verify_stream import RetryOptions

__all__ = [
    "Agreement", "Answer", "Batching", "BrokenStream", "ChainedStreamHmac", "Curve", "GapError", "LocalRelay",
    "RetentionOptions", "RetryOptions", "SigningKey", "StreamCancelled", "StreamFailed", "StreamOffer",
    "TamperedStream", "TokenPublisher", "TokenStream", "TruncatedStream", "answer_offer", "answer_offer_with_key",
    "load_signing_key", "local_relay", "new_signing_key",
]  # fmt: skip
