"""Compressed bodies are read exactly and never beyond their bound."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.transports.content_encoding import MEMBERS_MAX, EncodingError, OversizeError, coding, inflate

BOUND = 10_000


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@given(st.binary(max_size=2_000))
def test_what_was_packed_comes_out(data: bytes) -> None:
    assert inflate(gzip.compress(data), "gzip", BOUND) == data
    assert inflate(zlib.compress(data), "deflate", BOUND) == data
    assert inflate(raw_deflate(data), "deflate", BOUND) == data
    assert inflate(gzip.compress(data) + gzip.compress(data), "x-gzip", BOUND) == data + data


@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate"]))
def test_any_bytes_give_a_body_or_a_reason(data: bytes, name: str) -> None:
    try:
        assert len(inflate(data, name, 100)) <= 100
    except (EncodingError, OversizeError):
        pass


@given(st.integers(0, 30), st.sampled_from(["gzip", "deflate"]))
def test_a_body_that_is_cut_is_refused(cut: int, name: str) -> None:
    whole = (gzip if name == "gzip" else zlib).compress(b"some words, and some words again")
    with pytest.raises(EncodingError, match=name):
        inflate(whole[: min(cut, len(whole) - 1)], name, BOUND)


def test_exactly_the_bound_fits_and_one_byte_more_does_not() -> None:
    assert len(inflate(gzip.compress(b"a" * BOUND), "gzip", BOUND)) == BOUND
    with pytest.raises(OversizeError):
        inflate(gzip.compress(b"a" * (BOUND + 1)), "gzip", BOUND)
    with pytest.raises(OversizeError):
        inflate(gzip.compress(b"a" * BOUND) + gzip.compress(b"b"), "gzip", BOUND)


@pytest.mark.promise("Limits, reload and HTTP details", "compressed bodies are accepted within their bound")
def test_a_bomb_is_stopped_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte of zeros in a megabyte; what is made of it is watched."""
    bomb = gzip.compress(bytes(1 << 24), 9) * 64
    made = []

    class Watched:
        def __init__(self, bits: int) -> None:
            self._reader = zlib_decompressobj(bits)

        def decompress(self, data: bytes, most: int) -> bytes:
            plain = self._reader.decompress(data, most)
            made.append(len(plain))
            return plain

        def __getattr__(self, name: str) -> object:
            return getattr(self._reader, name)

    zlib_decompressobj = zlib.decompressobj
    monkeypatch.setattr("penstock.transports.content_encoding.zlib.decompressobj", Watched)
    with pytest.raises(OversizeError):
        inflate(bomb, "gzip", 1 << 20)
    assert sum(made) <= (1 << 20) + 1


def test_many_empty_members_and_trailing_bytes_are_refused() -> None:
    with pytest.raises(EncodingError, match="behind its end"):
        inflate(gzip.compress(b"") * (MEMBERS_MAX + 1), "gzip", BOUND)
    with pytest.raises(EncodingError):
        inflate(gzip.compress(b"x") + b"junk", "gzip", BOUND)
    with pytest.raises(EncodingError, match="behind its end"):
        inflate(zlib.compress(b"x") + zlib.compress(b"y"), "deflate", BOUND)


@pytest.mark.parametrize(
    ("header", "name"), [(None, None), ("identity", None), (" GZIP ", "gzip"), ("br", "br"), ("gzip, gzip", "gzip, gzip")]
)  # fmt: skip
def test_the_header(header: str | None, name: str | None) -> None:
    assert coding(header) == name
