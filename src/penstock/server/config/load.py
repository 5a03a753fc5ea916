"""Reads the config file and the environment into one validated value.

All errors are reported at once, each with its path, its line and what is expected. After loading, tokens exist only as their sha256, so a
config can be printed or logged safely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from penstock.core import patterns
from penstock.core.errors import PenstockError
from penstock.core.queue.policy import Policy, Retry
from penstock.core.rate_limits import Rate, Rates
from penstock.core.tenants import DEAD_PREFIX, TENANTS, Quota, is_dead, split
from penstock.server.config import environment, validation
from penstock.server.config.cross_checks import cross_check
from penstock.server.config.sections import (
    RateSettings,
    RetrySettings,
    Sections,
    StreamCaps,
    StreamsSection,
    TokenSection,
)
from penstock.server.config.spaces import schema, space_yaml
from penstock.server.files import yaml_tree
from penstock.server.files.schema_files import read_schemas
from penstock.server.files.secret_files import digest_of, token_error
from penstock.server.files.yaml_tree import ConfigError, format_error, read_text

__all__ = ["Config", "ConfigError", "load", "policy_for", "quotas", "rates", "settings_for"]


class Config(Sections, frozen=True):
    """The effective settings: defaults, then the file, then the environment."""

    source: str | None = None
    """The config file."""
    notices: tuple[str, ...] = ()
    """Settings that are accepted, and have no effect or an unexpected one."""
    serves_courier: bool = True
    """Whether Courier is served; otherwise its routes are for the operator only, and the routes of the spaces are open."""


def load(path: Path | None, env: Mapping[str, str], lake: str | None = None) -> Config:
    """Read the file, or the one in COURIER_CONFIG, or none, with another lake if one is given; raises ConfigError with all errors."""
    if path is None and env.get("COURIER_CONFIG"):
        path = Path(env["COURIER_CONFIG"])
    tree = yaml_tree.YamlTree() if path is None else yaml_tree.parse(read_text(path))
    errors = list(tree.errors)
    document: dict[str, Any] = {}
    if isinstance(tree.value, dict):
        # A section whose lines are all commented out counts as absent.
        empty = {key for key in Sections.__struct_fields__ if tree.value.get(key) is None}
        document = {key: value for key, value in tree.value.items() if key not in empty}
    elif tree.value is not None:
        errors.append(((), f"got {validation.shorten(tree.value)}, expected a mapping of sections"))

    parts: dict[str, Any] = {}
    for name, section in document.items():
        parts[name] = _section(name, section, errors)
    unread = [name for name, part in parts.items() if part is None]
    environment.apply(parts, env, errors)
    if lake is not None:
        parts["lake"] = lake
    config = Config(
        **{name: part for name, part in parts.items() if part is not None},
        source=None if path is None else str(path),
        notices=tuple(environment.notices(env)),
    )
    errors += cross_check(config, unread)
    errors += _places(config)
    config, missing = _hide_tokens(config, env)
    errors += missing
    config = _with_spaces(config, document.get("spaces"), path, errors)
    if errors:
        raise ConfigError([format_error(where, message, tree.lines) for where, message in errors])
    if config.pipeline.schemas is None and config.schemas.dir is not None:
        pipeline = msgspec.structs.replace(config.pipeline, schemas=config.schemas.dir)
        config = msgspec.structs.replace(config, pipeline=pipeline)
    return config


def settings_for(config: Config, stream: str) -> StreamsSection:
    """The settings of a stream: those of all streams, changed by the pattern that matches best."""
    caps = config.streams.per_stream_caps
    pattern = _pattern_for(caps, stream)
    found = {} if pattern is None else msgspec.structs.asdict(caps[pattern])
    given = {name: value for name, value in found.items() if value is not UNSET}
    if is_dead(stream):
        # Above a bound of deliveries a dead letter is deleted, so only a pattern for dead letters sets it for them.
        is_own = pattern is not None and split(pattern)[1].startswith(DEAD_PREFIX)
        unbounded = {"max_deliveries": 0, "max_abandoned": 0}
        given = unbounded | given if is_own else given | unbounded
    return msgspec.structs.replace(config.streams, **given)


def policy_for(config: Config, stream: str) -> Policy:
    """The policy of a stream."""
    settings = settings_for(config, stream)
    policy = Policy(
        lease_us=settings.default_lease_ms * 1_000,
        max_depth=settings.max_depth,
        max_bytes=settings.max_bytes,
        overflow=settings.overflow,
        redelivery=settings.redelivery,
        max_deliveries=settings.max_deliveries,
        max_abandoned=settings.max_abandoned,
        max_inflight=settings.max_inflight,
        on_disconnect=settings.on_disconnect,
        late_ack=settings.late_ack,
        dedup_count=settings.dedup_window,
        dedup_us=settings.dedup_window_ms * 1_000,
        retry=_retry(settings.retry),
        rate=_rate(settings.rate),
        schema_mode=settings.schema_mode,
        partitioned=settings.partitioned,
        priority=settings.priority,
        priority_wait_us=settings.priority_max_wait_ms * 1_000,
    )
    return _shared(policy)


@lru_cache(1_024)
def _shared(policy: Policy) -> Policy:
    """One object for all streams with this policy: it has 200 bytes."""
    return policy


EVERY_TENANT = "*"
"""The key under `tenants` for all tenants that are not named."""


def quotas(config: Config) -> Callable[[str], Quota]:
    """The quota of each tenant."""
    known = {name: Quota(one.streams_max, one.envelopes_max, one.bytes_max) for name, one in config.tenants.items()}
    rest = known.get(EVERY_TENANT, Quota())
    return lambda name: known.get(name, rest)


def rates(config: Config) -> Rates | None:
    """The rate limits; None when neither senders nor streams have one."""
    named = {
        token.holder_name(number): rate
        for number, token in enumerate(config.auth.tokens, 1)
        if (rate := _rate(token.rate)) is not None
    }
    tenants = {name: rate for name, one in config.tenants.items() if (rate := _rate(one.rate)) is not None}
    every_tenant = tenants.pop(EVERY_TENANT, None)
    found = Rates(_rate(config.rates.per_token), _rate(config.rates.per_address), named, every_tenant, tenants)
    by_pattern = [caps.rate for caps in config.streams.per_stream_caps.values()]
    has_streams = any(isinstance(rate, RateSettings) for rate in (config.streams.rate, *by_pattern))
    return found if has_streams or found != Rates() else None


def _rate(settings: RateSettings | None) -> Rate | None:
    if settings is None:
        return None
    return Rate.per_second(settings.per_second, settings.burst or max(1, ceil(settings.per_second)))


def _pattern_for(caps: Mapping[str, StreamCaps], stream: str) -> str | None:
    """The best matching pattern. A tenant's stream is matched by its full name first, then by the name within the tenant."""
    prefix, rest = split(stream)
    if not prefix:
        return patterns.best(caps, stream)
    whole = [pattern for pattern in caps if pattern.startswith(TENANTS)]
    others = [pattern for pattern in caps if not pattern.startswith(TENANTS)]
    return patterns.best(whole, stream) or patterns.best(others, rest)


