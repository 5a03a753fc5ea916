"""The JSON checks of a large request, in steps: one envelope after the other, so that none of them holds the loop for long.

The members that carry envelopes are checked one by one, and what is around them on its own, so the bounds on the cost of JSON
(`core/json_checks.py`) hold for each envelope and not for an array of them. A small request needs none of this.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache

import msgspec

from penstock.core.errors import Refusal
from penstock.core.json_checks import cost_problem, depth_problem
from penstock.core.limits import Limits
from penstock.core.steps import STEP_BYTES
from penstock.dialects.courier.wire.envelopes import json_problem, json_steps, too_large

PART_MIN = 64 * 1024
"""Bytes from which on a member is checked on its own."""


class _Outline(msgspec.Struct):
    """The members of any request that carry envelopes."""

    envelopes: msgspec.Raw = msgspec.Raw()
    envelope: msgspec.Raw = msgspec.Raw()
    env: msgspec.Raw = msgspec.Raw()
    payload: msgspec.Raw = msgspec.Raw()


_outline = msgspec.json.Decoder(_Outline)


@cache
def _items(most: int) -> msgspec.json.Decoder[msgspec.Struct]:
    """Reads the first `most` items of an array and skips the rest: an array may have millions."""
    fields = [(f"i{number}", msgspec.Raw, msgspec.Raw()) for number in range(most)]
    return msgspec.json.Decoder(msgspec.defstruct("Items", fields, array_like=True))


def check_request(data: bytes, limits: Limits) -> Generator[None, None, Refusal | None]:
    """The checks of a request in steps; its value says what is wrong. Whether it has the right members is left to its type."""
    try:
        outline = _outline.decode(data)
    except msgspec.ValidationError:  # no object
        return None
    except (msgspec.DecodeError, RecursionError) as error:
        return Refusal("InvalidJSON", f"the body is not JSON: {error}")
    yield
    rest = data
    envelopes: list[bytes] = []
    for member in (outline.envelopes, outline.envelope, outline.env, outline.payload):
        value = bytes(member)
        if len(value) <= PART_MIN:  # it is checked with the rest, except for its depth
            problem = depth_problem(value, limits.depth_max + value.startswith(b"["))
            if problem is not None:
                return problem
            continue
        # Should the same bytes stand elsewhere before, it is they that are cut out, and this member is checked twice.
        rest = rest.replace(value, b"0", 1)
        if value[:1] != b"[" or member is outline.payload:
            envelopes.append(value)
            continue
        yield
        items = _items(limits.batch_max + 1).decode(value)
        yield
        found = list(map(bytes, msgspec.structs.astuple(items)))
        if found[-1]:
            return Refusal("InvalidRequest", f"an array has 1 to {limits.batch_max} envelopes", ref="envelopes")
        envelopes += [item for item in found if item]
        yield
    if len(rest) > limits.envelope_max:
        return Refusal("TooLarge", f"a request has at most {limits.envelope_max} bytes around its envelopes")
    problem = yield from json_steps(rest)
    checked = 0
    for envelope in envelopes:
        if problem is not None:
            break
        if len(envelope) > limits.envelope_max:
            return too_large(envelope, limits)
        if len(envelope) > STEP_BYTES:
            problem = yield from json_steps(envelope)
        else:
            problem = cost_problem(envelope) or json_problem(envelope)
        problem = problem or depth_problem(envelope, limits.depth_max)
        checked += len(envelope)
        if checked > STEP_BYTES:
            checked = 0
            yield
    return problem
