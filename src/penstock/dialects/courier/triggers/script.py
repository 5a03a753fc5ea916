"""Trigger scripts: match envelopes against the conditions of a rule, and write the envelopes that its actions send.

`core/rules/firing.py` fires the rules. An envelope of a rule is from `system/courier` and has the tag `system`. Its headers count and
name the rules it went through, which ends loops. Its id is derived from rule, action and source, so a source that is delivered twice
makes one envelope.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from penstock.core.clock import rfc3339
from penstock.core.limits import Limits
from penstock.core.names import stream_problem
from penstock.core.records import Record, shared
from penstock.core.rules.rule_set import Emission, Failure, Moment, Rule
from penstock.core.tenants import split
from penstock.dialects.courier.triggers import config
from penstock.dialects.courier.triggers.templates import MissingError, TemplateText, TemplateTree

SYSTEM = "system/courier"
"""The `from` of an envelope that a rule wrote."""
SYSTEM_TAG = "system"
HOPS = "x-courier-hops"
RULES = "x-courier-rules"
ENRICHED = "x-courier-enriched"
"""Headers: how many rules an envelope went through, their names, and the rules that enriched it."""
CHAIN_MAX = 64
"""Rules of one chain that are read: more than any sensible limit of hops."""
REFS_MAX = 32
"""References that an envelope copies from its source, the newest ones."""
EXCERPT_MAX = 80
"""Characters of a value that a failure quotes."""

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Head(msgspec.Struct, rename={"from_": "from"}):
    """The fields that conditions read and that envelopes of rules copy."""

    id: str
    type: str
    from_: str | None = None
    corr: str | None = None
    refs: list[str] | None = None
    tags: list[str] | None = None
    headers: dict[str, Any] | None = None


_head = msgspec.json.Decoder(_Head)


class TriggerEnvelope:
    """An envelope as a rule sees it. Payload and unknown keys are decoded only when a template needs them."""

    __slots__ = ("_env", "body", "head", "headers", "stream")

    def __init__(self, stream: str, body: bytes) -> None:
        self.stream = stream
        self.body = body
        self.head = _head.decode(body)
        self.headers = self.head.headers or {}
        self._env: Any = None

    @property
    def env(self) -> Any:
        if self._env is None:
            self._env = _decode(self.body)
        return self._env

    @property
    def hops(self) -> int:
        hops = self.headers.get(HOPS, 0)
        return hops if type(hops) is int and hops > 0 else 0

    @property
    def chain(self) -> tuple[str, ...]:
        return self._listed(RULES)

    @property
    def enriched(self) -> tuple[str, ...]:
        return self._listed(ENRICHED)

    def _listed(self, header: str) -> tuple[str, ...]:
        rules = self.headers.get(header)
        return tuple(rules.split(",", CHAIN_MAX)[:CHAIN_MAX]) if isinstance(rules, str) and rules else ()


class TriggerScript:
    """The conditions and actions of one rule."""

    def __init__(self, trigger: config.Trigger, limits: Limits) -> None:
        self._trigger = trigger
        self._limits = limits
        self._tags = _texts(trigger.when.tags)
        self._tags_any = _texts(trigger.when.tags_any)
        headers = trigger.when.headers
        self._headers = {} if headers is UNSET else headers
        key = trigger.limits.cooldown_key
        self._key = None if key is UNSET else TemplateText(key, is_strict=False)
        self._writers = [
            _writer(trigger, number, action, limits)
            for number, action in enumerate(trigger.do)
            if not isinstance(action, config.EnrichAction)
        ]
        self._enrichers = [
            (
                TemplateTree(action.headers, is_strict=trigger.strict),
                TemplateTree(action.payload, is_strict=trigger.strict),
            )
            for action in trigger.do
            if isinstance(action, config.EnrichAction)
        ]

    def fits(self, source: TriggerEnvelope) -> bool:
        """Whether `mismatches` finds none, without making texts: such a rule may be tried on every envelope."""
        for name, wanted in self._headers.items():
            found = source.headers.get(name, UNSET)
            if found is UNSET or not _equal(found, wanted):
                return False
        if self._tags is None and self._tags_any is None:
            return True
        tags = source.head.tags or ()
        if self._tags_any is not None and not any(tag in tags for tag in self._tags_any):
            return False
        return all(tag in tags for tag in self._tags or ())

    def mismatches(self, source: TriggerEnvelope) -> Iterator[str]:
        """The conditions on tags and headers that do not hold, as texts."""
        tags = source.head.tags or ()
        for tag in self._tags or ():
            if tag not in tags:
                yield f"it lacks the tag `{tag}`"
        if self._tags_any is not None and not any(tag in tags for tag in self._tags_any):
            yield f"it has none of the tags {', '.join(f'`{tag}`' for tag in self._tags_any)}"
        for name, wanted in self._headers.items():
            found = source.headers.get(name, UNSET)
            if found is UNSET or not _equal(found, wanted):
                yield f"its header `{name}` is not `{wanted}`"

    def key(self, source: TriggerEnvelope) -> str:
        if self._key is None:
            return ""
        value = self._key.fill(source.env, Moment(0, self._trigger.id))
        text = value if isinstance(value, str) else _encode(value).decode()
        return text if len(text) <= self._limits.name_max else hashlib.sha256(text.encode()).hexdigest()

    def act(self, source: TriggerEnvelope, moment: Moment) -> Iterator[Emission | Failure]:
        for writer in self._writers:
            try:
                yield writer.write(source, moment)
            except MissingError as error:
                yield Failure(str(error))

    def enrich(self, source: TriggerEnvelope, moment: Moment) -> bytes | Failure:
        envelope: dict[str, Any] = dict(_raw_object.decode(source.body))
        kept = _object(envelope.get("headers", b"{}")) or {}
        try:
            for headers, payload in self._enrichers:
                excess = _excess((headers, payload), source, moment, self._limits)
                if excess is not None:
                    return excess
                added = payload.fill(source.env, moment)
                if added:
                    held = _object(envelope["payload"])
                    if held is None:
                        return Failure("the payload is no object, so nothing can be added to it")
                    enriched = _object(held.get("enriched", b"{}")) or {}
                    held["enriched"] = {**enriched, **added}
                    envelope["payload"] = held
                for name, value in headers.fill(source.env, moment).items():
                    kept[name] = _scalar(value)
        except MissingError as error:
            return Failure(str(error))
        kept[ENRICHED] = ",".join((*source.enriched, self._trigger.id))
        envelope["headers"] = kept
        return _encode(envelope)


def _object(value: Any) -> dict[str, Any] | None:
    """A raw member as an object of raw members; a dict is returned as it is."""
    if isinstance(value, dict):
        return value
    raw = bytes(value)
    return _raw_object.decode(raw) if raw.lstrip()[:1] == b"{" else None


def _scalar(value: Any) -> Any:
    """A header value: a template may produce any JSON value, a header holds a scalar."""
    return value if value is None or isinstance(value, str | int | float | bool) else _encode(value).decode()


def _equal(found: Any, wanted: Any) -> bool:
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def _texts(texts: config.Texts | msgspec.UnsetType) -> tuple[str, ...] | None:
    if texts is UNSET:
        return None
    return (texts,) if isinstance(texts, str) else tuple(texts)


class _Route:
    """Writes the envelope itself to another stream."""

    def __init__(self, trigger: config.Trigger, action: config.RouteAction, limits: Limits) -> None:
        self._rule = trigger.id
        self._to = TemplateText(action.to, is_strict=trigger.strict)
        self._moves = action.mode == "move"
        self._limits = limits

    def write(self, source: TriggerEnvelope, moment: Moment) -> Emission | Failure:
        to = _address(self._to, source, moment, self._limits)
        if isinstance(to, Failure):
            return to
        envelope: dict[str, Any] = dict(_raw_object.decode(source.body))
        envelope["to"] = to
        kept = _object(envelope.get("headers", b"{}")) or {}
        envelope["headers"] = {**kept, **_trail(self._rule, source)}
        body = _encode(envelope)
        head = source.head
        sender = shared(head.from_) if head.from_ else None
        record = Record(head.id, shared(head.type), body, sender, head.corr)
        return Emission(to, record, self._moves, is_source=True)


class _Letter:
    """Writes an envelope of the rule's own."""

    def __init__(
        self, trigger: config.Trigger, number: int, action: config.NotifyAction | config.EmitAction, limits: Limits
    ) -> None:
        self._rule = trigger.id
        self._number = number
        self._limits = limits
        self._is_notice = isinstance(action, config.NotifyAction)
        self._to = TemplateText(action.to, is_strict=trigger.strict)
        self._type = TemplateText(action.type, is_strict=trigger.strict)
        self._payload = TemplateTree(action.payload, is_strict=trigger.strict)
        self._headers = TemplateTree(action.headers, is_strict=trigger.strict)
        self._tags = [SYSTEM_TAG, *(tag for tag in action.tags if tag != SYSTEM_TAG)]

    def write(self, source: TriggerEnvelope, moment: Moment) -> Emission | Failure:
        to = _address(self._to, source, moment, self._limits)
        if isinstance(to, Failure):
            return to
        env = source.env
        kind = self._type.fill(env, moment)
        if not isinstance(kind, str) or not 0 < len(kind) <= self._limits.type_max:
            return Failure(f"{_excerpt(kind)} is not a type")
        excess = _excess((self._headers, self._payload), source, moment, self._limits)
        if excess is not None:
            return excess
        head = source.head
        payload = self._payload.fill(env, moment)
        if self._is_notice:
            payload = _notice(payload, head.id, moment)
        headers = {name: _scalar(value) for name, value in self._headers.fill(env, moment).items()}
        # Tenants choose their ids: equal ids of two tenants are two sources.
        id_ = self._id(split(source.stream)[0] + head.id, moment)
        corr = head.corr or head.id
        letter = {
            "id": id_,
            "ts": rfc3339(moment.wall_us),
            "from": SYSTEM,
            "to": to,
            "type": kind,
            "corr": corr,
            "refs": [*(head.refs or [])[-REFS_MAX:], head.id],
            "tags": self._tags,
            "headers": {**headers, **_trail(self._rule, source)},
            "payload": payload,
        }
        return Emission(to, Record(id_, shared(kind), _encode(letter), SYSTEM, corr))

    def _id(self, source_id: str, moment: Moment) -> str:
        """Equal for equal sources, so that a source that is delivered again sends nothing twice."""
        id_ = f"trg-{self._rule}-{self._number}-{source_id}"
        if moment.attempt:
            id_ += f"-{moment.attempt}"
        if moment.is_summary:
            id_ += "-summary"
        if len(id_) <= self._limits.id_max:
            return id_
        return "trg-" + hashlib.sha256(id_.encode()).hexdigest()


