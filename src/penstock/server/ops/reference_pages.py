"""What commands print: the references of metrics and routes, from the tables that the server uses, and deployment files.

Each begins with a text of `templates/`. A unit for systemd and a file to build a container from are printed, and not installed. The stop
timeout follows from the bounds of the server, so that systemd does not kill it while it drains.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from penstock.core.limits import Limits
from penstock.server.http.openapi import LINES, document
from penstock.server.http.request import Route
from penstock.server.http.routes import ROUTES
from penstock.server.metrics.metric_names import METRICS, Group
from penstock.server.ops import pipeline_supervisor
from penstock.server.relay import supervisor

_TEMPLATES = Path(__file__).parent / "templates"
_GROUPS: dict[Group, tuple[str, str]] = {
    "queue": ("Queues", "The label `stream` is present only when metrics per stream are requested."),
    "server": (
        "Server",
        "`events_dropped` needs `logs.events`, and `schema_…` needs `schemas.dir`.",
    ),
    "journal": ("Journal", "Not with `--data none`."),
    "views": ("Views", ""),
    "triggers": ("Triggers", ""),
    "spaces": ("Spaces", "If spaces are configured."),
    "relay": ("Relay of token streams", "If the relay runs."),
    "topics": ("Topics of the relay", "Only when metrics per stream are requested; a topic appears as its hash."),
    "pipeline": ("Pipeline", "If the server runs a pipeline."),
    "cluster": ("Cluster", "With `--join`."),
}  # fmt: skip


def metrics_reference() -> str:
    """The reference of all metrics, in Markdown."""
    parts = [(_TEMPLATES / "metrics_page.txt").read_text("utf-8")]
    for group, (title, note) in _GROUPS.items():
        lines = [f"## {title}", "", *([note, ""] if note else [])]
        lines += ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
        for metric in METRICS:
            if metric.group == group:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                lines.append(f"| `{metric.sample}` | {metric.kind} | {labels} | {metric.text} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def http_reference() -> str:
    """The reference of all routes, in Markdown."""
    tree = msgspec.json.decode(document("", ROUTES))
    rows = "".join(f"| {route.method} | `{route.path}` | {route.summary} |\n" for route in ROUTES)
    return (
        (_TEMPLATES / "http_page.txt").read_text("utf-8")
        + rows
        + "".join("\n" + _route(route, tree) for route in ROUTES)
    )


def _route(route: Route, tree: dict[str, Any]) -> str:
    operation = tree["paths"][route.path][route.method.lower()]
    schemas = tree["components"]["schemas"]
    lines = [f"## {route.method} `{route.path}`", "", route.summary + "."]
    if route.is_open:
        lines[-1] += " Needs no token."
    fields = [
        (one["name"], one["schema"], one["required"], "path" if one["in"] == "path" else "query")
        for one in operation.get("parameters", [])
    ]
    if route.body is not None:
        body = _resolved(operation["requestBody"]["content"]["application/json"]["schema"], schemas)
        required = body.get("required", [])
        fields += [(name, shape, name in required, "body") for name, shape in body.get("properties", {}).items()]
    if fields:
        lines += ["", "| name | in | value | default |", "| --- | --- | --- | --- |"]
        lines += [_field(name, shape, needed, place, schemas) for name, shape, needed, place in fields]
    if route.takes_lines:
        lines += ["", f"The body is `{LINES}`: one envelope with its `to` per line."]
    lines += ["", _answer(route, operation, schemas)]
    return "\n".join(lines) + "\n"


def _answer(route: Route, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    if route.socket is not None:
        return "Answers 101: a WebSocket." + (" A plain request gets server-sent events." if route.has_events else "")
    if "204" in operation["responses"]:
        return "Answers 204 without a body."
    content_type, content = next(iter(operation["responses"]["200"]["content"].items()))
    schema = _resolved(content["schema"], schemas)
    kinds = [_resolved(one, schemas) for one in schema.get("oneOf", schema.get("anyOf", [schema]))]
    members = dict.fromkeys(name for kind in kinds for name in kind.get("properties", {}))
    if content_type != "application/json" or not members:
        return f"Answers `{content_type}`."
    return f"Answers with {', '.join(f'`{name}`' for name in members)}."


def _field(name: str, shape: dict[str, Any], needed: bool, place: str, schemas: dict[str, Any]) -> str:
    shown = f"**`{name}`**" if needed else f"`{name}`"
    default = shape.get("default")
    text = "" if default is None or needed else f"`{msgspec.json.encode(default).decode()}`"
    return f"| {shown} | {place} | {_value(shape, schemas)} | {text} |"


def _resolved(shape: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    name = shape.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = schemas[name] if name else shape
    return found


def _value(shape: dict[str, Any], schemas: dict[str, Any]) -> str:
    """A short description of a value."""
    if "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        return "an envelope" if name == "Envelope" else _value(_resolved(shape, schemas), schemas)
    if "anyOf" in shape:
        kinds = [_value(one, schemas) for one in shape["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in shape:
        return " or ".join(f"`{one}`" for one in shape["enum"])
    kind = shape.get("type")
    match kind:
        case "array":
            return f"a list, each entry {_value(shape.get('items', {}), schemas)}"
        case "object":
            return "an object"
        case "boolean":
            return "true or false"
        case "integer" | "number":
            bounds = [
                f"{word} {shape[key]}"
                for word, key in (("from", "minimum"), ("to", "maximum"))
                if key in shape and abs(shape[key]) < 2**53
            ]
            return " ".join(["a whole number" if kind == "integer" else "a number", *bounds])
        case "string":
            return f"a text like `{shape['pattern']}`".replace("|", "\\|") if "pattern" in shape else "a text"
        case _:
            return "any JSON"


MARGIN_S = 15
"""Reserve for a busy disk: the last commit, and the running batch of the pipeline."""
STATE, CACHE = "/var/lib/penstock", "/var/cache/penstock"
PORT = 8787


def stop_seconds(drain_ms: int = Limits().drain_ms) -> int:
    """How long a clean stop may take: the leases, then the relay, then the pipeline."""
    return ceil(drain_ms / 1000 + supervisor.STOP_S + pipeline_supervisor.STOP_S + MARGIN_S)


def _template(name: str) -> Template:
    return Template((_TEMPLATES / name).read_text("utf-8"))


def systemd_unit(program: str, *, data: str = STATE, config: str | None = None, user: str = "penstock") -> str:
    """A unit for a server on this machine."""
    return _template("penstock.service").substitute(
        program=program,
        data=data,
        config="" if config is None else f" --config {config}",
        user=user,
        cache=CACHE,
        drain_ms=Limits().drain_ms,
        stop_s=stop_seconds(),
    )


def containerfile() -> str:
    """A file to build an image from, in a checkout."""
    return _template("Containerfile").substitute(port=PORT, stop_s=stop_seconds())
