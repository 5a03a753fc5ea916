"""The types of a MEW `space.yaml`, as far as a gateway reads it, and the checks that types cannot express.

The same mapping is valid in the config file under `spaces`. Real files hold keys for the programs that start participants (`command`,
`args`, `env`, `default_to` and many more), so unknown keys are ignored; only `streams` is Penstock's own, and strict. The text under a
field becomes its line in `docs/reference/config.md`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, inspect

from penstock.dialects.mew.join import has_one_script, plain_form
from penstock.dialects.mew.settings import Keep, Overflow
from penstock.server.config.validation import FieldError, shorten
from penstock.server.files import secret_files
from penstock.server.files.yaml_tree import KeyPath, show

Text: TypeAlias = Annotated[str, Meta(min_length=1)]

ID_BYTES_MAX = 128
"""Bytes of an id: it is a file name and part of a channel name."""
RESERVED_IDS = ("gateway", "operator", "system")
"""The ids of the gateway itself and of the operator."""
PIPELINE = "pipeline"
STARTED_TYPES = ("local", "mcp-bridge")
"""Types of participants that upstream's command starts as processes; the server never does."""
NEAR = 0.8
"""Similarity to a known key above which an unknown key is reported as a likely typo."""
FOREIGN_KEYS = ("auto_start",)
"""Keys of real files that only look like typos."""

_GIVEN_STREAM = re.compile(r"stream-[0-9]+")


class SpaceHead(msgspec.Struct, frozen=True):
    """Id and name of the space."""

    id: Text = "default"
    """The id that participants join with."""
    name: str | None = None
    """Display name; by default the id."""


class ParticipantSection(msgspec.Struct, frozen=True):
    """A participant that the space knows by name."""

    tokens: tuple[Text, ...] | None = None
    """Its tokens, or their `sha256:<hex>`; `MEW_TOKEN_<ID>` and the token file are valid too."""
    capabilities: tuple[dict[str, Any], ...] | None = None
    """What it may send; by default `defaults.capabilities`."""
    type: Text | None = None
    """`pipeline` is virtual and always present, and its frames are kept in full for Spark. The server starts no process for any type."""
    output_log: Text | None = None
    """A file for everything that it receives, one JSON line each; this makes it virtual. Relative to the working directory of
    the server."""
    auto_connect: bool = False
    """Whether a virtual participant is present from the start, and not only after its first request."""


class SpaceDefaults(msgspec.Struct, frozen=True):
    """Defaults of participants."""

    capabilities: tuple[dict[str, Any], ...] | None = None
    """By default `[{kind: chat}]`."""


class SpaceStreamSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream that opens when its owner is present."""

    owner: Text
    """The participant that may write to it and grant others access."""
    target: Text | tuple[Text, ...] | None = None
    """Recipients of its frames, one participant or several; by default all."""
    direction: Text = "upload"
    """As in a `stream/request`; clients ignore streams without it."""
    content_type: Text | None = None
    """As in a `stream/request`."""
    format: Text | None = None
    """As in a `stream/request`."""
    description: Text | None = None
    """As in a `stream/request`."""
    metadata: dict[str, Any] | None = None
    """More fields for participants that join."""
    journal: Keep | None = None
    """What the journal keeps of its frames: every frame, their number per second, or nothing. By default `counts`, and `full`
    if a `pipeline` participant receives them."""
    overflow: Overflow | None = None
    """What happens when a participant does not read: its oldest frames are dropped (`drop-oldest`, the default), its writers wait, or
    it is disconnected."""


class Switch(msgspec.Struct, frozen=True):
    """One of the gateway's log files."""

    enabled: bool = True
    """Whether the file is written."""


class GatewayLogging(msgspec.Struct, frozen=True):
    """The log files of `penstock gateway start`."""

    enabled: bool = True
    """Whether any file is written."""
    envelope_history: Switch = Switch()
    """`logs/envelope-history.jsonl`."""
    capability_decisions: Switch = Switch()
    """`logs/capability-decisions.jsonl`."""


class SpaceSection(msgspec.Struct, frozen=True):
    """One MEW space."""

    space: SpaceHead = SpaceHead()
    """Its id and name."""
    participants: dict[Text, ParticipantSection | None] | None = None
    """Participants by id."""
    defaults: SpaceDefaults | None = None
    """Defaults of participants."""
    streams: dict[Text, SpaceStreamSection] | None = None
    """Streams that exist without a `stream/request`, by name."""
    gateway_logging: GatewayLogging | None = None
    """Read by `penstock gateway start` only."""

    def known(self) -> dict[str, ParticipantSection]:
        """All participants."""
        return {name: one or ParticipantSection() for name, one in (self.participants or {}).items()}