def _notice(payload: Any, ref: str, moment: Moment) -> Any:
    """The payload of a notice: the rule's payload over the defaults."""
    notice: dict[str, Any] = {"title": "Notification", "ref": ref}
    if moment.is_summary:
        notice["suppressed"] = moment.suppressed
    if payload is None:
        return notice
    return {**notice, **payload} if isinstance(payload, dict) else payload


def _excerpt(value: Any) -> str:
    """A value that a template produced, shortened for a message."""
    text = str(value)
    return f"`{text[:EXCERPT_MAX]}`" + ("…" if len(text) > EXCERPT_MAX else "")


def _excess(trees: tuple[TemplateTree, ...], source: TriggerEnvelope, moment: Moment, limits: Limits) -> Failure | None:
    """Why nothing is written: copies of the source's values would exceed `envelope_max`. Few copies are not measured."""
    if sum(len(tree.paths) for tree in trees) * len(source.body) <= limits.envelope_max:
        return None
    size = sum(tree.filled_size(source.env, moment) for tree in trees)
    return Failure(f"the envelope would have {size} bytes or more") if size > limits.envelope_max else None


def _trail(rule: str, source: TriggerEnvelope) -> dict[str, Any]:
    """The headers that end loops of rules."""
    return {HOPS: source.hops + 1, RULES: ",".join((*source.chain, rule))}


