"""Ristretto points: the published multiples, and encodings that are rejected."""

from __future__ import annotations

import pytest

from penstock.core.errors import Refusal
from penstock.dialects.streamservice.ristretto import check_public, pair_of, shared_secret

MULTIPLES = [
    "e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76",
    "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919",
    "94741f5d5d52755ece4f23f044ee27d5d1ea1e2bd196b462166b16152a9d0259",
    "da80862773358b466ffadfe0b3293ab3d9fd53c5ea6c955358f568322daf6a57",
    "e882b131016b52c1d3337080187cf768423efccbb517bb495ab812c4160ff44e",
    "f64746d3c92b13050ed8d80236a7f0007c3b3f962f5ba793d19a601ebb1df403",
    "44f53520926ec81fbd5a387845beb7df85a96a24ece18738bdcfa6a7822a176d",
    "903293d8f2287ebe10e2374dc1a53e0bc887e592699f02d077d5263cdd55601c",
    "02622ace8f7303a31cafc63f8fc48fdc16e1c8c8d234b2f0d6685282a9076031",
    "20706fd788b2720a1ed2a5dad4952b01f413bcf0e7564de8cdc816689e2db95f",
    "bce83f8ba5dd2fa572864c24ba1810f9522bc6004afe95877ac73241cafdab42",
    "e4549ee16b9aa03099ca208c67adafcafa4c3f3e4e5303de6026e3ca8ff84460",
    "aa52e000df2e16f55fb1032fc33bc42742dad6bd5a8fc0be0167436c5948501f",
    "46376b80f409b29dc2b5f6f0c52591990896e5716f41477cd30085ab7f10301e",
    "e0c418f7c8d9c4cdd7395b93ea124f3ad99021bb681dfc3302a9d99a2e53e64e",
]
"""B[1] to B[15] of RFC 9496, appendix A.1; B[0] is the identity, which is no public key."""


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "keys, chains, the canonical envelope and its signature match published vectors; RFC 9496 vectors are accepted and rejected as specified",
)
@pytest.mark.parametrize(("factor", "encoding"), list(enumerate(MULTIPLES, 1)))
def test_multiples_of_the_generator(factor: int, encoding: str) -> None:
    pair = pair_of(factor.to_bytes(32, "little"))
    assert pair.public.hex() == encoding
    assert check_public(pair.public) is None


INVALID_ENCODINGS = [
    # Non-canonical field encodings.
    "00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "f3ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    # Negative field elements.
    "0100000000000000000000000000000000000000000000000000000000000000",
    "01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ed57ffd8c914fb201471d1c3d245ce3c746fcbe63a3679d51b6a516ebebe0e20",
    # A square root that is not one.
    "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",
    # A point whose second coordinate is zero.
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "keys, chains, the canonical envelope and its signature match published vectors; RFC 9496 vectors are accepted and rejected as specified",
)
@pytest.mark.parametrize("encoding", INVALID_ENCODINGS)
def test_invalid_encodings_are_refused(encoding: str) -> None:
    assert isinstance(check_public(bytes.fromhex(encoding)), Refusal)
    assert isinstance(shared_secret(pair_of(b"\x07" + bytes(31)), bytes.fromhex(encoding)), Refusal)
