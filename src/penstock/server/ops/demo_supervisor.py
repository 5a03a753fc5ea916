"""`penstock up --demo`: adds a rule, a space and a query to the config, and runs the sample traffic in a child process.

A name that the config already uses is not replaced; the part of the demo that needs it is left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.demo import collector
from penstock.demo.agents import RULE
from penstock.demo.sensors import SENSORS
from penstock.demo.story import HELD_S
from penstock.demo.task import SPACE, DemoTask, SpaceTask, StoryTask
from penstock.dialects.courier.triggers.config import Trigger
from penstock.server.config.spaces.schema import (
    PIPELINE,
    ParticipantSection,
    SpaceHead,
    SpaceSection,
    SpaceStreamSection,
)
from penstock.server.config.spaces.space_yaml import environment_name, id_of, token_file
from penstock.server.ops.pipeline_supervisor import is_installed
from penstock.server.relay.supervisor import KEY_FILE

if TYPE_CHECKING:
    from penstock.server.assembly import Service
    from penstock.server.config.load import Config

ALERTS_TO = "ops"
"""The agent that receives alerts."""
COLLECTOR = "collector"
QUERY = str(Path(collector.__file__).absolute())
"""The file of the collector's query."""
LOG = "demo.log"
"""Errors of the demo, in the run directory."""
UNREAD_MS = 3_600_000
"""How long the relay keeps the story without a reader: people close the page and open it again later."""
SPACE_NAME = "Three sensors, a collector and a dashboard"


def with_demo(config: Config, *, has_data: bool) -> Config:
    """The config with the parts of the demo that fit into it."""
    pipeline = config.pipeline
    if pipeline.alerts.to is None:
        alerts = msgspec.structs.replace(pipeline.alerts, to=ALERTS_TO)
        pipeline = msgspec.structs.replace(pipeline, alerts=alerts)
    rules = config.triggers
    if all(rule.id != RULE["id"] for rule in rules) and len(rules) < config.limits.rules_max:
        rules = (*rules, msgspec.convert(RULE, Trigger))
    spaces = config.spaces
    if all(id_of(space) != SPACE for space in spaces) and len(spaces) < config.limits.spaces_max:
        has_spark = has_data and pipeline.enabled and is_installed()
        spaces = (*spaces, space_section(has_spark=has_spark))
        if has_spark:
            pipeline = msgspec.structs.replace(pipeline, queries=(*pipeline.queries, QUERY))
    relay = msgspec.structs.replace(
        config.relay,
        message_ttl=max(config.relay.message_ttl, HELD_S),
        detach_grace_ms=max(config.relay.detach_grace_ms, UNREAD_MS),
    )
    return msgspec.structs.replace(config, pipeline=pipeline, triggers=rules, spaces=spaces, relay=relay)


def space_section(*, has_spark: bool) -> SpaceSection:
    """The space of the demo. The collector is virtual with Spark, and a participant that joins with Python."""
    may_stream = ParticipantSection(capabilities=({"kind": "stream/*"},))
    people: dict[str, ParticipantSection | None] = dict.fromkeys(SENSORS, may_stream)
    people["dashboard"] = ParticipantSection(capabilities=({"kind": "chat"},))
    people[COLLECTOR] = ParticipantSection(type=PIPELINE) if has_spark else may_stream
    averages = SpaceStreamSection(
        COLLECTOR, content_type="application/json", description="mean of each sensor, every two seconds"
    )
    return SpaceSection(
        space=SpaceHead(SPACE, SPACE_NAME), participants=people, streams={"averages": averages} if has_spark else None
    )


def summary(config: Config) -> str:
    """One line about what the demo does."""
    parts = ["agents are running; try `penstock top`, `penstock stats` and `penstock tail`"]
    match _collector(config):
        case "spark":
            parts.append("sensors stream to Spark, which joins after its start")
        case "python":
            why = "no pipeline runs" if is_installed() else "Spark is not installed"
            parts.append(f"sensors stream to a collector in Python, because {why}")
        case None:
            parts.append(f"no sensors, because the config has its own space `{SPACE}`")
    if not config.relay.enabled:
        parts.append("no story, because no relay runs")
    return "; ".join(parts)


def _collector(config: Config) -> str | None:
    """What collects the means in the demo's space; None when the space is not the demo's."""
    for has_spark, kind in ((True, "spark"), (False, "python")):
        if space_section(has_spark=has_spark) in config.spaces:
            return kind
    return None


def task_of(service: Service, config: Config, *, prints: bool) -> DemoTask:
    """The task of the process."""
    endpoints = service.endpoints
    assert endpoints is not None
    kind = _collector(config)
    space = None
    if kind is not None:
        [place] = [one.mewdir for one in service.spaces if one.settings.id == SPACE]
        names = [*SENSORS, "dashboard", *([COLLECTOR] if kind == "python" else [])]
        tokens = {name: _token(place, name) for name in names}
        space = SpaceTask(endpoints.http, tokens, "spark" if kind == "spark" else "python")
    relay = None
    if endpoints.pub is not None and endpoints.pull is not None:
        signer = str(service.run_dir / KEY_FILE)
        relay = StoryTask(endpoints.pub, endpoints.pull, signer, endpoints.http if prints else None)
    return DemoTask(endpoints.control or endpoints.http, service.operator_token, space, relay)


def _token(place: Path, name: str) -> str:
    """A participant's token, from its file or else from the environment."""
    file = token_file(place, name)
    return file.read_text("ascii").strip() if file.exists() else os.environ[environment_name(name)]