def _address(to: TemplateText, source: TriggerEnvelope, moment: Moment, limits: Limits) -> str | Failure:
    name = to.fill(source.env, moment)
    if not isinstance(name, str):
        return Failure(f"{_excerpt(name)} is not the name of a stream")
    problem = stream_problem(name, limits.name_max)
    if problem is not None:
        return Failure(problem.message)
    tenant, _ = split(name)
    if tenant and not to.head.startswith(tenant) and split(source.stream)[0] != tenant:
        # The content of an envelope must not lead to a tenant that its producer may not write to; a rule itself may.
        return Failure(f"`{name}` belongs to a tenant that neither the rule nor the envelope's stream names")
    return name


def _writer(trigger: config.Trigger, number: int, action: config.Action, limits: Limits) -> _Route | _Letter:
    if isinstance(action, config.RouteAction):
        return _Route(trigger, action, limits)
    assert isinstance(action, config.NotifyAction | config.EmitAction)
    return _Letter(trigger, number, action, limits)


def rule_of(trigger: config.Trigger, limits: Limits, *, at_run_time: bool = False) -> Rule:
    """A checked rule for the engine."""
    when: config.When = trigger.when
    return Rule(
        id=trigger.id,
        hook=trigger.hook,
        script=TriggerScript(trigger, limits),
        definition=trigger,
        channels=_texts(when.to),
        kinds=_texts(when.type),
        senders=_texts(when.from_),
        enriches=any(isinstance(action, config.EnrichAction) for action in trigger.do),
        acts=any(not isinstance(action, config.EnrichAction) for action in trigger.do),
        enabled=trigger.enabled,
        origin="runtime" if at_run_time else "config",
        cooldown_us=trigger.limits.cooldown_ms * 1_000,
        trailing=trigger.limits.trailing,
    )


def mismatches(rule: Rule, stream: str, kind: str, sender: str | None, source: TriggerEnvelope) -> list[str]:
    """Why a rule does not match this envelope, as texts; empty if it matches."""
    found: list[str] = []
    if not rule.takes_channel(stream):
        found.append(f"the stream `{stream}` does not fit `to`")
    if not rule.takes_kind(kind):
        found.append(f"the type `{kind}` does not fit `type`")
    if not rule.takes_sender(sender):
        found.append("it has no sender" if sender is None else f"the sender `{sender}` does not fit `from`")
    assert isinstance(rule.script, TriggerScript)
    found += rule.script.mismatches(source)
    if rule.id in source.chain:
        found.append("the rule itself had a hand in it")
    return found
