"""Reads spaces, from a `space.yaml` or a mapping in the config file, into settings.

`check` only validates, for a config that is read but not used yet. `load_space` and `load_spaces` also read the tokens of every
participant and create missing ones. An invalid file is rejected with all its errors; nothing falls back to defaults.

Tokens come from the file, the environment and the token files; all of them are valid. A token file is `<mewdir>/tokens/<id>.token`. A
participant with no token in any of the three gets a new one. Only the owner can read the directory, and its `.gitignore` keeps it out of
version control.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.scopes import TOKEN_BYTES, token_text
from penstock.dialects.mew.settings import ParticipantSettings, SpaceSettings, StreamSettings
from penstock.server.config.spaces import schema
from penstock.server.config.spaces.schema import (
    KIND,
    PIPELINE,
    STARTED_TYPES,
    GatewayLogging,
    SpaceSection,
    SpaceStreamSection,
    id_error,
    is_secret,
    targets,
)
from penstock.server.config.validation import FieldError, find_errors, shorten
from penstock.server.files import yaml_tree
from penstock.server.files.secret_files import PLAIN, digest_of, write_private
from penstock.server.files.yaml_tree import ConfigError, format_error, read_text

TOKEN_FILE_MAX = 4096
"""Bytes of a token file that are read."""
IGNORE_ALL = b"*\n!.gitignore\n"


def environment_name(participant: str) -> str:
    """The variable that may hold a participant's token."""
    return "MEW_TOKEN_" + participant.upper().replace("-", "_")


