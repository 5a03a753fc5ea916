"""What the routes answer, for the OpenAPI document. The answers are built by hand, so their schemas are too."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_TRUTH: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number", "minimum": 0}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
_TIME: Schema = {"type": "string", "format": "date-time"}
_MOMENT: Schema = {"type": "integer", "description": "Milliseconds since 1970"}


def _object(required: Schema, optional: Schema | None = None, **more: Any) -> Schema:
    """An object that has these members; answers may gain others."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties, **more}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


ENVELOPE = _object(
    {
        "id": {"type": "string", "minLength": 1, "maxLength": 256},
        "ts": {"type": "string", "format": "date-time"},
        "type": {"type": "string", "minLength": 1, "maxLength": 256},
        "payload": {},
    },
    {
        "from": {"type": ["string", "null"]},
        "to": {"type": "string", "maxLength": 512},
        "corr": {"type": ["string", "null"]},
        "schema": {"type": ["string", "null"]},
        "version": {"type": ["integer", "null"]},
        "refs": {"type": ["array", "null"], "items": _TEXT},
        "tags": {"type": ["array", "null"], "items": _TEXT},
        "headers": {
            "type": ["object", "null"],
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
        },
    },
)
JUDGED = _object({"payload": {}}, {"schema": {"type": ["string", "null"]}})
"""What of an envelope matters to its schema."""
# A dead letter tells its story in a header that is an object.
_STORED = {
    **ENVELOPE,
    "properties": {**ENVELOPE["properties"], "headers": {"type": ["object", "null"]}},
}
_LEASE = {"seq": _COUNT, "attempt": _COUNT}
_STATES = ["ready", "inflight", "delayed", "held", "settled"]
_PLACE = _object(
    {"stream": _TEXT, "state": {"enum": _STATES}, "seq": _COUNT},
    {
        "attempt": _COUNT,
        "holder": _TEXT,
        "leaseExpiresAt": _MOMENT,
        "dueAt": _MOMENT,
        "outcome": _TEXT,
        "lastError": _TEXT,
    },
)
_STATS = _object(
    {
        **dict.fromkeys(("depth", "inflight", "delayed", "bytes", "consumers", "credit", "seq"), _COUNT),
        **dict.fromkeys(("rateIn", "rateOut", "latP50", "latP95", "latP99", "oldestMs"), _NUMBER),
        "lastTs": {"type": ["string", "null"], "format": "date-time"},
    }
)
_TRIGGER = _object(
    {
        "id": _TEXT,
        "hook": {"enum": ["on_insert", "on_ack", "on_timeout", "on_dead"]},
        "origin": {"enum": ["config", "runtime"]},
        "state": {"enum": ["ready", "resting", "disabled"]},
        "rule": {"type": "object"},
        "counters": {"type": "object", "additionalProperties": _COUNT},
    }
)
_ONE = _object({"id": _TEXT, "seq": _COUNT}, {"duplicate": _TRUTH})
_MANY = _object({"ids": _list(_TEXT), "seqs": _list(_COUNT)}, {"duplicates": _list(_TEXT)})

_BATCH: Schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_STAGED = {"app": _TEXT, "batch": _BATCH}
NAMES: dict[str, Schema] = {
    "app": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
    "batch": _BATCH,
    "part": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    "rule": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    "name": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
}
"""Parts of a path that are more than any text."""

