"""Checks that types cannot express: values that exclude one another, and values with a grammar of their own."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import UNSET

from penstock.core import scopes
from penstock.core.limits import Limits
from penstock.core.names import AGENT_FORM, address_problem, is_agent, is_stream, stream_form
from penstock.dialects.courier.triggers.config import Trigger, problems
from penstock.ipc.pipeline import FILLED_TABLES, AnyAlertRule, PipelineSection
from penstock.server.config import sections
from penstock.server.config.validation import FieldError, shorten
from penstock.server.files.addresses import parse_alias, parse_control, parse_host_port, parse_network
from penstock.server.files.yaml_tree import KeyPath, show
from penstock.transports.zeromq_endpoints import endpoint_problem

ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?")
PATTERN_FORM = "a pattern has printable characters, without `:`; `*` matches any of them"
RESERVED_NAMES = (scopes.ANONYMOUS.name, scopes.OPERATOR.name, scopes.UNAUTHENTICATED.name)
_AGE = re.compile("[1-9][0-9]{0,4}d")
GIT_OUTPUT_MAX = 512 * 1024
"""Bytes of a diff that fit into an envelope as JSON."""

ANYBODY = "*"
_SIGNER = re.compile(r"[0-9a-f]{64}")
_CURVE_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")

# The first of each pair must not exceed the second.
_NESTED_LIMITS = (
    ("lease_min_ms", "lease_max_ms"),
    ("envelope_max", "frame_max"),
    ("outbox_max", "outbox_hard_max"),
    ("outbox_hard_max", "outbox_total_max"),
    ("frame_max", "input_total_max"),
    ("space_envelope_max", "input_total_max"),
    ("unauthenticated_per_address_max", "links_max"),
)


def cross_check(config: sections.Sections, unread: Container[str] = ()) -> Iterator[FieldError]:
    """Find the errors in sections whose types are valid.

    An unread section holds its defaults here, so it is not compared with others.
    """
    if "limits" not in unread:
        yield from _lease_errors(config.streams, config.limits)
    yield from _stream_errors(config.streams)
    if "schemas" not in unread and config.schemas.dir is None:
        for path, settings in _settings(config.streams):
            if settings.schema_mode not in (UNSET, "off"):
                yield (*path, "schemaMode"), "needs a directory of schemas: set `schemas.dir`"
    yield from _trigger_errors(config.triggers, config.limits)
    yield from _auth_errors(config.auth)
    for name in config.tenants:
        if name != "*" and not is_agent(name):
            yield ("tenants", name), f"expected {AGENT_FORM}, or `*` for all others"
    yield from _listen_errors(config.listen)
    yield from _repeated_ids(("pipeline", "alerts", "rules"), config.pipeline.alerts.rules)
    to = config.pipeline.alerts.to
    if to is not None and (problem := address_problem(to)) is not None:
        yield ("pipeline", "alerts", "to"), problem.message
    for name, age in config.pipeline.retention.items():
        if _AGE.fullmatch(age) is None:
            yield ("pipeline", "retention", name), f"got `{age}`, expected a number of days, such as `90d`"
        # The pipeline reads the files of `pipeline.tables`, and checks the names of their tables.
        if name == "events" or (name not in FILLED_TABLES and not config.pipeline.tables):
            hint = "its setting is `journal.retention`" if name == "events" else f"tables: {', '.join(FILLED_TABLES)}"
            yield ("pipeline", "retention", name), f"`{name}` is not a table of the pipeline; {hint}"
    yield from _shorter_retentions(config.pipeline)
    yield from _skill_errors(config.skills.git)
    yield from relay_errors(config.relay)
    limits = config.limits
    if len(config.spaces) > limits.spaces_max:
        yield (("spaces",), f"has {len(config.spaces)} spaces, but `limits.spaces_max` is {limits.spaces_max}")
    for name, value in msgspec.structs.asdict(limits).items():
        if value < 1:
            yield ("limits", name), f"got `{value}`, expected 1 or more"
    for low, high in _NESTED_LIMITS:
        if getattr(limits, low) > getattr(limits, high):
            message = f"`{getattr(limits, low)}` is more than `{high}`, which is {getattr(limits, high)}"
            yield ("limits", low), message


def _shorter_retentions(pipeline: PipelineSection) -> Iterator[FieldError]:
    """Tables that lose rows earlier than `conversations`, which is computed from them."""
    days = {name: int(age[:-1]) for name, age in pipeline.retention.items() if _AGE.fullmatch(age)}
    kept = days.get("conversations", math.inf)
    for name in ("envelopes", "deliveries"):
        if days.get(name, math.inf) < kept:
            age = "for ever" if kept == math.inf else f"for {kept}d"
            what = f"`conversations` is computed from `{name}` and keeps its rows {age}"
            yield (
                ("pipeline", "retention", name),
                f"{what}: an older conversation would shrink when it changes; keep `{name}` at least as long",
            )


def _settings(
    streams: sections.StreamsSection,
) -> Iterator[tuple[KeyPath, sections.StreamsSection | sections.StreamCaps]]:
    """The settings of all streams and those of each pattern, with their paths."""
    yield ("streams",), streams
    for pattern, caps in streams.per_stream_caps.items():
        yield ("streams", "perStreamCaps", pattern), caps


def _lease_errors(streams: sections.StreamsSection, limits: Limits) -> Iterator[FieldError]:
    for path, settings in _settings(streams):
        lease_ms = settings.default_lease_ms
        if lease_ms is not UNSET and not limits.lease_min_ms <= lease_ms <= limits.lease_max_ms:
            bounds = f"from {limits.lease_min_ms} to {limits.lease_max_ms}, the limits of a lease"
            yield (*path, "defaultLeaseMs"), f"got `{lease_ms}`, expected a number {bounds}"


def _stream_errors(streams: sections.StreamsSection) -> Iterator[FieldError]:
    for pattern in streams.per_stream_caps:
        if not is_stream(pattern, is_pattern=True):
            yield ("streams", "perStreamCaps", pattern), f"is not a valid pattern: {PATTERN_FORM}"
    for path, settings in _settings(streams):
        retry = settings.retry
        if isinstance(retry, sections.RetrySettings) and retry.base_ms > retry.max_ms:
            message = f"`{retry.base_ms}` is more than `maxMs`, which is {retry.max_ms}"
            yield (*path, "retry", "baseMs"), message
        both = [
            getattr(streams, name) if getattr(settings, name) is UNSET else getattr(settings, name)
            for name in ("partitioned", "priority")
        ]
        if all(both):
            message = "excludes `priority`, because an urgent envelope cannot overtake those of its key; choose one"
            yield (*path, "partitioned"), message


def _skill_errors(git: sections.GitSkill) -> Iterator[FieldError]:
    path = ("skills", "git")
    if not is_stream(git.stream):
        yield (*path, "stream"), f"{shorten(git.stream)} is not a stream name: {stream_form()}"
    for index, pattern in enumerate(git.replies):
        if not is_stream(pattern, is_pattern=True):
            yield (*path, "replies", index), f"{shorten(pattern)} is not a valid pattern: {PATTERN_FORM}"
    if git.output_max > GIT_OUTPUT_MAX:
        yield (
            (*path, "output_max"),
            f"got `{git.output_max}`, expected {GIT_OUTPUT_MAX} or less: an answer is one envelope",
        )


def _trigger_errors(triggers: tuple[Trigger, ...], limits: Limits) -> Iterator[FieldError]:
    yield from _repeated_ids(("triggers",), triggers)
    for index, trigger in enumerate(triggers):
        for where, message in problems(trigger, limits):
            yield ("triggers", index, *where), message
    if len(triggers) > limits.rules_max:
        yield ("triggers",), f"has {len(triggers)} rules, but `limits.rules_max` is {limits.rules_max}"


def _repeated_ids(path: KeyPath, rules: Sequence[Trigger | AnyAlertRule]) -> Iterator[FieldError]:
    seen: dict[str, int] = {}
    for index, rule in enumerate(rules):
        if (first := seen.setdefault(rule.id, index)) != index:
            yield (*path, index, "id"), f"`{rule.id}` is also the id of {show((*path, first))}"


def _auth_errors(auth: sections.AuthSection) -> Iterator[FieldError]:
    if auth.tokens and auth.allow_anonymous:
        yield ("auth", "allowAnonymous"), "excludes `tokens`: with tokens, every client needs one"
    agents: dict[str, str | None] = {}
    rates: dict[str, sections.RateSettings | None] = {}
    for index, token in enumerate(auth.tokens):
        path = ("auth", "tokens", index)
        name = token.holder_name(index + 1)
        called = "agent" if token.name is None and token.agent is not None else "name"
        if name in RESERVED_NAMES:
            yield (*path, called), f"`{name}` is reserved by the server"
        elif agents.setdefault(name, token.agent) != token.agent:
            # A client with the same name may settle what the holder has leased.
            yield (*path, called), f"`{name}` is also the name of a token of another agent"
        if rates.setdefault(name, token.rate) != token.rate:
            yield ((*path, "rate"), f"another token of `{name}` has a different rate, but both share one bucket")
        if token.tenant is not None:
            yield from _tenant_errors(token, path)
        if token.agent is not None and not is_agent(token.agent):
            yield (*path, "agent"), f"got {shorten(token.agent)}, expected {AGENT_FORM}"
        for number, text in enumerate(token.scopes):
            if isinstance(problem := scopes.parse(text), str):
                yield (*path, "scopes", number), problem


def token_errors(tokens: Sequence[sections.TokenSection]) -> list[str]:
    """The errors of the last token, given that the others are valid."""
    last = len(tokens) - 1
    found = _auth_errors(sections.AuthSection(tokens=tuple(tokens)))
    return [f"{path[3]}: {message}" for path, message in found if path[2] == last]


def _tenant_errors(token: sections.TokenSection, path: KeyPath) -> Iterator[FieldError]:
    assert token.tenant is not None
    if not is_agent(token.tenant):
        yield (*path, "tenant"), f"got {shorten(token.tenant)}, expected {AGENT_FORM}"
    for number, text in enumerate(token.scopes):
        scope = scopes.parse(text)
        if isinstance(scope, scopes.Scope) and scope.kind == "admin":
            yield (*path, "scopes", number), "administers the whole server, which is not allowed for a tenant"


def _listen_errors(listen: sections.ListenSection) -> Iterator[FieldError]:
    for name, parse in (("http", parse_host_port), ("ws", parse_alias), ("control", parse_control)):
        try:
            parse(getattr(listen, name))
        except ValueError as error:
            yield ("listen", name), str(error)
    for index, origin in enumerate(listen.origins):
        if not ORIGIN.fullmatch(origin):
            message = f"got {shorten(origin)}, expected e.g. `https://app.example.com`, without a path"
            yield ("listen", "origins", index), message
    for index, proxy in enumerate(listen.trusted_proxies):
        try:
            parse_network(proxy)
        except ValueError:
            message = f"got {shorten(proxy)}, expected an address or a network, e.g. `10.0.0.0/8`"
            yield ("listen", "trustedProxies", index), message


def relay_errors(relay: sections.RelaySection) -> Iterator[FieldError]:
    """Find the errors that types cannot express."""
    for name, endpoint in (("pub", relay.pub), ("pull", relay.pull)):
        if endpoint is not None:
            problem = endpoint_problem(endpoint, has_curve=relay.curve is not None)
            if problem is None and endpoint.startswith("inproc:"):
                problem = "`inproc:` is not reachable: the relay runs in a process of its own"
            if problem is not None:
                yield ("relay", name), problem
    for name, key in relay.signers.items():
        if not _SIGNER.fullmatch(key):
            yield ("relay", "signers", name), f"got {shorten(key)}, expected 64 lower case hexadecimal digits"
    if relay.curve is None:
        return
    if not Path(relay.curve.secret).is_file():
        yield ("relay", "curve", "secret"), f"there is no file `{relay.curve.secret}`"
    for index, key in enumerate(relay.curve.allowed):
        if key != ANYBODY and not _CURVE_KEY.fullmatch(key):
            yield ("relay", "curve", "allowed", index), "expected the 40 characters of a public key, or `*`"
    if not any(endpoint and endpoint.startswith("tcp:") for endpoint in (relay.pub, relay.pull)):
        yield ("relay", "curve"), "applies to tcp:// only, and neither `pub` nor `pull` uses it"
