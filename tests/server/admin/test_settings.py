"""`GET /v1/config`: effective values, the policy of a stream, and no secrets."""

from __future__ import annotations

import msgspec
import pytest

from penstock.server.config.load import Config
from penstock.server.config.sections import AuthSection, StreamCaps, StreamsSection, TokenSection
from penstock.server.files.secret_files import digest_of
from tests.server.http.driving import OPERATOR_TOKEN, HttpDriver, drive

SECRET = "secret-of-sam"
CONFIG = Config(
    auth=AuthSection(tokens=(TokenSection(SECRET, ("streams:*:*",), agent="sam"),)),
    streams=StreamsSection(max_depth=500, per_stream_caps={"jobs/*": StreamCaps(max_depth=7)}),
)


@pytest.mark.promise("Console", "settings show the effective config with secrets masked, and the policy of a stream")
def test_the_config_has_effective_values_and_no_secrets() -> None:
    async def work(driver: HttpDriver) -> None:
        status, found = await driver.ask("GET", "/v1/config", token=OPERATOR_TOKEN)
        assert (status, found["source"], found["policy"]) == (200, None, None)
        config = found["config"]
        assert config["streams"]["maxDepth"] == 500 and config["limits"]["frame_max"] > 0
        assert config["auth"]["tokens"][0]["agent"] == "sam"
        assert SECRET not in (text := msgspec.json.encode(found).decode()) and digest_of(SECRET) not in text

    drive(work, CONFIG)


def test_the_policy_of_a_stream_comes_from_its_pattern() -> None:
    async def work(driver: HttpDriver) -> None:
        for stream, depth in (("jobs/a", 7), ("other", 500)):
            _, found = await driver.ask("GET", "/v1/config", token=OPERATOR_TOKEN, query={"stream": stream})
            policy = found["policy"]
            assert (policy["maxDepth"], policy["defaultLeaseMs"], policy["retry"]["maxMs"]) == (depth, 30_000, 300_000)
            assert msgspec.convert(policy, StreamCaps), "it can be copied into a config file"
        _, found = await driver.ask("GET", "/v1/config", token=OPERATOR_TOKEN, query={"stream": "dlq/jobs/a"})
        assert (found["policy"]["maxDepth"], found["policy"]["maxDeliveries"]) == (500, 0)
        assert await driver.code("GET", "/v1/config", token=OPERATOR_TOKEN, query={"stream": ""}) == "InvalidRequest"

    drive(work, CONFIG)


def test_the_config_is_for_administrators() -> None:
    async def work(driver: HttpDriver) -> None:
        assert await driver.code("GET", "/v1/config", token=SECRET) == "Forbidden"
        assert await driver.code("GET", "/v1/config") == "Unauthorized"

    drive(work, CONFIG)
