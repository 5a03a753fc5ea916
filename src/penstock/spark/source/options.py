"""The options of the source, parsed and checked. Those that Spark's Kafka source has too have the same names.

`where`     path (from `load`), url, token, tokenFile, retryTimeout
`from, to`  startingOffsets, startingTimestamp, endingOffsets, endingTimestamp
`how much`  maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay, minPartitions
`which`     door, channel, event, includePipeline, columns, bodyAs, pushdown
`care`      failOnDataLoss, reader
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase

import pyarrow as pa

from penstock.core.rows import EVENTS
from penstock.journal.named_readers import name_problem
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.journal.selection import Selection
from penstock.spark.errors import SourceError, unknown_option
from penstock.spark.location import RETRY_S, JournalLocation, parse_locations
from penstock.spark.source.offsets import Points, parse

NAMES = (
    "path", "url", "token", "tokenFile", "retryTimeout",
    "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "door", "channel", "event", "includePipeline", "columns", "bodyAs", "pushdown",
    "failOnDataLoss", "reader",
)  # fmt: skip
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "pushdown")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "reader")
TRIGGER_DELAY_S = 15 * 60.0
"""How long rows wait for `minOffsetsPerTrigger`; the default of `maxTriggerDelay`."""
BODY_TYPES = {"binary": pa.binary(), "string": pa.string(), "json": pa.string()}

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)\s*")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options of a query. Sent to executors."""

    locations: tuple[JournalLocation, ...]
    given: frozenset[str]
    """Names of the options that were given."""
    columns: tuple[str, ...]
    body_as: str
    selection: Selection
    includes_pipeline: bool | None
    """None: the default, which is yes for a batch read and no for a stream."""
    starting: Points | int | None
    starting_us: int | None
    ending: Points | int | None
    ending_us: int | None
    rows_max: int | None
    rows_min: int | None
    delay_s: float
    partitions_min: int | None
    fails_on_loss: bool
    pushes_filters: bool
    """Whether the filters of a batch query limit what is read."""
    reader: str | None

    @property
    def schema(self) -> pa.Schema:
        """The exact schema of the rows."""
        fields = [FILE_SCHEMA.field(name) for name in self.columns]
        body = BODY_TYPES[self.body_as]
        return pa.schema([field.with_type(body) if field.name == "body" else field for field in fields])

    def refuse(self, names: tuple[str, ...], where: str) -> None:
        """Refuse options that would be ignored."""
        for name in names:
            if name in self.given:
                raise SourceError(f"`{name}` does not apply to {where}", "leave it out")


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse every option; the error for an unknown one suggests the nearest."""
    if (problem := unknown_option(given, NAMES[1:], (NAMES[0],))) is not None:
        raise SourceError(*problem)
    spelled = {name.lower(): name for name in NAMES}
    values = {spelled[key.lower()]: value for key, value in given.items()}
    read = _Values(values)
    for one, other in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if one in values and other in values:
            raise SourceError(f"`{one}` and `{other}` exclude each other", "give one of them")
    retry_s = read.duration("retryTimeout", RETRY_S)
    starting, ending = values.get("startingOffsets"), values.get("endingOffsets")
    return SourceOptions(
        locations=parse_locations(
            values.get("path"), values.get("url"), values.get("token"), values.get("tokenFile"), retry_s
        ),
        given=frozenset(values),
        columns=read.columns(),
        body_as=read.choice("bodyAs", "binary", tuple(BODY_TYPES)),
        selection=Selection(
            read.names("door", list(EVENTS)),
            read.several("channel"),
            read.names("event", sorted({one for row in EVENTS.values() for one in row.split()})),
        ),
        includes_pipeline=read.truth("includePipeline", None),
        starting=None if starting is None else parse("startingOffsets", starting),
        starting_us=read.moment_us("startingTimestamp"),
        ending=None if ending is None else parse("endingOffsets", ending),
        ending_us=read.moment_us("endingTimestamp"),
        rows_max=read.count("maxOffsetsPerTrigger"),
        rows_min=read.count("minOffsetsPerTrigger"),
        delay_s=read.duration("maxTriggerDelay", TRIGGER_DELAY_S),
        partitions_min=read.count("minPartitions"),
        fails_on_loss=read.truth("failOnDataLoss", True) is not False,
        pushes_filters=read.truth("pushdown", False) is True,
        reader=read.reader(),
    )


def to_us(moment: datetime) -> int:
    """A time in microseconds since 1970, exactly."""
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond


class _Values:
    """Typed access to options that are text."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def several(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self._values.get(name, "").split(",") if part.strip())

    def names(self, name: str, known: list[str]) -> tuple[str, ...]:
        """Names from a closed list; a pattern must match one of them."""
        given = self.several(name)
        unknown = [one for one in given if not any(fnmatchcase(value, one) for value in known)]
        if unknown:
            raise SourceError(f"there is no {name} `{unknown[0]}`", f"`{name}` is one of {', '.join(known)}")
        return given

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self._values.get(name, default).strip().lower()
        if value not in allowed:
            raise SourceError(f"`{name}` is `{value}`", f"it is one of {', '.join(allowed)}")
        return value

    def truth(self, name: str, default: bool | None) -> bool | None:
        if name not in self._values:
            return default
        return self.choice(name, "", ("true", "false")) == "true"

    def count(self, name: str) -> int | None:
        text = self._values.get(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < 1:
            raise SourceError(f"`{name}` is `{text}`", "it is a whole number of 1 or more")
        return int(text)

    def duration(self, name: str, default: float) -> float:
        text = self._values.get(name)
        if text is None:
            return default
        found = _DURATION.fullmatch(text.lower())
        if found is None:
            raise SourceError(f"`{name}` is `{text}`", "write a duration like `500ms`, `30s`, `15m` or `2h`")
        return float(found[1]) * _UNITS_S[found[2]]

    def moment_us(self, name: str) -> int | None:
        text = self._values.get(name)
        if text is None:
            return None
        if text.strip().isdecimal():
            return int(text) * 1_000
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise SourceError(
                f"`{name}` is `{text}`", "write `2026-01-31T12:00:00Z`, or milliseconds since 1970"
            ) from None
        return to_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))

    def columns(self) -> tuple[str, ...]:
        if "columns" not in self._values:
            return tuple(FILE_SCHEMA.names)
        names = self.several("columns")
        for name in names:
            if name not in FILE_SCHEMA.names:
                near = get_close_matches(name, FILE_SCHEMA.names, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"columns: {', '.join(FILE_SCHEMA.names)}"
                raise SourceError(f"there is no column `{name}`", hint)
        if not names or len(set(names)) != len(names):
            raise SourceError("`columns` names each column that is wanted once, separated by commas")
        return names

    def reader(self) -> str | None:
        name = self._values.get("reader")
        problem = None if name is None else name_problem(name)
        if problem is not None:
            raise SourceError(f"`reader` is `{name}`", f"{problem}")
        return name
