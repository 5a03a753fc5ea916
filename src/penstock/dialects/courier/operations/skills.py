"""Skills: requests that the server itself answers, such as `git.diff.request`. `server/courier/skill_worker.py` runs their commands.

Owns what a request may ask for, the command, and the stream and id of the answer. The id is derived from the request, so a request that is
delivered twice is answered once. A value that git could read as an option, or a path that leaves the repository, is rejected.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Annotated, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import AGENTS
from penstock.dialects.courier.wire.envelopes import inbox, to_refusal

GIT_REQUEST = "git.diff.request"
GIT_RESULT = "git.diff.result"
PATHS_MAX = 100
"""Paths of one request."""
PATH_MAX = 512
"""Characters of a path or of the repository's name."""
REVISION_MAX = 200
"""Characters of a revision."""

# A name of letters, digits and a few marks, then steps back in history. No option, no range, no `@{…}`, no `:path`.
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]*(?:[~^][0-9]{0,4}){0,4}")
_FORBIDDEN = ("..", "//", "/.", ".lock/")


class DiffRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The payload of a `git.diff.request`: what changed from `base` to `head`."""

    base: str
    head: str = "HEAD"
    repo: str = "."
    """The repository, as a path below the root."""
    paths: Annotated[list[str], msgspec.Meta(max_length=PATHS_MAX)] = []
    """Only these files and folders; all without it."""
    reply_to: str | None = None
    """The stream that gets the answer; by default the inbox of the sender."""


_diff = msgspec.json.Decoder(DiffRequest)


class SkillRequest(msgspec.Struct, rename={"from_": "from"}):
    """The fields of a request's envelope that a skill reads."""

    id: str
    type: str
    payload: msgspec.Raw
    from_: str | None = None
    corr: str | None = None


parse_skill_request = msgspec.json.Decoder(SkillRequest).decode


def read_diff(payload: bytes) -> DiffRequest | Refusal:
    """A checked request, or why it is rejected."""
    try:
        request = _diff.decode(payload)
    except msgspec.ValidationError as error:
        return to_refusal(error)
    for field in ("base", "head"):
        if not _is_revision(getattr(request, field)):
            message = f"`{field}` is the name of a commit, a branch or a tag"
            hint = "no options, ranges, `@{…}` or paths; `~` and `^` may follow"
            return Refusal("InvalidRequest", message, ref=f"payload.{field}", hint=hint)
    if request.repo != "." and not _is_inside(request.repo):
        return Refusal("InvalidRequest", "`repo` is a path below the root", ref="payload.repo")
    for index, path in enumerate(request.paths):
        if not _is_inside(path):
            message = "a path is relative to the repository and stays in it"
            return Refusal("InvalidRequest", message, ref=f"payload.paths[{index}]")
    return request


def _is_revision(text: str) -> bool:
    if len(text) > REVISION_MAX or _REVISION.fullmatch(text) is None:
        return False
    return not any(part in text for part in _FORBIDDEN) and not text.endswith(("/", ".", ".lock"))


def _is_inside(path: str) -> bool:
    if not 0 < len(path) <= PATH_MAX or not path.isprintable() or path.startswith(("/", "-", ":", "~")):
        return False
    return "\\" not in path and not any(part in ("", ".", "..") for part in path.rstrip("/").split("/"))


def diff_command(git_dir: str, request: DiffRequest) -> list[str]:
    """The arguments of git. It compares two trees, reads no work tree, and runs nothing that a repository could configure."""
    settings = {
        "core.fsmonitor": "false",
        "core.hooksPath": "/dev/null",
        "core.attributesFile": "/dev/null",
        "core.pager": "cat",
        "protocol.allow": "never",
        "safe.directory": git_dir,
    }
    words = ["git", "--no-pager", f"--git-dir={git_dir}"]
    for name, value in settings.items():
        words += ["-c", f"{name}={value}"]
    words += ["diff-tree", "-p", "-r", "-M", "--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short"]
    return [*words, "--end-of-options", request.base, request.head, "--", *request.paths]


def diff_environment(path: str) -> dict[str, str]:
    """The environment of git: no user settings, no prompts, no fetches."""
    return {
        "PATH": path,
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_ALLOW_PROTOCOL": "",
    }


def reply_stream(asked: SkillRequest, reply_to: str | None) -> str | None:
    """The stream of the answer; None when the request has neither `replyTo` nor `from`."""
    if reply_to is not None:
        return inbox(reply_to)
    if not asked.from_:
        return None
    if asked.from_.startswith(AGENTS):
        name = asked.from_.split("/")[1]
        return f"{AGENTS}{name}/inbox" if name else None
    return inbox(asked.from_)


def wanted_reply(payload: bytes) -> str | None:
    """The `replyTo` of a payload that is otherwise invalid."""
    try:
        value = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return None
    wanted = value.get("replyTo") if isinstance(value, dict) else None
    return wanted if isinstance(wanted, str) and wanted else None


def answer_id(skill: str, stream: str, id_: str) -> str:
    """The id of the answer to a request, equal for every delivery of it."""
    digest = sha256(stream.encode() + b"\0" + id_.encode())
    return f"{skill}-{digest.hexdigest()[:32]}"


def answer(skill: str, kind: str, to: str, asked: SkillRequest, stream: str, ts: str, payload: dict[str, Any]) -> bytes:
    """The envelope of an answer."""
    return msgspec.json.encode(
        {
            "id": answer_id(skill, stream, asked.id),
            "ts": ts,
            "from": f"skills/{skill}",
            "to": to,
            "type": kind,
            "corr": asked.corr or asked.id,
            "refs": [asked.id],
            "payload": payload,
        }
    )
