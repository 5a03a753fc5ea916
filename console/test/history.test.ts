import assert from "node:assert/strict";
import { test } from "node:test";

import { coverage, READY, type ServerHistory, tracksOf } from "../src/history.ts";
import { growth, Rates } from "../src/rates.ts";

test("a page says from when its data is, and why there is no more", () => {
  const now = 1_000_000_000;
  const history = (first: number | undefined, more = {}): ServerHistory => ({ times: first === undefined ? [] : [first], columns: {}, sampled: true, note: null, ...more });
  assert.equal(coverage(undefined, 600, now), "");
  assert.equal(coverage(history(1_000_000 - 590), 600, now), "");
  assert.match(coverage(history(1_000_000 - 3_000, { note: "this server keeps no tables" }), 86_400, now), /^Data since .*\. Nothing earlier: this server keeps no tables\.$/);
  assert.equal(coverage(history(undefined, { sampled: false }), 600, now), "The server samples only its busiest streams, and this is not one of them. No data yet.");
});

test("a counter that decreased was reset", () => {
  assert.equal(growth(10, 15), 5);
  assert.equal(growth(100, 4), 4);
});

test("rates cover the window, and a restart does not make them negative or huge", () => {
  const rates = new Rates(5);
  const take = (at: number, n: number): number | undefined => rates.take(at, new Map([["n", n]])).get("n");
  assert.equal(take(0, 1_000_000), undefined, "one reading gives no rate");
  assert.equal(take(1, 1_000_010), 10);
  assert.equal(take(2, 1_000_020), 10);
  assert.equal(take(3, 6), (10 + 10 + 6) / 3);
  for (let at = 4; at <= 20; at += 1) take(at, 6 + (at - 3) * 2);
  assert.equal(take(21, 6 + 18 * 2), 2, "readings older than the window are dropped");
  assert.ok(rates.seconds <= 6);
});

test("a new counter has a rate after it was read over the whole window", () => {
  const rates = new Rates(5);
  rates.take(0, new Map());
  assert.equal(rates.take(1, new Map([["n", 500]])).get("n"), undefined);
});

test("a track of the server's history has gaps where the server has none, and ready is without dead letters", () => {
  const tracks = tracksOf({ times: [5, 10], columns: { penstock_q_depth: [7, null], penstock_dead_letters: [2, 2], penstock_q_if: [1, 0] } });
  assert.deepEqual(tracks([READY, "penstock_q_if", "penstock_relay_messages_total"]), { times: [5, 10], columns: [[5, null], [1, 0], [null, null]] });
  assert.deepEqual(tracksOf(undefined)([READY]), { times: [], columns: [[]] });
});
