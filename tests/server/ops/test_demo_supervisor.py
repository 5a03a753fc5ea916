"""The demo in the config: what it adds, what it leaves alone, and the task of its process."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from penstock.client.address import ServerEndpoints
from penstock.core.limits import Limits
from penstock.demo import story
from penstock.demo.sensors import SENSORS
from penstock.demo.task import DemoTask
from penstock.server.assembly import Service
from penstock.server.config.load import Config
from penstock.server.config.sections import StreamsSection
from penstock.server.ops.demo_supervisor import QUERY, space_section, summary, task_of, with_demo


class TestConfig:
    @pytest.mark.promise(
        "SDK and command line",
        "the demo runs agents with a trigger, sensors and a story; it stops with its server and restarts after any failure",
    )
    def test_the_demo_adds_a_rule_a_space_and_a_query(self) -> None:
        config = with_demo(Config(), has_data=True)
        assert [rule.id for rule in config.triggers] == ["demo-built"]
        assert config.spaces == (space_section(has_spark=True),)
        assert config.pipeline.queries == (QUERY,)
        assert config.pipeline.alerts.to == "ops"
        assert config.relay.message_ttl == story.HELD_S
        assert with_demo(config, has_data=True) == config, "what is there is not added again"
        assert "stream to Spark" in summary(config)

    def test_without_data_the_collector_is_one_in_python(self) -> None:
        config = with_demo(Config(), has_data=False)
        assert config.spaces == (space_section(has_spark=False),)
        assert config.pipeline.queries == ()
        assert "collector in Python" in summary(config)

    @pytest.mark.promise(
        "SDK and command line",
        "the demo runs agents with a trigger, sensors and a story; it stops with its server and restarts after any failure",
    )
    def test_a_space_of_that_name_is_left_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "space.yaml"
        file.write_text("space: {id: demo}\nparticipants: {ann: {}}\n")
        config = with_demo(Config(spaces=(str(file),)), has_data=True)
        assert config.spaces == (str(file),)
        assert config.pipeline.queries == ()
        assert "no sensors" in summary(config)

    def test_everything_else_stays(self) -> None:
        config = Config(streams=StreamsSection(max_depth=7))
        assert with_demo(config, has_data=True).streams == config.streams

    @pytest.mark.parametrize("limits", [Limits(rules_max=0), Limits(spaces_max=0)], ids=["rules", "spaces"])
    def test_what_exceeds_a_limit_is_left_out(self, limits: Limits) -> None:
        config = with_demo(Config(limits=limits), has_data=False)
        assert (len(config.triggers), len(config.spaces)) == (min(1, limits.rules_max), min(1, limits.spaces_max))

    def test_settings_of_the_user_are_not_lowered(self) -> None:
        config = Config()
        relay = msgspec.structs.replace(config.relay, message_ttl=10**6, detach_grace_ms=10**9)
        alerts = msgspec.structs.replace(config.pipeline.alerts, to="me")
        pipeline = msgspec.structs.replace(config.pipeline, alerts=alerts)
        config = with_demo(msgspec.structs.replace(config, relay=relay, pipeline=pipeline), has_data=False)
        assert (config.relay, config.pipeline.alerts.to) == (relay, "me")


def task(config: Config, pub: str | None, *, prints: bool = True) -> DemoTask:
    """The task for a server with this config."""

    async def make() -> DemoTask:
        service = Service(config, None, lambda: 0)
        try:
            service.operator_token = "op"
            service.endpoints = ServerEndpoints(1, "t", "http://127.0.0.1:1", pub=pub, pull=pub)
            return task_of(service, config, prints=prints)
        finally:
            shutil.rmtree(service.run_dir)

    return asyncio.run(make())


def test_the_process_is_given_a_token_for_each_participant() -> None:
    made = task(with_demo(Config(), has_data=False), pub="tcp://127.0.0.1:2")
    assert (made.url, made.token) == ("http://127.0.0.1:1", "op"), "the HTTP port, because no control port is open"
    assert made.space is not None and made.space.collector == "python"
    assert set(made.space.tokens) == {*SENSORS, "dashboard", "collector"}
    assert len(set(made.space.tokens.values())) == len(made.space.tokens) and all(made.space.tokens.values())
    assert made.relay is not None and made.relay.console == "http://127.0.0.1:1"


def test_the_process_acts_only_where_the_demo_has_a_part(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("space: {id: demo}\nparticipants: {ann: {tokens: [t]}}\n")
    made = task(with_demo(Config(spaces=(str(file),)), has_data=False), pub=None)
    assert (made.space, made.relay) == (None, None)
    quiet = task(with_demo(Config(), has_data=True), pub="tcp://127.0.0.1:2", prints=False)
    assert quiet.relay is not None and quiet.relay.console is None
    assert quiet.space is not None and "collector" not in quiet.space.tokens, "Spark is the collector"
