"""Payload schemas: which schema an envelope names, which version checks it, and what the stream does with the result.

Owns the grammar `namespace/name@v<major>[.<minor>]` and the rule of evolution: a minor version only adds optional parts, so the newest
known minor checks every envelope of its major; one that names a newer minor may have additional properties. It must never know a schema
language: a compiled version is two functions from a payload to its problems. Cost: nothing in mode `off`, otherwise one decode and the
check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from penstock.core.errors import Refusal
from penstock.core.json_checks import decode_any, depth_problem
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.dialects.courier.operations.outcomes import Outcome, Result
from penstock.dialects.courier.wire.envelopes import to_refusal

PROBLEMS_MAX = 20
"""Problems of one payload that an answer lists at most."""
NAME_MAX = 256
"""Characters of a schema's name, version included."""
MESSAGE_MAX = 500
"""Characters of one problem, which may quote the payload."""

_NAME = re.compile(r"([A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)+)@v(0|[1-9][0-9]{0,5})(?:\.(0|[1-9][0-9]{0,5}))?")


class Version(msgspec.Struct, frozen=True, order=True):
    """One version of one schema; without a minor it is the first of its major."""

    name: str
    major: int
    minor: int = 0

    def __str__(self) -> str:
        return f"{self.name}@v{self.major}" + (f".{self.minor}" if self.minor else "")


def parse_version(text: str) -> Version | None:
    """The version that a text names, or None when it names none."""
    found = _NAME.fullmatch(text) if len(text) <= NAME_MAX else None
    if found is None or any(part in (".", "..") for part in found[1].split("/")):
        return None
    return Version(found[1], int(found[2]), int(found[3] or 0))


class Problem(msgspec.Struct, frozen=True):
    """One problem of a payload."""

    path: str
    """Path of the value, from `payload` on."""
    rule: str
    """Path of the violated rule in the schema."""
    message: str


class Compiled(msgspec.Struct, frozen=True):
    """One version, ready to check payloads."""

    strict: Callable[[Any], list[Problem]]
    tolerant: Callable[[Any], list[Problem]]
    """The same, but additional properties are allowed."""


Shelf = Mapping[Version, Compiled]

Finding = Literal["fits", "missing", "malformed", "unknown", "newer", "misfit"]


class Verdict(msgspec.Struct, frozen=True):
    """The result for one envelope."""

    finding: Finding
    message: str = ""
    against: Version | None = None
    """The version that checked it."""
    problems: tuple[Problem, ...] = ()

    @property
    def brief(self) -> str:
        """The result for a log line, which must not quote the payload."""
        if not self.problems:
            return self.message
        return f"`{self.problems[0].path}` breaks `{self.problems[0].rule}` of `{self.against}`"


class ValidateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/schemas/validate`."""

    envelope: msgspec.Raw


class _Part(msgspec.Struct):
    """The fields of an envelope that are read here."""

    payload: msgspec.Raw
    schema: str | None = None


_part = msgspec.json.Decoder(_Part)


class Registry:
    """All known schemas, and how streams use them."""

    def __init__(
        self, shelf: Shelf, policy_for: Callable[[str], Policy], notice: Callable[[str, str], None] | None = None
    ) -> None:
        self._policy_for = policy_for
        self._notice = notice
        """Called with stream and problem for each envelope that passes with a warning."""
        self.warned = 0
        """Envelopes accepted with a warning."""
        self.refused = 0
        """Envelopes rejected because of their schema."""
        self.replace(shelf)

    def replace(self, shelf: Shelf) -> None:
        """Use other schemas from now on."""
        self._shelf = dict(shelf)
        self._newest: dict[tuple[str, int], Version] = {}
        self._majors: dict[str, int] = {}
        for version in sorted(shelf):  # ascending, so the last one of a major stays
            self._newest[version.name, version.major] = version
            self._majors[version.name] = version.major

    def refusal(self, stream: str, body: bytes) -> Refusal | None:
        """Why the stream rejects this envelope. In mode `warn` a mismatch is counted and the envelope accepted."""
        mode = self._policy_for(stream).schema_mode
        if mode == "off":
            return None
        verdict = self._verdict(body)
        if verdict.finding == "fits":
            return None
        if mode == "warn":
            self.warned += 1
            if self._notice is not None:
                self._notice(stream, verdict.brief)
            return None
        self.refused += 1
        if verdict.finding == "misfit":
            return Refusal("SchemaMismatch", verdict.message, ref=verdict.problems[0].path)
        return Refusal("UnknownSchema", verdict.message, ref="schema")

    def judge(self, body: bytes) -> dict[str, Any]:
        """The result as an answer, for a client that checks before it sends."""
        verdict = self._verdict(body)
        return {
            "ok": verdict.finding == "fits",
            "finding": verdict.finding,
            "message": verdict.message or None,
            "against": None if verdict.against is None else str(verdict.against),
            "problems": [
                {"path": problem.path, "rule": problem.rule, "message": problem.message} for problem in verdict.problems
            ],
        }

    def catalogue(self) -> list[dict[str, Any]]:
        """Every schema with its versions, the newest last."""
        rows: dict[str, list[str]] = {}
        for version in sorted(self._shelf):
            rows.setdefault(version.name, []).append(str(version).rpartition("@")[2])
        return [{"name": name, "versions": versions} for name, versions in rows.items()]

    def _verdict(self, body: bytes) -> Verdict:
        part = _part.decode(body)
        if part.schema is None:
            return Verdict("missing", "the envelope names no `schema`")
        wanted = parse_version(part.schema)
        if wanted is None:
            shown = part.schema[:NAME_MAX]
            return Verdict("malformed", f"`schema` is `namespace/name@v<number>`, not {shown!r}")
        newest = self._newest.get((wanted.name, wanted.major))
        if newest is None:
            highest = self._majors.get(wanted.name)
            if highest is not None and wanted.major > highest:
                message = f"`{wanted}` is newer than `{wanted.name}@v{highest}`, the newest that is known"
                return Verdict("newer", message)
            return Verdict("unknown", f"no schema `{wanted}` is known")
        compiled = self._shelf[newest]
        check = compiled.tolerant if wanted.minor > newest.minor else compiled.strict
        problems = check(decode_any(bytes(part.payload)))
        if not problems:
            return Verdict("fits", against=newest)
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        message = f"`{first.path}`: {first.message}{more}, by `{first.rule}` of `{newest}`"
        return Verdict("misfit", message, newest, tuple(problems[:PROBLEMS_MAX]))


def listing(machine: QueueMachine) -> Outcome:
    """Every schema that the server knows."""
    return Result({"schemas": [] if machine.schemas is None else machine.schemas.catalogue()})


def validate(machine: QueueMachine, envelope: msgspec.Raw) -> Outcome:
    """Check an envelope against the schema it names, without enqueueing it."""
    if machine.schemas is None:
        hint = "the operator sets `schemas.dir` in the config"
        return Refusal("UnknownSchema", "this server has no schemas", hint=hint)
    raw = bytes(envelope)
    if (problem := depth_problem(raw, machine.limits.depth_max)) is not None:
        return problem
    try:
        return Result(machine.schemas.judge(raw))
    except msgspec.ValidationError as error:
        return to_refusal(error, "InvalidEnvelope")
