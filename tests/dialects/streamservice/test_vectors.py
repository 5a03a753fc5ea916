"""Published vectors: the keys, the chains, the canonical envelope with its signature, and the multiples of RFC 9496."""

from __future__ import annotations

import hashlib

import pytest

from penstock.core.errors import Refusal
from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.keys import Suite, agree, derive, hkdf_expand, hkdf_extract
from penstock.dialects.streamservice.messages import Claims, RequestEnvelope, StreamRegister, StreamScope
from penstock.dialects.streamservice.ristretto import key_pair, shared_secret
from penstock.dialects.streamservice.signatures import Registrar, Registration, SigningKey, TrustStore, sign
from penstock.dialects.streamservice.wire import Register, peek
from tests.dialects.streamservice.reference import NOW_MS, TOPIC, canonical_message, read_signed

SHARED = b"\x42" * 32
CLIENT, SERVER = b"\x01" * 32, b"\x02" * 32
MAC_KEY = "9b1f072ea349f3d7425b313073d5edcbc3ee813dca5a4ea498bc177ec8a9c5ae"
ENVELOPE = RequestEnvelope(
    payload=encode.register(StreamRegister(TOPIC, 1_762_974_327)),
    nonce=b"\x2a" * 16,
    timestamp_ms=NOW_MS,
    claims=Claims("svc", 1_762_974_327, 1_762_974_000, (StreamScope("publish", "stream", TOPIC),)),
)
SIGNER = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
SIGNATURE = (
    "c37c42f97e566b7282d1749f43610300f390d238e892d1289781a9db89d32c8a"
    "846e4e22ed2beed18a4af86d12c463b8060c2eca90a4579d918e1ce43177f505"
)


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "keys, chains, the canonical envelope and its signature match published vectors; RFC 9496 vectors are accepted and rejected as specified",
)
@pytest.mark.parametrize(
    ("suite", "topic", "mac_key"),
    [
        ("sha256", TOPIC, MAC_KEY),
        (
            "blake3",
            "81c77f8b77d98291656e16bb60234827213f64e06e6a0d93a86845b4e1e12b5b",
            "ec61001b2592a8784c9bf4a46c50eb408ee3a4a855ee220411775e8e3f6be646",
        ),
    ],
)
def test_keys_of_a_known_secret(suite: Suite, topic: str, mac_key: str) -> None:
    for keys in (derive(SHARED, CLIENT, SERVER, suite), derive(SHARED, SERVER, CLIENT, suite)):
        assert not isinstance(keys, Refusal)
        assert (keys.topic, keys.mac_key.hex()) == (topic, mac_key)


def test_control_and_encryption_keys_of_blake3() -> None:
    keys = derive(SHARED, CLIENT, SERVER, "blake3")
    assert not isinstance(keys, Refusal)
    assert keys.ctrl_topic == "e45d0bbe2dd11712d1a7a1e0e62d6f1a5ddfdd90bc06b82ab157daeb99c4d594"
    assert keys.ctrl_mac_key.hex() == "eb0ffaaba1582286f255b2fc38dfa41ce2ac85c7cf197ee637918fd0cf1fbd40"
    assert keys.enc_key.hex() == "d73914179261b4377b5a08abe8ade78acd4be13117a18f47f37cb4895af2e97e"