ANSWERS: dict[str, Schema] = {
    "StoredEnvelope": _STORED,
    "Stats": _STATS,
    "Place": _PLACE,
    "Enqueued": {"anyOf": [_ONE, _MANY]},
    "Sent": _object(
        {"id": _TEXT, "seq": _COUNT, "to": _TEXT, "recipient": _object({"known": _TRUTH, "present": _TRUTH})},
        {"duplicate": _TRUTH},
    ),
    "Pulled": _object(
        {
            "deliveries": _list(
                _object(
                    {
                        "deliver": _named("StoredEnvelope"),
                        "stream": _TEXT,
                        **_LEASE,
                        "leaseId": _TEXT,
                        "leaseExpiresAt": _MOMENT,
                    }
                )
            )
        }
    ),
    "Settled": _object({"id": _TEXT, "op": _TEXT}, {"settled": _TRUTH, "leaseExpiresAt": _MOMENT}),
    "Redriven": _object({"moved": _COUNT, "left": _COUNT}, {"kept": _COUNT}),
    "Purged": _object({"purged": _COUNT}),
    "Metrics": _object(
        {
            "streams": _list(
                _object(
                    {
                        "id": _TEXT,
                        "stats": _named("Stats"),
                        "q": {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}},
                    }
                )
            )
        }
    ),
    "Peeked": _object(
        {"rows": _list({"allOf": [_named("Place"), _object({"env": _named("StoredEnvelope")})]})}
    ),
    "ViewRows": _object(
        {
            "rows": _list(
                _object({"addr": _TEXT}, {"env": _named("StoredEnvelope"), "row": {"type": "object"}})
            ),
            "watermark": _COUNT,
            "asOf": {"type": "string", "format": "date-time"},
        }
    ),
    "Places": _object({"id": _TEXT, "places": _list(_named("Place"))}),
    "Explained": _object(
        {
            "stream": _TEXT,
            "flowing": _TRUTH,
            "reasons": _list(_object({"code": _TEXT, "message": _TEXT})),
            "consumers": _list(_object({"holder": _TEXT, "credit": _COUNT, "inflight": _COUNT})),
        }
    ),
    "Schemas": _object({"schemas": _list(_object({"name": _TEXT, "versions": _list(_TEXT)}))}),
    "Judged": _object(
        {
            "ok": _TRUTH,
            "finding": {"enum": ["fits", "missing", "malformed", "unknown", "newer", "misfit"]},
            "message": {"type": ["string", "null"]},
            "against": {"type": ["string", "null"]},
            "problems": _list(_object({"path": _TEXT, "rule": _TEXT, "message": _TEXT})),
        }
    ),
    "JournalBounds": _object(
        {
            "journal": _TEXT,
            **dict.fromkeys(("shard", "epoch", "first", "sealedEnd", "end"), _COUNT),
            "schema": _list(_object({"name": _TEXT, "type": _TEXT})),
        }
    ),
    "Sealed": _object(
        {
            **dict.fromkeys(("sealedRows", "sealedEnd", "liveOffset"), _COUNT),
            **dict.fromkeys(("removedSegments", "removedFiles", "removedBytes"), _COUNT),
            "endedReaders": _list(_TEXT),
        }
    ),
    "JournalReader": _object({"name": _TEXT, "offset": _COUNT}),
    "StagedPart": _object({**_STAGED, "part": _TEXT, "staged": _COUNT}),
    "StagedBatch": _object(
        {**_STAGED, "enqueued": _COUNT, "duplicate": _TRUTH}, {"last": _BATCH, "frames": _COUNT}
    ),
    "StageAborted": _object({**_STAGED, "dropped": _COUNT}),
    "StageLast": _object({"app": _TEXT, "last": {**_BATCH, "type": ["integer", "null"]}}),
    "TriggerState": _TRIGGER,
    "Triggers": _object({"triggers": _list(_named("TriggerState"))}),
    "TriggerExplained": _object(
        {
            **_TRIGGER["properties"],
            "reasons": _list(_object({"code": _TEXT, "message": _TEXT})),
            "cooling": _list(_object({"key": _TEXT, "endsInMs": _COUNT, "suppressed": _COUNT})),
            "recent": _list(_object({"at": {"type": "string", "format": "date-time"}})),
        }
    ),
    "TriggerPut": _object({"id": _TEXT, "created": _TRUTH}),
    "TriggerRemoved": _object({"id": _TEXT, "removed": _TRUTH, "config": _TRUTH}),
    "TriggersTried": _object(
        {
            "triggers": _list(
                _object(
                    {"id": _TEXT, "hook": _TEXT, "fits": _TRUTH},
                    {"because": _list(_TEXT), "sends": _list({"type": "object"}), "warnings": _COUNT},
                )
            )
        }
    ),
    "Tail": _object(
        {
            "rows": _list(
                _object(
                    {"offset": _COUNT, "recorded_at": _TIME, "door": _TEXT, "event": _TEXT},
                    {
                        **dict.fromkeys(("channel", "id", "kind", "sender", "peer", "corr", "reason"), _TEXT),
                        **dict.fromkeys(("seq", "attempt", "bytes", "recipients", "ref_offset"), _COUNT),
                        **dict.fromkeys(("ref_at", "first_at"), _TIME),
                        "meta": {},
                        "body": _TEXT,
                        "body_cut": _TRUTH,
                    },
                )
            ),
            **dict.fromkeys(("next", "end", "first", "epoch", "missed"), _COUNT),
            "isScanned": _TRUTH,
        }
    ),
    "PipelineState": _object(
        {
            "state": {"enum": ["off", "starting", "running", "stopped", "failed", "halted"]},
            **dict.fromkeys(("lag", "end", "offset", "restarts"), _COUNT),
            "queries": {
                "type": "object",
                "additionalProperties": _object(
                    dict.fromkeys(("offset", "batches", "rows", "batch_ms", "at_us"), _COUNT)
                ),
            },
            "behind": {"type": "object", "additionalProperties": _COUNT},
            "own": {"type": "object", "additionalProperties": _TEXT},
            **dict.fromkeys(("code", "message", "hint", "ui"), _TEXT_OR_NULL),
        }
    ),
    "Lake": _object(
        {
            "tables": _list(
                _object(
                    {
                        "name": _TEXT,
                        **dict.fromkeys(("rows", "bytes", "files", "version"), _COUNT),
                        "updated_at": {"type": ["string", "null"], "format": "date-time"},
                        "columns": _list(_object({"name": _TEXT, "type": _TEXT})),
                    }
                )
            )
        }
    ),
    "SqlAnswer": _object(
        {
            "columns": _list(_TEXT),
            "types": _list(_TEXT),
            "rows": _list({"type": "array"}),
            "truncated": _TRUTH,
            "ms": _COUNT,
        }
    ),
    "Alerts": _object(
        {
            "alerts": _list(
                _object(
                    {
                        **dict.fromkeys(
                            ("id", "rule", "severity", "subject", "state", "message"), _TEXT_OR_NULL
                        ),
                        **dict.fromkeys(("value", "threshold"), _NUMBER_OR_NULL),
                        **dict.fromkeys(("fired_at", "resolved_at"), _TEXT_OR_NULL),
                    }
                )
            )
        }
    ),
    "Reloaded": _object({"changed": _list(_TEXT), "restart": _list(_TEXT), "closed": _COUNT}),
    "Spaces": _object(
        {
            "spaces": _list(
                _object(
                    {
                        "id": _TEXT,
                        "name": _TEXT,
                        "participants": _list({"type": "object"}),
                        "streams": _list({"type": "object"}),
                        "invited": _list(_TEXT),
                        "kicked": _list(_TEXT),
                        "counts": {"type": "object"},
                    }
                )
            )
        }
    ),
    "SpaceSent": _object({"id": _TEXT, "from": _TEXT, "status": _TEXT}),
    "Invited": _object({"participant": _TEXT, "token": _TEXT, "url": _TEXT}),
    "Kicked": _object({"participant": _TEXT}),
    "RelayTopics": _object(
        {
            "running": _TRUTH,
            "topics": _list(
                _object(
                    {
                        "topic": {"type": "string", "description": "The hash of its name"},
                        **dict.fromkeys(("messages", "bytes", "subscribers", "waiting", "held"), _COUNT),
                    }
                )
            ),
            "more": _COUNT,
            "totals": {"type": "object", "additionalProperties": _COUNT},
        }
    ),
    "Tokens": _object(
        {
            "tokens": _list(
                _object(
                    {
                        "name": _TEXT,
                        "agent": {"type": ["string", "null"]},
                        "tenant": {"type": ["string", "null"]},
                        "scopes": _list(_TEXT),
                        "origin": {"enum": ["config", "minted"]},
                        "created_at": {"type": ["string", "null"], "format": "date-time"},
                    }
                )
            ),
            "required": {"type": "boolean", "description": "Whether everybody needs a token"},
            "kept": {"type": "boolean", "description": "Whether minted tokens survive a restart"},
        }
    ),
    "Minted": _object({"name": _TEXT, "token": _TEXT, "required": _TRUTH, "kept": _TRUTH, "closed": _COUNT}),
    "Revoked": _object({"name": _TEXT, "required": _TRUTH, "closed": _COUNT}),
    "Console": _object(
        {
            **dict.fromkeys(("name", "version", "bootId"), _TEXT),
            "operator": _TRUTH,
            "spaces": _list(_TEXT),
            "relay": _TRUTH,
        }
    ),
    "Health": _object(
        {
            "ok": _TRUTH,
            "status": {"enum": ["ok", "draining"]},
            "version": _TEXT,
            "bootId": _TEXT,
            "features": _list(_TEXT),
            "spaces": _COUNT,
            "clients": _COUNT,
            "uptime": _NUMBER,
            "journal": {"type": "object"},
        }
    ),
}

