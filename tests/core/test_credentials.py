from hypothesis import given
from hypothesis import strategies as st

from penstock.core.credentials import TOKEN_BYTES, token_text


@given(st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES))
def test_a_token_is_taken_as_a_value_by_every_command_line(entropy: bytes) -> None:
    text = token_text(entropy)
    assert len(text) == 43 and text.isascii() and not text.startswith("-")
    assert text.replace("-", "").replace("_", "").isalnum()


def test_one_that_would_begin_with_a_dash_begins_otherwise() -> None:
    assert token_text(b"\xf8" + bytes(31)).startswith("pA")