def _retry(settings: RetrySettings | Literal["none"] | None) -> Retry | None:
    if settings is None or settings == "none":
        return None
    base_us, max_us = settings.base_ms * 1_000, settings.max_ms * 1_000
    return Retry(base_us, settings.factor, max_us, settings.jitter, settings.immediate)


def _is_secret(path: yaml_tree.KeyPath) -> bool:
    """Whether a value at this path could be a token, even a misplaced one."""
    if path[:1] == ("spaces",):
        return schema.is_secret(path)
    return path[:2] == ("auth", "tokens") and not {"scopes", "name", "agent"} & set(path)


def _section(name: str, value: Any, errors: list[validation.FieldError]) -> Any:
    """Convert one section; None after adding its errors."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(Sections)}
    if name not in fields:
        errors.append(((name,), "unknown key" + validation.suggestion(name, list(fields))))
        return None
    found = list(validation.find_errors(value, msgspec.inspect.type_info(fields[name]), (name,), _is_secret))
    if found:
        errors += found
        return None
    return msgspec.convert(value, fields[name])


def _places(config: Config) -> Iterator[validation.FieldError]:
    """The errors of the directories that the config names."""
    if config.schemas.dir is not None:
        for problem in read_schemas(config.schemas.dir)[1]:
            yield ("schemas", "dir"), problem
    if (lake := _lake_problem(config)) is not None:
        yield lake
    root = config.skills.git.root
    if root is not None and not Path(root).is_dir():
        yield ("skills", "git", "root"), f"`{root}` is not a directory"


def _lake_problem(config: Config) -> validation.FieldError | None:
    """Why the lake cannot be where the config places it, as far as this machine knows."""
    if config.lake is None and config.lake_credentials is None:
        return None
    from penstock.journal.lake_location import ObjectPath, StoreError, parse_lake

    try:
        lake = None if config.lake is None else parse_lake(config.lake, config.lake_credentials)
        if isinstance(lake, ObjectPath):
            lake.options()
        elif config.lake_credentials is not None:
            of_none = "needs an object store, such as `lake: s3://bucket/lake` or `penstock up --lake s3://bucket/lake`"
            return ("lake_credentials",), of_none
    except StoreError as error:
        return ("lake_credentials",), error.message
    except PenstockError as error:
        return ("lake",), f"{error.message}; {error.hint}"
    return None


def _hide_tokens(config: Config, env: Mapping[str, str]) -> tuple[Config, list[validation.FieldError]]:
    """The config with every token as `sha256:<hex>`, and the errors of the tokens."""
    errors: list[validation.FieldError] = []
    hidden: list[TokenSection] = []
    seen: dict[str, int] = {}
    for index, token in enumerate(config.auth.tokens):
        path: yaml_tree.KeyPath = ("auth", "tokens", index, "token")
        text = token.token
        if text.startswith("env:"):
            variable = text.removeprefix("env:")
            text = env.get(variable, "")
            if not text:
                errors.append((path, f"the environment has no variable `{variable}`"))
                continue
        problem = token_error(text)
        if problem is not None:
            errors.append((path, problem))
            continue
        digest = digest_of(text)
        if digest in seen:
            errors.append((path, f"is the same token as auth.tokens[{seen[digest]}]"))
        seen.setdefault(digest, index)
        hidden.append(msgspec.structs.replace(token, token=f"sha256:{digest}"))
    auth = msgspec.structs.replace(config.auth, tokens=tuple(hidden))
    return msgspec.structs.replace(config, auth=auth), errors


def _with_spaces(config: Config, given: Any, path: Path | None, errors: list[validation.FieldError]) -> Config:
    """The config with its spaces validated, their paths resolved and their tokens hidden."""
    folder = Path() if path is None else path.parent
    entries, found, notices = space_yaml.check(config.spaces, given, folder.absolute())
    errors += found
    return msgspec.structs.replace(config, spaces=entries, notices=(*config.notices, *notices))