KIND = inspect.type_info(SpaceSection)


def is_secret(path: KeyPath) -> bool:
    """Whether a value at this path could be a token."""
    return "tokens" in path


def id_error(text: str) -> str | None:
    """Why an id is invalid; None when it is valid."""
    if not text or len(text.encode(errors="replace")) > ID_BYTES_MAX:
        return f"expected 1 to {ID_BYTES_MAX} bytes"
    if not text.isprintable() or ".." in text or text == "." or set(text) & set("/\\"):
        return "expected a name without `/`, `\\`, `..` and control characters"
    return None


def errors(section: SpaceSection, path: KeyPath = ()) -> Iterator[FieldError]:
    """Find the errors in a space whose types are valid."""
    problem = id_error(section.space.id)
    if problem is not None:
        yield (*path, "space", "id"), f"got {shorten(section.space.id)}, {problem}"
    if section.defaults is not None:
        yield from _capabilities(section.defaults.capabilities, (*path, "defaults", "capabilities"))
    seen: dict[str, str] = {}
    for name, one in section.known().items():
        yield from _participant(name, one, (*path, "participants", name))
        other = seen.setdefault(plain_form(name), name)
        if other != name:
            yield (*path, "participants", name), f"looks like the participant {shorten(other)}; rename one of them"
    for name in section.streams or {}:
        where = (*path, "streams", name)
        problem = id_error(name)
        if problem is not None:
            yield where, problem
        elif _GIVEN_STREAM.fullmatch(name):
            yield where, "looks like an id that the gateway assigns; choose another name"


def _participant(name: str, one: ParticipantSection, path: KeyPath) -> Iterator[FieldError]:
    problem = id_error(name)
    if problem is not None:
        yield path, problem
    elif (form := plain_form(name)) in RESERVED_IDS or form.startswith("system:"):
        yield path, f"`{name}` is reserved by the gateway"
    elif not has_one_script(name):
        yield path, "mixes letters of several scripts; use one"
    yield from _capabilities(one.capabilities, (*path, "capabilities"))
    for index, token in enumerate(one.tokens or ()):
        problem = secret_files.token_error(token)
        if problem is not None:
            yield (*path, "tokens", index), problem
    if one.type == PIPELINE and one.tokens:
        yield ((*path, "tokens"), "a `pipeline` participant is virtual and has no tokens")


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
    """Valid settings that are probably mistakes."""
    known = section.known()
    for name, one in known.items():
        if any("${" in token for token in one.tokens or ()):
            yield f"participants.{name}.tokens: `${{…}}` is not expanded; the token is this literal text"
    for name, stream in (section.streams or {}).items():
        if stream.owner not in known:
            yield f"streams.{name}.owner: `{stream.owner}` is not a participant here, so the stream opens when one of that name joins"
        for target in targets(stream):
            if target not in known:
                yield f"streams.{name}.target: `{target}` is not a participant here"


def targets(stream: SpaceStreamSection) -> tuple[str, ...]:
    """The recipients of a stream, each once, in order."""
    given = stream.target or ()
    return tuple(dict.fromkeys((given,) if isinstance(given, str) else given))


def likely_typos(value: Any, kind: inspect.Type = KIND, path: KeyPath = ()) -> Iterator[str]:
    """Unknown keys that resemble a known one."""
    match kind:
        case inspect.StructType() if isinstance(value, dict) and not kind.forbid_unknown_fields:
            fields: Mapping[str, inspect.Type] = {field.encode_name: field.type for field in kind.fields}
            for key, item in value.items():
                if key in fields:
                    yield from likely_typos(item, fields[key], (*path, key))
                elif key not in FOREIGN_KEYS and (
                    near := difflib.get_close_matches(key, list(fields), n=1, cutoff=NEAR)
                ):
                    yield f"{show((*path, key))}: is ignored; did you mean `{near[0]}`?"
        case inspect.DictType(value_type=inner) if isinstance(value, dict):
            for key, item in value.items():
                yield from likely_typos(item, inner, (*path, key))
        case inspect.UnionType(types=types):
            for inner in types:
                yield from likely_typos(value, inner, path)
        case _:
            pass
