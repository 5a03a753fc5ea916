"""Payloads as values of the application's own types.

msgspec reads its structs, dataclasses and every other type that it knows. A class with `model_validate`, as pydantic's models have it,
validates the payload itself; pydantic is not imported and need not be installed. `encode` in `control/frames.py` is the way back.
"""

# size: one function, apart because subscriptions and pulls share it

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from penstock.core.errors import PenstockError, Refusal

PayloadReader = Callable[[Raw], Any]


class _Body(msgspec.Struct):
    payload: Raw


_decode_body = msgspec.json.Decoder(_Body).decode


def reader_of(kind: Any) -> PayloadReader:
    """What reads the payload of an envelope as a `kind`. Raises TypeError for a type that has no JSON."""
    validate = getattr(kind, "model_validate", None)
    decoder = msgspec.json.Decoder() if validate is not None else msgspec.json.Decoder(kind)

    def read(envelope: Raw) -> Any:
        try:
            value = decoder.decode(_decode_body(envelope).payload)
            return value if validate is None else validate(value)
        except (msgspec.ValidationError, ValueError) as error:
            name = getattr(kind, "__name__", str(kind))
            hint = "`body` has the bytes as they are; `term` moves an envelope that no consumer can read to the dead letters"
            raise PenstockError(Refusal("SchemaMismatch", f"the payload is no `{name}`: {error}", hint=hint)) from error

    return read
