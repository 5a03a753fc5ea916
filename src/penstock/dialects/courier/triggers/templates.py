"""Templates: `${env.<path>}`, `${now}`, `${rule.id}` and `${suppressed}` in texts of a rule.

A text that is one placeholder keeps the JSON type of its value; a placeholder inside a text is formatted into it. Substituted values are
never expanded again, nothing is evaluated, and `$${` means `${`. A path without a value gives an empty text and a warning, or in a strict
rule a `MissingError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.core.clock import rfc3339
from penstock.core.rules.rule_set import Moment

_PLACEHOLDER = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")
_INDEX = re.compile(r"[0-9]{1,9}")
"""A step into a list: Python refuses to convert thousands of digits."""
_NAMES = ("now", "rule.id", "suppressed")
DEPTH_MAX = 32
"""Steps of one path, and nesting of a payload with templates in it."""

MISSING = object()
"""The value of a path that does not exist."""


class TemplateError(ValueError):
    """An invalid template; raised when the config is checked."""


class MissingError(Exception):
    """A strict template has a path without a value."""


class TemplatePath:
    """The path of a placeholder."""

    __slots__ = ("name", "steps")

    def __init__(self, name: str) -> None:
        self.name = name
        head, *steps = name.split(".")
        self.steps: tuple[str, ...] | None = tuple(steps) if head == "env" else None
        if name in _NAMES:
            return
        if head != "env" or not steps or not all(steps) or len(steps) > DEPTH_MAX:
            known = ", ".join(f"`${{{known}}}`" for known in ("env.<path>", *_NAMES))
            raise TemplateError(f"`${{{name}}}` stands for nothing; there are {known}")

    def value(self, env: Any, moment: Moment) -> Any:
        """Its value, or `MISSING`."""
        if self.steps is None:
            match self.name:
                case "now":
                    return rfc3339(moment.wall_us)
                case "rule.id":
                    return moment.rule
                case _:
                    return moment.suppressed
        for step in self.steps:
            if isinstance(env, dict) and step in env:
                env = env[step]
            elif isinstance(env, list) and _INDEX.fullmatch(step) and int(step) < len(env):
                env = env[int(step)]
            else:
                return MISSING
        return env

    def size(self, env: Any, moment: Moment) -> int:
        """Bytes of its value as JSON; 0 when there is none."""
        value = self.value(env, moment)
        return 0 if value is MISSING else len(value if isinstance(value, str) else msgspec.json.encode(value))


class TemplateText:
    """A text with placeholders in it."""

    __slots__ = ("_is_strict", "_pieces")

    def __init__(self, text: str, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._pieces: list[str | TemplatePath] = []
        position = 0
        for found in _PLACEHOLDER.finditer(text):
            before = text[position : found.start()]
            _refuse_open(text, before)
            self._pieces.append(before)
            self._pieces.append("${" if found[1] else TemplatePath(found[2]))
            position = found.end()
        rest = text[position:]
        _refuse_open(text, rest)
        self._pieces.append(rest)
        self._pieces = [piece for piece in self._pieces if piece != ""]

    @property
    def paths(self) -> list[TemplatePath]:
        return [piece for piece in self._pieces if isinstance(piece, TemplatePath)]

    @property
    def is_plain(self) -> bool:
        return not self.paths

    @property
    def head(self) -> str:
        """The constant text before the first placeholder."""
        first = self._pieces[0] if self._pieces else ""
        return first if isinstance(first, str) else ""

    def fill(self, env: Any, moment: Moment) -> Any:
        """The filled text; a single placeholder keeps its JSON type."""
        if len(self._pieces) == 1 and isinstance(self._pieces[0], TemplatePath):
            return self._value(self._pieces[0], env, moment)
        return "".join(
            piece if isinstance(piece, str) else _written(self._value(piece, env, moment)) for piece in self._pieces
        )

    def _value(self, path: TemplatePath, env: Any, moment: Moment) -> Any:
        value = path.value(env, moment)
        if value is not MISSING:
            return value
        if self._is_strict:
            raise MissingError(f"the envelope has no `{path.name}`")
        moment.warnings += 1
        return ""


def _refuse_open(text: str, piece: str) -> None:
    if "${" in piece:
        raise TemplateError(f"`{text[:80]}` opens a placeholder and does not close it; write `$${{` for the text")


def _written(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class TemplateTree:
    """A JSON value whose texts may hold placeholders."""

    __slots__ = ("_value", "paths")

    def __init__(self, value: Any, *, is_strict: bool) -> None:
        self._value = _parsed(value, is_strict, 0)
        self.paths = tuple(_paths(self._value))

    def fill(self, env: Any, moment: Moment) -> Any:
        return _filled(self._value, env, moment)

    def filled_size(self, env: Any, moment: Moment) -> int:
        """Bytes that placeholders add, at least, without writing them: each distinct one is measured once."""
        sizes: dict[str, int] = {}
        return sum(
            sizes[path.name] if path.name in sizes else sizes.setdefault(path.name, path.size(env, moment))
            for path in self.paths
        )


def _parsed(value: Any, is_strict: bool, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise TemplateError(f"nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, str):
        text = TemplateText(value, is_strict=is_strict)
        return text.fill(None, Moment(0, "")) if text.is_plain else text
    if isinstance(value, dict):
        return {key: _parsed(item, is_strict, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_parsed(item, is_strict, depth + 1) for item in value]
    return value


def _filled(value: Any, env: Any, moment: Moment) -> Any:
    if isinstance(value, TemplateText):
        return value.fill(env, moment)
    if isinstance(value, dict):
        return {key: _filled(item, env, moment) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, env, moment) for item in value]
    return value


def _paths(value: Any) -> Iterator[TemplatePath]:
    if isinstance(value, TemplateText):
        yield from value.paths
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _paths(item)


def problems(value: Any) -> Iterator[str]:
    """The problems of the templates in a value."""
    try:
        TemplateTree(value, is_strict=False)
    except TemplateError as error:
        yield str(error)
