"""The shape of a MEW `space.yaml`, as far as a gateway reads it, and what no type can say of it.

The same mapping may stand in the config file, under `spaces`. Real files hold keys for the programs that start participants
(`command`, `args`, `env`, `default_to` and many more), so keys that we do not read are left alone; only `streams` is ours, and
strict. A text under a field becomes its line in `docs/reference/config.md`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, inspect

from penstock.dialects.mew.settings import Keep, Overflow
from penstock.server.config.validation import FieldError, shorten
from penstock.server.files import secret_files
from penstock.server.files.yaml_tree import KeyPath, show

Text: TypeAlias = Annotated[str, Meta(min_length=1)]

ID_BYTES_MAX = 128
"""Bytes of an id: it names a file, and is a part of a channel's name."""
RESERVED_IDS = ("gateway", "operator", "system")
"""Who the gateway itself speaks as, and who the holder of the operator token is."""
PIPELINE = "pipeline"
STARTED_TYPES = ("local", "mcp-bridge")
"""Participants that upstream's command starts as processes; we never do."""
NEAR = 0.8
"""How alike a key must be to one that we read, to be a likely slip."""
FOREIGN_KEYS = ("auto_start",)
"""Keys of real files that only look like slips."""

_GIVEN_STREAM = re.compile(r"stream-[0-9]+")


class SpaceHead(msgspec.Struct, frozen=True):
    """What the space is called."""

    id: Text = "default"
    """Its id, by which participants join it."""
    name: str | None = None
    """Its name for people; left out, the id."""


class ParticipantSection(msgspec.Struct, frozen=True):
    """Somebody the space knows by name."""

    tokens: tuple[Text, ...] | None = None
    """Tokens that let it in, or `sha256:<hex>` of them; beside these count `MEW_TOKEN_<ID>` and the token file."""
    capabilities: tuple[dict[str, Any], ...] | None = None
    """What it may send; left out, `defaults.capabilities`."""
    type: Text | None = None
    """`pipeline` is virtual, always there, and its frames are kept in full for Spark; of others nothing is started by us."""
    output_log: Text | None = None
    """A file that everything for it is appended to, a JSON line each; it is virtual then. Relative paths count from the
    directory that the server was started in."""
    auto_connect: bool = False
    """Whether a virtual one is there from the start, and not only from its first request on."""


class SpaceDefaults(msgspec.Struct, frozen=True):
    """What counts for participants that say nothing else."""

    capabilities: tuple[dict[str, Any], ...] | None = None
    """Left out, `[{kind: chat}]`."""


class SpaceStreamSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream that opens when its owner is there."""

    owner: Text
    """The participant that may write to it, and let others."""
    target: Text | tuple[Text, ...] | None = None
    """Who receives its frames, one participant or several; left out, everybody."""
    direction: Text = "upload"
    """As in a `stream/request`; clients overlook streams without one."""
    content_type: Text | None = None
    """As in a `stream/request`."""
    format: Text | None = None
    """As in a `stream/request`."""
    description: Text | None = None
    """As in a `stream/request`."""
    metadata: dict[str, Any] | None = None
    """Whatever else those who join should be told of it."""
    journal: Keep | None = None
    """What the journal keeps of its frames: each of them, their number by the second, or nothing. Left out, `counts`, and
    `full` where a `pipeline` participant receives them."""
    overflow: Overflow | None = None
    """What happens when somebody does not read: the oldest frames go (`drop-oldest`, the default), or the reader does."""


class Switch(msgspec.Struct, frozen=True):
    """One of the gateway's log files."""

    enabled: bool = True
    """Whether it is written."""


class GatewayLogging(msgspec.Struct, frozen=True):
    """The log files of `penstock gateway start`."""

    enabled: bool = True
    """Whether there are any."""
    envelope_history: Switch = Switch()
    """`logs/envelope-history.jsonl`."""
    capability_decisions: Switch = Switch()
    """`logs/capability-decisions.jsonl`."""


class SpaceSection(msgspec.Struct, frozen=True):
    """One MEW space."""

    space: SpaceHead = SpaceHead()
    """What it is called."""
    participants: dict[Text, ParticipantSection | None] | None = None
    """Who may join, by id."""
    defaults: SpaceDefaults | None = None
    """What counts for participants that say nothing else."""
    streams: dict[Text, SpaceStreamSection] | None = None
    """Streams that need no `stream/request`, by name."""
    gateway_logging: GatewayLogging | None = None
    """Read by `penstock gateway start` only."""

    def known(self) -> dict[str, ParticipantSection]:
        """Every participant."""
        return {name: one or ParticipantSection() for name, one in (self.participants or {}).items()}


