import assert from "node:assert/strict";
import { test } from "node:test";

import { conditionsOf, type Health, type Part, servicesOf } from "../src/conditions.ts";
import { parseExposition } from "../src/exposition.ts";
import { backoffMs } from "../src/connection.ts";
import { about } from "../src/format.ts";
import { restMs } from "../src/resource.ts";
import { deadLettersOf, deadNameOf, isDeadLetters, standing, type StreamFigures } from "../src/streams.ts";
import { readyOf } from "../src/telemetry.ts";

const WELL = "penstock_pipeline_lag_rows 12.0\n";
const SINCE = "2026-01-01T00:00:00.000Z";

function health(parts: Record<string, Partial<Part>>): Health {
  const all = Object.entries({ journal: {}, relay: {}, pipeline: {}, ...parts });
  return { status: "ok", parts: Object.fromEntries(all.map(([name, part]) => [name, { state: "ok", since: SINCE, ...part }])) };
}

test("a healthy server has no conditions", () => {
  const minute = new Map([["penstock_q_in_total", 1_000], ["penstock_q_dead_total", 0]]);
  assert.deepEqual(conditionsOf(parseExposition(WELL), minute, health({ pipeline: { state: "starting" }, lake: { state: "off" } })), []);
});

test("parts that fail and growing error counters are reported, critical first, each with a hint", () => {
  const minute = new Map([["penstock_tokens_refused_total", 2], ["penstock_q_dead_total", 1], ["penstock_records_refused_total", 3]]);
  const parts = health({
    lake: { state: "degraded", reason: "the table is torn" },
    pipeline: { state: "failed", reason: "OutOfMemoryError", action: "read the log" },
  });
  const found = conditionsOf(parseExposition(WELL), minute, parts);
  assert.deepEqual(
    found.map(({ key }) => key),
    ["pipeline", "penstock_records_refused_total", "lake", "penstock_q_dead_total", "penstock_tokens_refused_total"],
  );
  assert.ok(found.every(({ hint }) => hint !== ""));
  assert.equal(found[0]?.text, "Pipeline: OutOfMemoryError");
  assert.match(found[0]?.hint ?? "", /^since .*; read the log$/);
  assert.match(found.at(-2)?.text ?? "", /^1 envelope moved/);
  assert.equal(found.at(-1)?.text, "2 requests had no token or an unknown one in the last minute");
});

test("envelopes that fail again and again are reported by the gauge that also raises the alert", () => {
  const found = conditionsOf(parseExposition(`${WELL}penstock_redelivery_hot 1.0\n`), new Map(), undefined);
  assert.deepEqual(found.map(({ key, severity, text, path }) => [key, severity, text, path]), [["redelivery.hot", "warning", "1 envelope fails again and again", ["queues"]]]);
});

test("services that are not configured are off, not down", () => {
  const off = servicesOf(parseExposition("penstock_links 5.0\npenstock_streams 1.0\n"), 0, undefined);
  assert.deepEqual(off.map(({ state }) => state), ["up", "off", "off", "off"]);
  assert.equal(off[0]?.detail, "5 connections, 1 stream");
  const all = servicesOf(parseExposition(`${WELL}penstock_space_participants{space="a"} 2.0\npenstock_relay_topics 4.0\n`), 1, health({}));
  assert.deepEqual(all.map(({ state }) => state), ["up", "up", "up", "up"]);
  assert.equal(all[3]?.detail, "12 rows behind");
  const states = servicesOf(parseExposition(WELL), 0, { ...health({ pipeline: { state: "failed" }, relay: { state: "starting" } }), status: "refusing" });
  assert.deepEqual(states.map(({ state }) => state), ["down", "off", "starting", "down"]);
});

test("dead letters are not ready, and percentiles show two digits", () => {
  assert.equal(readyOf(parseExposition("penstock_q_depth 5.0\npenstock_dead_letters 2.0\n")), 3);
  assert.equal(readyOf(parseExposition("")), undefined);
  assert.deepEqual([about(1_279.5), about(0.127), about(undefined)], ["1.3 s", "0.13 ms", "–"]);
});

test("reconnect attempts back off up to a limit, with jitter", () => {
  const waits = Array.from({ length: 12 }, (_, index) => backoffMs(index + 1, 0));
  assert.deepEqual(waits.slice(0, 6), [500, 1_000, 2_000, 4_000, 8_000, 10_000]);
  assert.equal(waits.at(-1), 10_000);
  assert.equal(backoffMs(3, 1), 1_500);
});

test("a slow server is polled less often", () => {
  assert.equal(restMs(20, 1_000), 980);
  assert.equal(restMs(400, 1_000), 2_000);
});

test("dead-letter streams are recognised by name, with and without a tenant", () => {
  assert.equal(deadNameOf("demo/jobs"), "dlq/demo/jobs");
  assert.equal(deadNameOf("t/acme/jobs"), "t/acme/dlq/jobs");
  assert.equal(deadNameOf("dlq/demo/jobs"), "dlq/demo/jobs");
  assert.ok(isDeadLetters("t/acme/dlq/jobs"));
  assert.ok(!isDeadLetters("jobs/dlq/x"));
});

test("a consumer without credit is starved, one that does not read is slow", () => {
  const consumer = { holder: "x", credit: 1, inflight: 0, delivered: 0, writable: true };
  assert.equal(standing(consumer), "waiting");
  assert.equal(standing({ ...consumer, credit: 0 }), "starved");
  assert.equal(standing({ ...consumer, credit: 0, inflight: 1 }), "working");
  assert.equal(standing({ ...consumer, writable: false }), "slow");
});

test("dead letters are listed with the stream in which they died", () => {
  const figures = (id: string, depth: number, dead: number): StreamFigures => ({ id, stats: { depth, oldestMs: 5 }, q: { "q.dead": dead, "q.in": 8 } }) as unknown as StreamFigures;
  assert.deepEqual(deadLettersOf([figures("a", 3, 4), figures("dlq/a", 2, 0), figures("b", 9, 0), figures("dlq/unloaded", 1, 0), figures("c", 0, 7)]), [
    { stream: "a", now: 2, ever: 4, oldestMs: 5 },
    { stream: "unloaded", now: 1, ever: 8, oldestMs: 5 },
    { stream: "c", now: 0, ever: 7, oldestMs: 0 },
  ]);
});
