"""Parses strict YAML into plain values with their line numbers, and formats errors of a file.

Strict means: one document, no duplicate keys, no tags, no merge keys, and only `true` and `false` are booleans, because YAML 1.1 reads
`sync: off` and `country: no` as booleans. Values are dict, list, str, int, float, bool and None. Size, depth and aliases are bounded, so
no file can exhaust the memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import yaml

TEXT_MAX = 1024 * 1024
NODES_MAX = 100_000
DEPTH_MAX = 32

KeyPath: TypeAlias = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
TOO_MUCH = f"the file has more than {NODES_MAX} values, or is nested deeper than {DEPTH_MAX} levels"


class _TooMuchError(Exception):
    """The file exceeds the bounds."""


class _Loader(yaml.SafeLoader):
    """Composes nodes only; the code below decides which plain texts are numbers and booleans."""


_PLAIN = {
    "bool": (re.compile(r"true|false", re.IGNORECASE), "tTfF"),
    "int": (re.compile(r"[-+]?(0|[1-9](_?[0-9]){0,17}|0x[0-9a-fA-F]{1,16}|0o[0-7]{1,20})"), "-+0123456789"),
    "float": (re.compile(r"[-+]?[0-9]{1,17}(\.[0-9]{0,17}([eE][-+]?[0-9]{1,2})?|[eE][-+]?[0-9]{1,2})"), "-+0123456789"),
    "null": (re.compile(r"~|null|", re.IGNORECASE), ["~", "n", "N", ""]),
    "merge": (re.compile(r"<<"), "<"),
}
_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern.pattern})$", _pattern.flags), list(_first))


class YamlTree(msgspec.Struct):
    """The values of a text, their lines, and its errors."""

    value: Any = None
    lines: dict[KeyPath, int] = {}
    errors: list[tuple[KeyPath, str]] = []


def parse(text: str) -> YamlTree:
    """Parse a text; errors are collected, not raised."""
    tree = YamlTree()
    if len(text) > TEXT_MAX:
        tree.errors.append(((), f"the file has {len(text)} characters, at most {TEXT_MAX} are read"))
        return tree
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        # Without the lines around the error, which may hold a token.
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1})" if mark else ""
        tree.errors.append(((), f"not valid YAML: {error.problem or error.context}{where}"))
    except yaml.YAMLError as error:
        tree.errors.append(((), f"not valid YAML: {str(error).splitlines()[0]}"))
    except RecursionError:
        tree.errors.append(((), TOO_MUCH))
    else:
        try:
            tree.value = None if node is None else _Builder(tree).build(node, ())
        except _TooMuchError:
            tree.errors.append(((), TOO_MUCH))
    return tree


def dump(value: Any) -> str:
    """Plain values as YAML that `parse` reads back."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
    if "\x85" in text:  # PyYAML writes this line break unescaped and reads it back as a space
        text = yaml.safe_dump(value, sort_keys=False, width=110)
    return text


def show(path: KeyPath) -> str:
    """A path for messages: `auth.tokens[0].scopes`, `perStreamCaps["agents/*"]`."""
    return "".join(_parts(path))


def _parts(path: KeyPath) -> Iterator[str]:
    for index, part in enumerate(path):
        if isinstance(part, int):
            yield f"[{part}]"
        elif not re.fullmatch(r"[\w-]+", part):
            yield f'["{part}"]' if part.isprintable() else f"[{part!r}]"
        else:
            yield f".{part}" if index else part


class _Builder:
    """Turns nodes into values. Aliases are expanded, so the bound on nodes also stops an alias bomb."""

    def __init__(self, tree: YamlTree) -> None:
        self._tree = tree
        self._nodes_left = NODES_MAX

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self._tree.lines[path] = node.start_mark.line + 1
        self._nodes_left -= 1
        if self._nodes_left < 0 or len(path) > DEPTH_MAX:
            raise _TooMuchError
        match node:
            case yaml.MappingNode() if node.tag == _TAG + "map":
                return self._mapping(node, path)
            case yaml.SequenceNode() if node.tag == _TAG + "seq":
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            case yaml.ScalarNode():
                return self._scalar(node, path)
            case _:
                return self._problem(path, f"the tag `{node.tag}` is not supported")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(path, "a key must be a plain text")
                continue
            key = key_node.value
            line = key_node.start_mark.line + 1
            if key_node.tag == _TAG + "merge":
                self._problem(path, f"merge keys (`<<`, line {line}) are not supported; repeat the keys")
            elif key in built:
                self._problem((*path, key), f"duplicate key, again in line {line}")
            else:
                built[key] = self.build(value_node, (*path, key))
                self._tree.lines[*path, key] = line
        return built

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text: str = node.value
        name = node.tag.removeprefix(_TAG)
        if name in ("str", "merge"):
            return text
        # An explicit `!!int` may precede any text, so the text must look like a number too.
        if name not in _PLAIN or not _PLAIN[name][0].fullmatch(text):
            return self._problem(path, f"the tag `{node.tag}` is not supported")
        match name:
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, 0)
            case "float":
                return float(text)
            case _:
                return None

    def _problem(self, path: KeyPath, message: str) -> None:
        self._tree.errors.append((path, message))


class ConfigError(Exception):
    """An invalid config; `errors` holds all errors, not only the first."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


def read_text(path: Path) -> str:
    """Read a text file; raises ConfigError."""
    try:
        with path.open("rb") as file:
            return file.read(4 * TEXT_MAX + 1).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([f"cannot read `{path}`: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"`{path}` is not UTF-8 text"]) from error


def format_error(where: KeyPath, message: str, lines: Mapping[KeyPath, int]) -> str:
    """Format an error with the line of the nearest key that the file contains."""
    if not where:
        return message
    known = [lines[where[:length]] for length in range(len(where), 0, -1) if where[:length] in lines]
    return f"{show(where)}: {message}" + (f" (line {known[0]})" if known else "")
