"""The codec of StreamService, for programs that speak the protocol of token streams themselves.

Most programs need only `penstock.TokenPublisher` and `penstock.TokenStream`. This module is the stable path to the codec; it defines nothing.
"""

# size: a public path to names that are defined elsewhere

from __future__ import annotations

from penstock.dialects.streamservice import decode, encode
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.keys import StreamKeys, agree
from penstock.dialects.streamservice.messages import Complete, StreamFailure, Token
from penstock.dialects.streamservice.ristretto import key_pair
from penstock.dialects.streamservice.signatures import Registrar, SigningKey, TrustStore, sign_registration
from penstock.dialects.streamservice.wire import peek

__all__ = [
    "BlockChain",
    "ChainedStreamHmac",
    "Complete",
    "Registrar",
    "SigningKey",
    "StreamFailure",
    "StreamKeys",
    "Token",
    "TrustStore",
    "agree",
    "decode",
    "encode",
    "key_pair",
    "peek",
    "sign_registration",
]