KIND = inspect.type_info(SpaceSection)


def is_secret(path: KeyPath) -> bool:
    """Whether a value at this path could be a token."""
    return "tokens" in path


def id_error(text: str) -> str | None:
    """Why somebody or something cannot be called this."""
    if not text or len(text.encode(errors="replace")) > ID_BYTES_MAX:
        return f"expected 1 to {ID_BYTES_MAX} bytes"
    if not text.isprintable() or ".." in text or text == "." or set(text) & set("/\\"):
        return "expected a name without `/`, `\\`, `..` and control characters"
    return None


def errors(section: SpaceSection, path: KeyPath = ()) -> Iterator[FieldError]:
    """Every problem that is left in a space whose types fit."""
    problem = id_error(section.space.id)
    if problem is not None:
        yield (*path, "space", "id"), f"got {shorten(section.space.id)}, {problem}"
    if section.defaults is not None:
        yield from _capabilities(section.defaults.capabilities, (*path, "defaults", "capabilities"))
    for name, one in section.known().items():
        yield from _participant(name, one, (*path, "participants", name))
    for name in section.streams or {}:
        where = (*path, "streams", name)
        problem = id_error(name)
        if problem is not None:
            yield where, problem
        elif _GIVEN_STREAM.fullmatch(name):
            yield where, "looks like an id that the gateway gives; choose another name"


def _participant(name: str, one: ParticipantSection, path: KeyPath) -> Iterator[FieldError]:
    problem = id_error(name)
    if problem is not None:
        yield path, problem
    elif name in RESERVED_IDS or name.startswith("system:"):
        yield path, f"`{name}` is a name that the gateway uses itself"
    yield from _capabilities(one.capabilities, (*path, "capabilities"))
    for index, token in enumerate(one.tokens or ()):
        problem = secret_files.token_error(token)
        if problem is not None:
            yield (*path, "tokens", index), problem
    if one.type == PIPELINE and one.tokens:
        yield (
            (*path, "tokens"),
            "a `pipeline` participant is virtual: nobody joins as it, so it has no tokens",
        )


def _capabilities(given: tuple[dict[str, Any], ...] | None, path: KeyPath) -> Iterator[FieldError]:
    for index, capability in enumerate(given or ()):
        kind = capability.get("kind")
        if "kind" not in capability:
            yield (*path, index, "kind"), "missing, expected a text"
        elif not _is_kind(kind):
            yield (*path, index, "kind"), f"got {shorten(kind)}, expected a text, or a list of texts"


def _is_kind(kind: Any) -> bool:
    if isinstance(kind, list):
        return bool(kind) and all(isinstance(one, str) and one for one in kind)
    return isinstance(kind, str) and bool(kind)


def notices(section: SpaceSection) -> Iterator[str]:
    """What is allowed, and may not be what somebody meant."""
    known = section.known()
    for name, one in known.items():
        if any("${" in token for token in one.tokens or ()):
            yield f"participants.{name}.tokens: `${{…}}` is not filled in here; the token is that very text"
    for name, stream in (section.streams or {}).items():
        if stream.owner not in known:
            yield f"streams.{name}.owner: `{stream.owner}` is no participant here, so it opens when one of that name joins"
        for target in targets(stream):
            if target not in known:
                yield f"streams.{name}.target: `{target}` is no participant here"


def targets(stream: SpaceStreamSection) -> tuple[str, ...]:
    """Who receives the frames of a stream, each once, in the order given."""
    given = stream.target or ()
    return tuple(dict.fromkeys((given,) if isinstance(given, str) else given))


def slips(value: Any, kind: inspect.Type = KIND, path: KeyPath = ()) -> Iterator[str]:
    """Keys that we do not read, and that look much like one that we do."""
    match kind:
        case inspect.StructType() if isinstance(value, dict) and not kind.forbid_unknown_fields:
            fields: Mapping[str, inspect.Type] = {field.encode_name: field.type for field in kind.fields}
            for key, item in value.items():
                if key in fields:
                    yield from slips(item, fields[key], (*path, key))
                elif key not in FOREIGN_KEYS and (
                    near := difflib.get_close_matches(key, list(fields), n=1, cutoff=NEAR)
                ):
                    yield f"{show((*path, key))}: is not read; did you mean `{near[0]}`?"
        case inspect.DictType(value_type=inner) if isinstance(value, dict):
            for key, item in value.items():
                yield from slips(item, inner, (*path, key))
        case inspect.UnionType(types=types):
            for inner in types:
                yield from slips(value, inner, path)
        case _:
            pass
