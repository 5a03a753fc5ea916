"""One answer of the answers that several cells gave to the same request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.rules.rule_set import RECENT_MAX
from penstock.dialects.courier.operations.outcomes import Body

_encode = msgspec.json.encode
_decode = msgspec.json.decode


class _Streams(msgspec.Struct):
    streams: list[msgspec.Raw]


class _Rows(msgspec.Struct, rename="camel"):
    rows: list[msgspec.Raw]
    watermark: int
    as_of: str


def metrics(bodies: list[bytes]) -> bytes:
    """Every stream of every cell."""
    return _encode(_Streams([row for body in bodies for row in _decode(body, type=_Streams).streams]))


def where(bodies: list[bytes]) -> bytes:
    """Every place of an envelope, settled ones last."""
    found: list[Body] = [_decode(body) for body in bodies]
    places = [place for one in found for place in one["places"]]
    return _encode({**found[0], "places": sorted(places, key=lambda row: row["state"] == "settled")})


def snapshot(bodies: list[bytes]) -> bytes:
    """The rows of all cells, with the highest of their watermarks."""
    found = [_decode(body, type=_Rows) for body in bodies]
    rows = [row for one in found for row in one.rows]
    return _encode(_Rows(rows, max(one.watermark for one in found), max(one.as_of for one in found)))


def triggers(bodies: list[bytes]) -> bytes:
    """Every trigger, with the sums of its counts."""
    rows: dict[str, list[Body]] = {}
    for body in bodies:
        for row in _decode(body)["triggers"]:
            rows.setdefault(row["id"], []).append(row)
    return _encode({"triggers": [_trigger(same) for same in rows.values()]})


def trigger(bodies: list[bytes]) -> bytes:
    """One trigger, with the sums of its counts."""
    return _encode(_trigger([_decode(body) for body in bodies]))


def _trigger(rows: list[Body]) -> Body:
    first = rows[0]
    merged: Body = {**first}
    if "counters" in first:
        merged["counters"] = {
            name: sum(row["counters"].get(name, 0) for row in rows) if isinstance(value, int) else value
            for name, value in first["counters"].items()
        }
        merged["state"] = next((row["state"] for row in rows if row["state"] == "resting"), first["state"])
    if "recent" in first:
        recent = [event for row in rows for event in row["recent"]]
        merged["recent"] = sorted(recent, key=lambda event: str(event["at"]), reverse=True)[:RECENT_MAX]
        merged["cooling"] = [one for row in rows for one in row["cooling"]][:RECENT_MAX]
        reasons: dict[str, Any] = {one["code"]: one for row in reversed(rows) for one in row["reasons"]}
        if len(reasons) > 1:
            reasons.pop("no_match", None)
        merged["reasons"] = list(reasons.values())
    return merged


def same(bodies: list[bytes]) -> bytes:
    """An answer that every cell gives alike."""
    return bodies[0]


MERGES: dict[str, Callable[[list[bytes]], bytes]] = {
    "metrics": metrics,
    "where": where,
    "snapshot": snapshot,
    "triggers": triggers,
    "trigger": trigger,
    "trigger_explain": trigger,
    "trigger_put": same,
    "trigger_remove": same,
}
"""By the name of the HTTP route."""
