import assert from "node:assert/strict";
import { test } from "node:test";

import { COARSE_MAX, FINE_MAX, FOLD, History, READY, tracksOf } from "../src/history.ts";
import { growth, Rates } from "../src/rates.ts";

test("ten minutes are kept per second, older rows per ten seconds, up to the limit", () => {
  const history = new History();
  for (let at = 1; at <= 20_000; at += 1) history.push(at, { n: at });
  assert.ok(history.size <= FINE_MAX + FOLD + COARSE_MAX);
  const { times, columns } = history.track(["n"], 100_000);
  assert.equal(times.at(-1), 20_000);
  assert.deepEqual(
    times.slice(-FINE_MAX).map((time, index, all) => (index === 0 ? 1 : time - (all[index - 1] ?? 0))),
    Array.from({ length: FINE_MAX }, () => 1),
  );
  assert.equal((times[1] ?? 0) - (times[0] ?? 0), FOLD);
  assert.equal(columns[0]?.[0], (times[0] ?? 0) - (FOLD - 1) / 2, "a merged row is the mean of its rows");
});

test("an unknown value is a gap, and time never goes backwards", () => {
  const history = new History();
  history.push(1, { a: 1, b: undefined });
  history.push(2, { a: NaN, b: 5 });
  history.push(2, { a: 7, b: 7 });
  history.push(1, { a: 7, b: 7 });
  assert.deepEqual(history.track(["a", "b", "c"], 60), { times: [1, 2], columns: [[1, null], [null, 5], [null, null]] });
});

test("a track contains only the requested time", () => {
  const history = new History();
  for (let at = 1; at <= 100; at += 1) history.push(at, { n: at });
  assert.equal(history.track(["n"], 10).times[0], 90);
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