def test_hkdf_without_a_salt() -> None:
    salt = bytes(one ^ other for one, other in zip(CLIENT, SERVER, strict=True))
    prk = hkdf_extract(bytes(32), SHARED + salt)
    topic = hkdf_expand(prk, b"hyprstream stream-keys v1 topic").hex()
    mac = hkdf_expand(prk, b"hyprstream stream-keys v1 mac").hex()
    assert topic == "98149029542c1fd6563fabe71e2ee82afcd0c0799301df6d1fccb61d712cb4de"
    assert mac == "6042218c34db7f11ada380522dabc49179d88948ff88af3a3c29e1e00c46f51f"


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "keys, chains, the canonical envelope and its signature match published vectors; RFC 9496 vectors are accepted and rejected as specified",
)
def test_key_agreement() -> None:
    client = key_pair(hashlib.sha512(b"client").digest())
    server = key_pair(hashlib.sha512(b"server").digest())
    assert client.secret.hex() == "e5f9684a163a0a7a07988372110cbbb9f1ef71951a61a7ebf2fa72bf79358b0a"
    assert client.public.hex() == "d093d2fd77a88232f2ed0bcbb60d01401db604f6c10e0ce744c7805b7c578275"
    assert server.secret.hex() == "b9ea091b636a50cf1dbc0f96e78a8e89a0825f1602d08e78c910b8f8b163a708"
    assert server.public.hex() == "244a8451213368f3497009c14fb08c4f15b18ef8f7c1789ff1102352cb968342"
    shared = "cc2c25662a2ec9988469f923753bcb8f7647ad45e0652438ec7592e1dbef706b"
    assert shared_secret(client, server.public) == shared_secret(server, client.public) == bytes.fromhex(shared)
    for keys in (agree(client, server.public), agree(server, client.public)):
        assert not isinstance(keys, Refusal)
        assert keys.topic == "f5350a6278356cae0de4523cb33e1de86af1bf9ef6c5d67ce9946df8e430d4d2"
        assert keys.mac_key.hex() == "77dea280320a25faea65e0861ffe633cbefe26d1e0beba7927d767e5a0dea4c4"


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "keys, chains, the canonical envelope and its signature match published vectors; RFC 9496 vectors are accepted and rejected as specified",
)
def test_chunk_chain() -> None:
    expected = [
        "7adbea7500770f15f9d0ff21671464c28297fbf9ae434f96bb3625596e4d57af",
        "6833f91431e182c228677dbc7994c6caaf2ba9569b61bf48c56a5dfe202d0c52",
    ]
    sender = ChainedStreamHmac(bytes.fromhex(MAC_KEY), TOPIC)
    assert [sender.compute_next(data).hex() for data in (b"token 1", b"token 2")] == expected
    reader = ChainedStreamHmac(bytes.fromhex(MAC_KEY), TOPIC)
    assert not reader.verify_next(b"token 2", bytes.fromhex(expected[1]))
    assert reader.verify_next(b"token 1", bytes.fromhex(expected[0]))
    assert reader.verify_next(b"token 2", bytes.fromhex(expected[1]))


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "keys, chains, the canonical envelope and its signature match published vectors; RFC 9496 vectors are accepted and rejected as specified",
)
def test_block_chain() -> None:
    chain = BlockChain(bytes.fromhex(MAC_KEY), TOPIC)
    macs = [chain.compute_next(data).hex() for data in (b"block 0", b"block 1")]
    assert macs == ["21e909b437ec6e0bb37a3ccc5d61de71", "e0dc3121a5f206af4c06e5c133b27524"]


def test_the_chain_of_a_request_number_is_the_same_chain_from_another_start() -> None:
    start = (12345).to_bytes(8, "little") + bytes(24)
    chain = ChainedStreamHmac(SHARED, TOPIC, state=start)
    assert chain.compute_next(b"chunk 1").hex().startswith("dc24c575b10da566")
    assert chain.compute_next(b"chunk 2").hex().startswith("b433c4507caccf0d")


@pytest.mark.promise(
    "Token streams: bytes, keys and signatures",
    "keys, chains, the canonical envelope and its signature match published vectors; RFC 9496 vectors are accepted and rejected as specified",
)
def test_canonical_envelope_and_its_signature() -> None:
    data = canonical_message(encode.request(ENVELOPE))
    assert isinstance(data, bytes)
    assert len(data) == 368
    assert hashlib.sha256(data).hexdigest() == "5cbf5ec3c4b91b353dee595a7eff34bf2cf9ecb519ff51d73bac7dc5dd6929ef"
    key = SigningKey(bytes(range(32)))
    assert key.public.hex() == SIGNER
    assert key.sign(data).hex() == SIGNATURE


def test_the_signed_envelope_is_admitted_and_a_changed_one_is_not() -> None:
    frame = sign(ENVELOPE, SigningKey(bytes(range(32))))
    signed = read_signed(frame)
    assert signed.signature.hex() == SIGNATURE  # type: ignore[union-attr]
    trust = TrustStore({"svc": bytes.fromhex(SIGNER)})
    register = peek(frame)
    assert isinstance(register, Register)
    assert isinstance(Registrar(trust).admit(register, NOW_MS), Registration)
    wrong = Register(frame.replace(b"svc\0", b"svd\0"), register.signature, register.signer)
    refusal = Registrar(trust).admit(wrong, NOW_MS)
    assert isinstance(refusal, Refusal)
    assert refusal.ref == "signature"
