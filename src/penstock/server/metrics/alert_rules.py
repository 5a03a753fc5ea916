"""Alert rules for Prometheus, printed from the names of the metrics.

Each rule says what is wrong and where to look. A rule names metrics by `@name`, which becomes the name of the samples; a name
that is not exported cannot be printed.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import yaml

from penstock.server.metrics.metric_names import BY_NAME

_NAME = re.compile(r"@(\w+)")


class PrometheusAlert(msgspec.Struct, frozen=True):
    """One alert."""

    alert: str
    expr: str
    lasts: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    cure: str


RULES = (
    PrometheusAlert("PenstockDown", 'up{job="penstock"} == 0', "1m", "critical",
         "Penstock does not answer", "`systemctl status penstock`, then `penstock doctor` on its machine."),
    PrometheusAlert("PenstockRestartsOften", "resets(@uptime_seconds[1h]) > 3", "0m", "warning",
         "Penstock was started more than three times in an hour", "Its log says why it ended."),
    PrometheusAlert("PenstockJournalRefuses", "@journal_refusing == 1", "1m", "critical",
         "The journal refuses new envelopes; acks still count",
         "`/health` says why. On a full disk free some space: it goes on by itself."),
    PrometheusAlert("PenstockDiskNearlyFull", "@journal_disk_free_bytes < 2e9", "5m", "critical",
         "The journal's disk has less than 2 GB left", "Shorten `journal.retention`, or give it a larger disk."),
    PrometheusAlert("PenstockDiskFillsUp", "predict_linear(@journal_disk_free_bytes[6h], 86400) < 0", "1h", "warning",
         "The journal's disk is full in a day, at this rate", "`penstock log ls` and `penstock lake ls` say what takes the room."),
    PrometheusAlert("PenstockSealingFails", "increase(@journal_seals_failed[15m]) > 0", "0m", "warning",
         "History cannot be moved to the table", "The log says why at `journal.seal_failed`; segments pile up meanwhile."),
    PrometheusAlert("PenstockNothingFlows", "@q_depth > 0 and rate(@q_out[5m]) == 0", "10m", "critical",
         "Envelopes wait, and none was delivered in ten minutes", "`penstock explain STREAM` names the reason."),
    PrometheusAlert("PenstockWaitsLong", '@q_lat_ms{quantile="0.99"} > 10000', "10m", "warning",
         "One envelope in a hundred waits longer than ten seconds", "More consumers, or more credit: `penstock explain STREAM`."),
    PrometheusAlert("PenstockDeadLetters", "increase(@q_dead[10m]) > 0", "0m", "warning",
         "Envelopes went to the dead letters", "`penstock peek dlq/STREAM` shows them, `penstock redrive STREAM` sends them back."),
    PrometheusAlert("PenstockLeasesExpire", "rate(@q_timeout[10m]) > 0.05 * rate(@q_out[10m])", "10m", "warning",
         "One delivery in twenty is not settled in time", "Consumers are slow or die: a longer lease, or renewals."),
    PrometheusAlert("PenstockRefusesEnqueues", "rate(@q_reject[5m]) > 0", "5m", "warning",
         "Streams are full and refuse envelopes", "Their consumers are behind: `penstock stats`."),
    PrometheusAlert("PenstockDropsEnvelopes", "increase(@q_drop[10m]) > 0", "0m", "warning",
         "Envelopes were dropped at a bound, as a policy says", "`overflow: drop-oldest` is at work: more room, or consumers."),
    PrometheusAlert("PenstockCutsSlowPeers", "increase(@slow_peers_cut[15m]) > 0", "0m", "info",
         "Connections were cut because they did not read", "The log names them at `conn.slow`."),
    PrometheusAlert("PenstockTriggersFail", "increase(@trigger_fail[10m]) > 0", "0m", "warning",
         "The trigger {{ $labels.trigger }} fails", "`penstock trigger explain {{ $labels.trigger }}`."),
    PrometheusAlert("PenstockSpaceDropsFrames", "increase(@space_dropped[10m]) > 0", "5m", "warning",
         "Frames of the space {{ $labels.space }} were dropped for slow participants", "`penstock space ls` says for whom."),
    PrometheusAlert("PenstockRelayDown", "@relay_up == 0", "1m", "critical",
         "The relay of token streams does not run", "The log says why at `relay.failed`; it is started again by itself."),
    PrometheusAlert("PenstockRelayLoses", "increase(@relay_lost[10m]) > 0", "0m", "warning",
         "Tokens went before anybody took them", "Readers come too late, or `relay` keeps too little."),
    PrometheusAlert("PenstockPipelineHalted", "@pipeline_halted == 1", "1m", "critical",
         "The pipeline waits for a person", "`penstock pipeline status` says why, with the cure."),
    PrometheusAlert("PenstockPipelineDown", "@pipeline_up == 0", "5m", "warning",
         "The pipeline does not run", "`penstock pipeline status`; `penstock doctor` checks its Java."),
    PrometheusAlert("PenstockPipelineLags", "@pipeline_lag_rows > 100000", "10m", "warning",
         "The tables are a hundred thousand rows behind", "More cores or memory: `pipeline.master`, `pipeline.memory`."),
)  # fmt: skip


def expression(text: str) -> str:
    """An expression with the samples' names for `@name`."""
    return _NAME.sub(lambda match: BY_NAME[f"penstock_{match[1]}"].sample, text)


def alert_rules() -> str:
    """The rules as a file that Prometheus loads."""
    rules = [
        {
            "alert": rule.alert,
            "expr": expression(rule.expr),
            "for": rule.lasts,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary, "description": rule.cure},
        }
        for rule in RULES
    ]
    head = (
        "# Alert rules for Penstock, printed by `penstock print alerts`. The scrape job is expected to be called `penstock`.\n"
        "# Sums over all streams, unless `metrics.per_stream` is set: then every alert names its stream.\n"
    )
    tree = {"groups": [{"name": "penstock", "rules": rules}]}
    return head + yaml.safe_dump(tree, sort_keys=False, width=200, allow_unicode=True)
