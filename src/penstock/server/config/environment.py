"""The `COURIER_*` environment variables; each overrides a setting of the config file.

The names come from the Courier document and its tools. An unknown variable with the same prefix is reported as a notice with the nearest
name, because it may be meant for another program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from penstock.server.config import sections, validation
from penstock.server.files.addresses import OFF, HostPort, parse_host_port, parse_port

PREFIX = "COURIER_"
NAMES = {
    "COURIER_CONFIG": "the config file, when `--config` is not given",
    "COURIER_BIND": "replaces the host of `listen.http`, and of `listen.ws` if that is on",
    "COURIER_HTTP_PORT": "replaces the port of `listen.http`",
    "COURIER_WS_PORT": "sets `listen.ws`: a second port that serves the same",
    "COURIER_DISABLE_HTTP": "`1` sets `listen.requests: false`: WebSockets and control lines only",
    "COURIER_DISABLE_WS": "`1` sets `listen.sockets: false`",
    "COURIER_TOKENS": "adds tokens, separated by commas; each allows everything but administration",
    "COURIER_PROTECT_METRICS": "`1` sets `auth.protectMetrics: true`",
    "COURIER_RATE_LIMIT": "`on`, `off`, or a number of envelopes from 2 on in each window: sets `rates.perAddress` and `rates.perToken`",
    "COURIER_RATE_LIMIT_PER_IP": "envelopes in each window, else 100; set alone it means `on`",
    "COURIER_RATE_LIMIT_WINDOW_MS": "the length of that window, else 60000",
    "COURIER_RECORD_CONTROL": "sets `logs.record`: a file that every Control v1 frame is written to",
}
ENV_TOKEN_SCOPES = ("streams:*:*", "views:*:*")
"""The scopes of a token in COURIER_TOKENS: everything but the administration of the server."""
RATE_COUNT = 100
RATE_WINDOW_MS = 60_000

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off", "")


def notices(env: Mapping[str, str]) -> Iterator[str]:
    """Variables that are set and have no effect."""
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in NAMES:
            yield f"unknown environment variable `{name}`" + validation.suggestion(name, list(NAMES))
    window = "COURIER_RATE_LIMIT_WINDOW_MS"
    if env.get(window) and not (env.get("COURIER_RATE_LIMIT") or env.get("COURIER_RATE_LIMIT_PER_IP")):
        yield f"`{window}` alone limits nothing; set COURIER_RATE_LIMIT_PER_IP too"


def apply(parts: dict[str, Any], env: Mapping[str, str], errors: list[validation.FieldError]) -> None:
    """Apply the environment to the sections of the file."""
    _listen(parts, env, errors)
    _auth(parts, env, errors)
    _rates(parts, env, errors)
    if env.get("COURIER_RECORD_CONTROL"):
        _change(parts, "logs", sections.LogsSection, record=env["COURIER_RECORD_CONTROL"])


def _change(parts: dict[str, Any], name: str, kind: type[msgspec.Struct], **values: Any) -> None:
    parts[name] = msgspec.structs.replace(parts.get(name) or kind(), **values)


def _listen(parts: dict[str, Any], env: Mapping[str, str], errors: list[validation.FieldError]) -> None:
    listen: sections.ListenSection = parts.get("listen") or sections.ListenSection()
    bind, port, second = (env.get(PREFIX + name) for name in ("BIND", "HTTP_PORT", "WS_PORT"))
    try:
        http = _moved(listen.http, bind, port) if bind or port else listen.http
        ws = listen.ws
        if second or (bind and ws != OFF):
            ws = _moved(http if ws == OFF else ws, bind, second)
        if (http, ws) != (listen.http, listen.ws):
            _change(parts, "listen", sections.ListenSection, http=http, ws=ws)
    except ValueError as error:
        names = "COURIER_WS_PORT" if second and not (bind or port) else "COURIER_BIND or COURIER_HTTP_PORT"
        errors.append(((), f"{names}: {error}"))
    for name, field in (("DISABLE_HTTP", "requests"), ("DISABLE_WS", "sockets")):
        wanted = _flag(env, PREFIX + name, errors)
        if wanted is not None:
            _change(parts, "listen", sections.ListenSection, **{field: not wanted})


def _moved(address: str, host: str | None, port: str | None) -> str:
    before = parse_host_port(address)
    after = HostPort(host or before.host, parse_port(port) if port else before.port)
    return str(parse_host_port(str(after)))


def _auth(parts: dict[str, Any], env: Mapping[str, str], errors: list[validation.FieldError]) -> None:
    texts = [text.strip() for text in env.get("COURIER_TOKENS", "").split(",")]
    added = tuple(
        sections.TokenSection(token=text, scopes=ENV_TOKEN_SCOPES, name=f"env-{number}")
        for number, text in enumerate(filter(None, texts), 1)
    )
    if added:
        auth: sections.AuthSection = parts.get("auth") or sections.AuthSection()
        _change(parts, "auth", sections.AuthSection, tokens=auth.tokens + added)
    is_protected = _flag(env, "COURIER_PROTECT_METRICS", errors)
    if is_protected is not None:
        _change(parts, "auth", sections.AuthSection, protect_metrics=is_protected)


def _rates(parts: dict[str, Any], env: Mapping[str, str], errors: list[validation.FieldError]) -> None:
    """A number per window as a bucket of that size that one window refills."""
    switch = env.get("COURIER_RATE_LIMIT", "").lower()
    count = _number(env, "COURIER_RATE_LIMIT_PER_IP", errors)
    window_ms = _number(env, "COURIER_RATE_LIMIT_WINDOW_MS", errors) or RATE_WINDOW_MS
    if switch and switch in _OFF:
        _change(parts, "rates", sections.RateDefaults, per_address=None, per_token=None)
        return
    if switch and switch not in _ON:
        count = _number(env, "COURIER_RATE_LIMIT", errors)
    elif switch:
        count = count or RATE_COUNT
    if count is None:
        return
    rate = sections.RateSettings(per_second=count * 1000 / window_ms, burst=count)
    if not 0.0001 <= rate.per_second <= 1_000_000:
        errors.append(((), f"COURIER_RATE_LIMIT: {count} in {window_ms} ms is not a supported rate"))
        return
    _change(parts, "rates", sections.RateDefaults, per_address=rate, per_token=rate)


def _flag(env: Mapping[str, str], name: str, errors: list[validation.FieldError]) -> bool | None:
    """A variable that is `1` or `0`; None when it is not set."""
    if name not in env:
        return None
    text = env[name].strip().lower()
    if text not in _ON + _OFF:
        errors.append(((), f"{name}: got {validation.shorten(env[name])}, expected `1` or `0`"))
        return None
    return None if not text else text in _ON


def _number(env: Mapping[str, str], name: str, errors: list[validation.FieldError]) -> int | None:
    """A variable that is a whole number of 1 or more; None when it is not set."""
    text = env.get(name, "").strip()
    if not text:
        return None
    if text.isascii() and text.isdecimal() and 0 < len(text) <= 9 and int(text) >= 1:
        return int(text)
    errors.append(((), f"{name}: got {validation.shorten(text)}, expected a whole number of 1 or more"))
    return None