ANSWERS_OF = {
    "enqueue": "Enqueued",
    "send": "Sent",
    "pull": "Pulled",
    "settle": "Settled",
    "redrive": "Redriven",
    "purge": "Purged",
    "stats": "Stats",
    "metrics": "Metrics",
    "peek": "Peeked",
    "snapshot": "ViewRows",
    "where": "Places",
    "explain": "Explained",
    "schemas": "Schemas",
    "schemas_validate": "Judged",
    "journal": "JournalBounds",
    "journal_seal": "Sealed",
    "journal_readers": "JournalReader",
    "stage_part": "StagedPart",
    "stage_commit": "StagedBatch",
    "stage_abort": "StageAborted",
    "stage_last": "StageLast",
    "triggers": "Triggers",
    "trigger": "TriggerState",
    "trigger_explain": "TriggerExplained",
    "trigger_put": "TriggerPut",
    "trigger_remove": "TriggerRemoved",
    "trigger_try": "TriggersTried",
    "tail": "Tail",
    "pipeline": "PipelineState",
    "lake": "Lake",
    "sql": "SqlAnswer",
    "alerts": "Alerts",
    "reload": "Reloaded",
    "spaces": "Spaces",
    "space_send": "SpaceSent",
    "space_invite": "Invited",
    "space_kick": "Kicked",
    "relay_topics": "RelayTopics",
    "tokens": "Tokens",
    "token_mint": "Minted",
    "token_revoke": "Revoked",
    "console_session": "Console",
    "console_sign_in": "Console",
    "health": "Health",
}
"""The schema of each route's answer, by the route's name."""
