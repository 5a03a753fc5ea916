"""The tokens of a space's participants: from its file, the environment and the token files; all of them are valid.

A token file is `<mewdir>/tokens/<id>.token`. A participant with no token in any of the three gets a new one. Only the owner can read the
directory, and its `.gitignore` keeps it out of version control.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.core.scopes import TOKEN_BYTES, token_text
from penstock.server.config.spaces.schema import PIPELINE, SpaceSection, id_error
from penstock.server.files.secret_files import PLAIN, digest_of, write_private
from penstock.server.files.yaml_tree import ConfigError

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
            if text := _read(token_file(mewdir, name)):
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


def _read(path: Path) -> str:
    """The token in a file; None when the file does not exist."""
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