def resolve(
    section: SpaceSection, mewdir: Path, env: Mapping[str, str]
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The digests of every participant's tokens, and who received a new one; raises ConfigError with all errors.

    New tokens are written only when there is no error.
    """
    found: dict[str, list[str]] = {}
    errors: list[str] = []
    for name, one in section.known().items():
        if one.type == PIPELINE:
            continue
        digests = [digest_of(token) for token in one.tokens or ()]
        variable = environment_name(name)
        if text := env.get(variable, ""):
            if PLAIN.fullmatch(text):
                digests.append(digest_of(text))
            else:
                errors.append(f"{variable}: expected printable ASCII without spaces")
        try:
            if text := _read_token(token_file(mewdir, name)):
                digests.append(digest_of(text))
        except ConfigError as error:
            errors += error.errors
        found[name] = list(dict.fromkeys(digests))
    errors += _shared(found)
    if errors:
        raise ConfigError(errors)
    made = tuple(name for name, digests in found.items() if not digests)
    for name in made:
        token = token_text(secrets.token_bytes(TOKEN_BYTES))
        write_invited_token(mewdir, name, token)
        found[name].append(digest_of(token))
    return {name: tuple(digests) for name, digests in found.items()}, made


def _shared(found: Mapping[str, list[str]]) -> Iterator[str]:
    """A token identifies its participant, so no two may share one."""
    holders: dict[str, str] = {}
    for name, digests in found.items():
        for digest in digests:
            other = holders.setdefault(digest, name)
            if other != name:
                where = f"`tokens`, {environment_name(name)}, or its token file"
                yield f"participants.{name}: has the same token as `{other}`; each needs its own ({where})"


def token_file(mewdir: Path, participant: str) -> Path:
    """The token file of a participant."""
    return mewdir / "tokens" / f"{participant}.token"


def write_invited_token(mewdir: Path, participant: str, token: str) -> Path:
    """Write the token of an invited or new participant; returns the file."""
    problem = id_error(participant)
    if problem is not None:
        raise ValueError(f"`{participant[:80]}` is not a valid id: {problem}")
    path = token_file(mewdir, participant)
    if not path.parent.is_dir():
        path.parent.mkdir(mode=0o700, parents=True)
        write_private(path.parent / ".gitignore", IGNORE_ALL)
    write_private(path, token.encode())
    return path


def _read_token(path: Path) -> str:
    """The token in a file; empty when the file does not exist."""
    try:
        with path.open("rb") as file:
            text = file.read(TOKEN_FILE_MAX + 1).decode("ascii").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError([f"cannot read `{path}`: {error.strerror or error}"]) from error
    except UnicodeDecodeError:
        text = "\0"
    if text and (len(text) > TOKEN_FILE_MAX or not PLAIN.fullmatch(text)):
        raise ConfigError([f"`{path}` holds no token: expected printable ASCII without spaces"])
    return text


CHAT_ONLY: tuple[dict[str, Any], ...] = ({"kind": "chat"},)


class LoadedSpace(msgspec.Struct, frozen=True):
    """A space that is ready to open."""

    settings: SpaceSettings
    mewdir: Path
    """The directory of its tokens and log files."""
    logging: GatewayLogging = GatewayLogging()
    """Its settings of those log files; the environment overrides them."""
    made: tuple[str, ...] = ()
    """Participants that have just received a token."""
    unstarted: tuple[str, ...] = ()
    """Participants that upstream's command starts as processes; the server does not."""
    notices: tuple[str, ...] = ()
    """Valid settings that are probably mistakes."""


def mewdir_of(file: Path) -> Path:
    """The directory of a space's files: `.mew` next to its `space.yaml` if it exists, else that directory itself."""
    folder = file.absolute().parent
    return folder / ".mew" if (folder / ".mew").is_dir() else folder


def id_of(entry: str | SpaceSection) -> str:
    """The id of a space in a validated config."""
    return (_read(Path(entry))[0] if isinstance(entry, str) else entry).space.id


def load_space(path: Path, env: Mapping[str, str]) -> LoadedSpace:
    """Read a `space.yaml` and the tokens of its participants; raises ConfigError with all errors."""
    section, notices = _read(path)
    return _loaded(section, mewdir_of(path), env, notices)


def load_spaces(entries: Sequence[str | SpaceSection], place: Path, env: Mapping[str, str]) -> tuple[LoadedSpace, ...]:
    """All spaces of a config; those without a file keep their tokens under `place`."""
    loaded: list[LoadedSpace] = []
    errors: list[str] = []
    for index, entry in enumerate(entries):
        try:
            if isinstance(entry, str):
                loaded.append(load_space(Path(entry), env))
            else:
                loaded.append(_loaded(entry, place / entry.space.id, env, ()))
        except ConfigError as error:
            errors += [f"spaces[{index}]: {problem}" for problem in error.errors]
    if errors:
        raise ConfigError(errors)
    return tuple(loaded)


def check(
    entries: Sequence[str | SpaceSection], given: Any, folder: Path
) -> tuple[tuple[str | SpaceSection, ...], list[FieldError], list[str]]:
    """The entries of a config with absolute paths and hidden tokens, then the errors, then the notices.

    `given` is the section as written; paths are relative to `folder`.
    """
    kept: list[str | SpaceSection] = []
    errors: list[FieldError] = []
    notices: list[str] = []
    ids: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if isinstance(entry, str):
            file = folder / entry
            kept.append(str(file))
            try:
                section, more = _read(file)
            except ConfigError as error:
                errors += [((), f"spaces[{index}]: {problem}") for problem in error.errors]
                continue
            notices += more
        else:
            section = entry
            kept.append(_hidden(entry))
            errors += schema.errors(entry, ("spaces", index))
            more = (*schema.likely_typos(given[index]), *schema.notices(entry))
            notices += [f"spaces[{index}]: {notice}" for notice in more]
        other = ids.setdefault(section.space.id, index)
        if other != index:
            message = f"the space {shorten(section.space.id)} is also that of spaces[{other}]"
            errors.append((("spaces", index), message))
    return tuple(kept), errors, notices


def _read(path: Path) -> tuple[SpaceSection, tuple[str, ...]]:
    """A valid file, and notices about it."""
    tree = yaml_tree.parse(read_text(path))
    found = list(tree.errors)
    section = SpaceSection()
    if tree.value is None and not found:
        found.append(((), "is empty, expected a space and its participants"))
    elif tree.value is not None:
        wrong = list(find_errors(tree.value, KIND, (), is_secret))
        found += wrong
        if not wrong:
            section = msgspec.convert(tree.value, SpaceSection)
            found += schema.errors(section)
    if found:
        raise ConfigError([f"`{path}`: {format_error(where, message, tree.lines)}" for where, message in found])
    notices = [*schema.likely_typos(tree.value), *schema.notices(section)]
    return section, tuple(f"`{path}`: {notice}" for notice in notices)


def _hidden(section: SpaceSection) -> SpaceSection:
    """The section with every token as its digest."""
    if section.participants is None:
        return section
    people = {
        name: one
        if one is None or not one.tokens
        else msgspec.structs.replace(one, tokens=tuple(f"sha256:{digest_of(token)}" for token in one.tokens))
        for name, one in section.participants.items()
    }
    return msgspec.structs.replace(section, participants=people)


def _loaded(section: SpaceSection, mewdir: Path, env: Mapping[str, str], notices: tuple[str, ...]) -> LoadedSpace:
    digests, made = resolve(section, mewdir, env)
    known = section.known()
    people = {
        name: ParticipantSettings(
            digests.get(name, ()),
            one.capabilities,
            is_pipeline=one.type == PIPELINE,
            output_log=one.output_log,
            auto_connect=one.auto_connect,
        )
        for name, one in known.items()
    }
    defaults = None if section.defaults is None else section.defaults.capabilities
    return LoadedSpace(
        SpaceSettings(
            section.space.id,
            section.space.name or section.space.id,
            people,
            CHAT_ONLY if defaults is None else defaults,
            {name: _stream(stream) for name, stream in (section.streams or {}).items()},
        ),
        mewdir,
        section.gateway_logging or GatewayLogging(),
        made,
        tuple(name for name, one in known.items() if one.type in STARTED_TYPES),
        notices,
    )


def _stream(stream: SpaceStreamSection) -> StreamSettings:
    names = (
        "direction",
        "content_type",
        "format",
        "description",
        "metadata",
    )  # of a `stream/request`, without the target
    request = {name: value for name in names if (value := getattr(stream, name)) is not None}
    return StreamSettings(stream.owner, targets(stream), request, stream.journal, stream.overflow)
