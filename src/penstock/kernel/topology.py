"""Validates a topology file by the rules of the kernel's host, before the host starts it.

Takes the parsed document and returns every problem with its path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

RUN_MODES = ("inproc", "worker", "process")
LINK_KINDS = ("direct", "split", "merge")
EXTERNAL = "ExternalProcess"
_CHOICES = {"ioMode": ("stdio", "pty"), "restart": ("never", "on-failure", "always")}
_NUMBERS = ("restartDelay", "maxRestarts")
_TEXTS = ("command", "cwd")
_HEALTH = {"http": "url", "command": "command"}


def topology_problems(document: Any) -> list[str]:
    """All problems of a topology; empty when the host can start it."""
    if isinstance(document, Mapping) and isinstance(document.get("topology"), Mapping):
        document = document["topology"]
    if not isinstance(document, Mapping):
        return ["a topology is a mapping with `nodes` and `connections`"]
    nodes, connections = document.get("nodes"), document.get("connections", [])
    if not isinstance(nodes, list) or not nodes:
        return ["nodes: expected a list of at least one"]
    if not isinstance(connections, list):
        return ["connections: expected a list"]
    known: dict[str, int] = {}
    problems = [problem for number, node in enumerate(nodes) for problem in _node(number, node, known)]
    for number, link in enumerate(connections):
        problems += _connection(f"connections[{number}]", link, known)
    return problems


def _node(number: int, node: Any, known: dict[str, int]) -> Iterator[str]:
    place = f"nodes[{number}]"
    if not isinstance(node, Mapping):
        yield f"{place}: expected a mapping"
        return
    id_ = node.get("id")
    if not isinstance(id_, str) or not id_ or "." in id_:
        yield f"{place}.id: expected a text without a dot"
    elif id_ in known:
        yield f"{place}.id: `{id_}` is also the id of nodes[{known[id_]}]"
    else:
        known[id_] = number
    if not isinstance(node.get("module"), str) or not node["module"]:
        yield f"{place}.module: expected the name of a module"
    if node.get("runMode", RUN_MODES[0]) not in RUN_MODES:
        yield f"{place}.runMode: expected one of {', '.join(RUN_MODES)}"
    params = node.get("params", {})
    if not isinstance(params, Mapping):
        yield f"{place}.params: expected a mapping"
    elif node.get("module") == EXTERNAL:
        yield from _external(f"{place}.params", params)


def _external(place: str, params: Mapping[str, Any]) -> Iterator[str]:
    if "command" not in params:
        yield f"{place}.command: is missing"
    for name, value in params.items():
        where = f"{place}.{name}"
        if name in _TEXTS and (not isinstance(value, str) or not value):
            yield f"{where}: expected a text"
        elif name == "args" and not _is_texts(value):
            yield f"{where}: expected a list of texts"
        elif name == "env" and not (isinstance(value, Mapping) and _is_texts(list(value.values()))):
            yield f"{where}: expected a mapping of texts"
        elif name in _CHOICES and value not in _CHOICES[name]:
            yield f"{where}: expected one of {', '.join(_CHOICES[name])}"
        elif name in _NUMBERS and not _is_count(value):
            yield f"{where}: expected a whole number from 0 on"
        elif name == "healthCheck":
            yield from _health(where, value)
        elif name not in (*_TEXTS, *_CHOICES, *_NUMBERS, "args", "env", "healthCheck"):
            yield f"{where}: an external process has no such setting"


def _health(place: str, check: Any) -> Iterator[str]:
    kind = check.get("type") if isinstance(check, Mapping) else None
    if kind not in _HEALTH:
        yield f"{place}.type: expected http or command"
        return
    if not isinstance(check.get(_HEALTH[kind]), str):
        yield f"{place}.{_HEALTH[kind]}: expected a text"
    for name in ("timeout", "retries"):
        if not _is_count(check.get(name, 0)):
            yield f"{place}.{name}: expected a whole number from 0 on"


def _connection(place: str, link: Any, known: Mapping[str, int]) -> Iterator[str]:
    if not isinstance(link, Mapping):
        yield f"{place}: expected a mapping"
        return
    for end in ("from", "to"):
        address = link.get(end)
        parts = address.split(".") if isinstance(address, str) else []
        if len(parts) != 2 or not all(parts):
            yield f"{place}.{end}: expected `node.terminal`, with exactly one dot"
        elif parts[0] not in known:
            yield f"{place}.{end}: there is no node `{parts[0]}`"
    if link.get("type", LINK_KINDS[0]) not in LINK_KINDS:
        yield f"{place}.type: expected one of {', '.join(LINK_KINDS)}"


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
