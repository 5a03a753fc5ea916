"""The `COURIER_*` variables: each sets its setting, and an invalid one is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.rate_limits import Rate, Rates
from penstock.server.config.environment import NAMES
from penstock.server.config.load import Config, ConfigError, load, policy_for, rates


def read(text: str = "", folder: Path | None = None, **env: str) -> Config:
    if not text:
        return load(None, env)
    assert folder is not None
    file = folder / "penstock.yaml"
    file.write_text(text)
    return load(file, env)


def test_the_second_port_is_beside_the_first(tmp_path: Path) -> None:
    assert read().listen.ws == "off"
    assert read(COURIER_WS_PORT="8788").listen.ws == "localhost:8788"
    config = read(COURIER_WS_PORT="8788", COURIER_BIND="0.0.0.0", COURIER_HTTP_PORT="1")
    assert (config.listen.http, config.listen.ws) == ("0.0.0.0:1", "0.0.0.0:8788")
    config = read("listen: {ws: 'a.b:7'}", tmp_path, COURIER_BIND="::1")
    assert (config.listen.http, config.listen.ws) == ("[::1]:8787", "[::1]:7")


@pytest.mark.parametrize(("text", "is_off"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_each_half_of_the_port_can_be_switched_off(text: str, is_off: bool) -> None:
    config = read(COURIER_DISABLE_HTTP=text, COURIER_DISABLE_WS=text)
    assert (config.listen.requests, config.listen.sockets) == (not is_off, not is_off)


def test_metrics_and_recording(tmp_path: Path) -> None:
    config = read(COURIER_PROTECT_METRICS="yes", COURIER_RECORD_CONTROL="frames.jsonl")
    assert config.auth.protect_metrics and config.logs.record == "frames.jsonl" and config.logs.redact
    assert not read("auth: {protectMetrics: true}", tmp_path, COURIER_PROTECT_METRICS="0").auth.protect_metrics


@pytest.mark.promise(
    "Limits, reload and HTTP details", "every `COURIER_*` variable works; an unknown one gives a notice"
)
@pytest.mark.parametrize(
    ("env", "rate"),
    [
        ({}, None),
        ({"COURIER_RATE_LIMIT": "on"}, Rate(5, 3_000_000, 100)),
        ({"COURIER_RATE_LIMIT": "1"}, Rate(5, 3_000_000, 100)),
        ({"COURIER_RATE_LIMIT": "600"}, Rate(10, 1_000_000, 600)),
        ({"COURIER_RATE_LIMIT_PER_IP": "100"}, Rate(5, 3_000_000, 100)),
        ({"COURIER_RATE_LIMIT_PER_IP": "100", "COURIER_RATE_LIMIT_WINDOW_MS": "1000"}, Rate(100, 1_000_000, 100)),
        ({"COURIER_RATE_LIMIT": "off", "COURIER_RATE_LIMIT_PER_IP": "100"}, None),
    ],
)  # fmt: skip
def test_so_many_in_each_window_is_a_bucket_of_that_size(env: dict[str, str], rate: Rate | None) -> None:
    assert rates(read(**env)) == (None if rate is None else Rates(token=rate, address=rate))


def test_off_in_the_environment_beats_the_file(tmp_path: Path) -> None:
    text = "rates: {perAddress: {perSecond: 2}}"
    assert rates(read(text, tmp_path)) == Rates(address=Rate(2, 1_000_000, 2))
    assert rates(read(text, tmp_path, COURIER_RATE_LIMIT="off")) is None


def test_rates_of_tokens_and_streams(tmp_path: Path) -> None:
    config = read(
        """
auth:
  tokens:
    - {token: one, name: sam, scopes: ["streams:*:*"], rate: {perSecond: 0.5, burst: 3}}
    - {token: two, scopes: ["streams:*:*"]}
streams:
  rate: {perSecond: 10}
  perStreamCaps:
    free/*: {rate: null}
    slow: {rate: {perSecond: 1.5}}
""",
        tmp_path,
    )
    assert rates(config) == Rates(named={"sam": Rate(1, 2_000_000, 3)})
    assert policy_for(config, "any").rate == Rate(10, 1_000_000, 10)
    assert policy_for(config, "free/x").rate is None
    assert policy_for(config, "slow").rate == Rate(3, 2_000_000, 2)
    only_stream = read("streams: {perStreamCaps: {slow: {rate: {perSecond: 1}}}}", tmp_path)
    assert rates(only_stream) == Rates()


@pytest.mark.promise(
    "Limits, reload and HTTP details", "every `COURIER_*` variable works; an unknown one gives a notice"
)
def test_an_unknown_name_is_a_notice_with_the_nearest() -> None:
    config = read(COURIER_HTTP_PRT="1", PENSTOCK_URL="x", COURIER_RATE_LIMIT_WINDOW_MS="5")
    unknown, idle = config.notices
    assert "unknown environment variable `COURIER_HTTP_PRT`; did you mean `COURIER_HTTP_PORT`?" in unknown
    assert "COURIER_RATE_LIMIT_PER_IP" in idle


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as failure:
        read(
            COURIER_WS_PORT="high",
            COURIER_DISABLE_WS="perhaps",
            COURIER_RATE_LIMIT="many",
            COURIER_RATE_LIMIT_WINDOW_MS="0",
        )
    shown = "\n".join(failure.value.errors)
    for name in (
        "COURIER_WS_PORT",
        "COURIER_DISABLE_WS",
        "COURIER_RATE_LIMIT:",
        "COURIER_RATE_LIMIT_WINDOW_MS",
    ):
        assert name in shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("listen: {ws: nowhere}", "listen.ws: `nowhere` should be HOST:PORT"),
        ("listen: {trustedProxies: [10.0.0.0/99]}", "listen.trustedProxies[0]: got `10.0.0.0/99`, expected an address"),
        ("rates: {perToken: {perSecond: 0}}", "rates.perToken.perSecond: got `0`"),
        ("rates: {perToken: {burst: 1}}", "rates.perToken.perSecond: missing"),
        (
            "auth: {tokens: [{token: a, name: x, scopes: ['streams:*:*']},"
            " {token: b, name: x, scopes: ['streams:*:*'], rate: {perSecond: 1}}]}",
            "auth.tokens[1].rate: another token of `x` has a different rate",
        ),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_reported_with_a_hint(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failure:
        read(text, tmp_path)
    (found,) = failure.value.errors
    assert problem in found


@pytest.mark.promise(
    "Limits, reload and HTTP details", "every `COURIER_*` variable works; an unknown one gives a notice"
)
def test_every_name_of_the_document_is_known() -> None:
    document = (
        "HTTP_PORT WS_PORT BIND DISABLE_HTTP DISABLE_WS RATE_LIMIT RATE_LIMIT_PER_IP RATE_LIMIT_WINDOW_MS "
        "TOKENS PROTECT_METRICS RECORD_CONTROL CONFIG"
    )
    assert sorted(NAMES) == sorted(f"COURIER_{name}" for name in document.split())
