import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { CHARACTERS_MAX, ENTRIES_MAX, Follower } from "../src/follower.ts";
import { Entries, isGap, type Row } from "../src/rows.ts";

// An in-memory journal behind `fetch` that implements `/v1/tail`.
let journal: Row[] = [];
let keptFrom = 0;
let asked: URLSearchParams[] = [];
let refusal: Response | undefined;
let wakeTail: () => void = () => undefined;

const browser = globalThis as unknown as Record<string, unknown>;
const original = { fetch: globalThis.fetch };

function write(count: number): void {
  for (let index = 0; index < count; index += 1) {
    journal.push({ offset: journal.length, recorded_at: "2026-01-01T00:00:00Z", door: "courier", event: "enqueue" });
  }
  wakeTail();
}

function journalOf(count: number, body: string): Row[] {
  return Array.from({ length: count }, (_, offset) => ({ offset, recorded_at: "2026-01-01T00:00:00Z", door: "courier", event: "enqueue", body }));
}

async function fetchTail(address: string, init: RequestInit): Promise<Response> {
  const query = new URL(address, "http://console").searchParams;
  asked.push(query);
  if (refusal !== undefined) {
    const answer = refusal;
    refusal = undefined;
    return answer;
  }
  const after = query.has("after") ? Number(query.get("after")) : Math.max(keptFrom, journal.length - Number(query.get("back")));
  if (after >= journal.length && query.get("wait_ms") !== "0") {
    await new Promise<void>((resolve, reject) => {
      wakeTail = resolve;
      init.signal?.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError")));
    });
  }
  const from = Math.max(after, keptFrom);
  const rows = journal.slice(from, from + Number(query.get("max")));
  const answer = { rows, next: from + rows.length, end: journal.length, first: keptFrom, epoch: 0, missed: from - after };
  return new Response(JSON.stringify(answer));
}

beforeEach(() => {
  journal = [];
  keptFrom = 0;
  asked = [];
  refusal = undefined;
  browser["fetch"] = fetchTail;
  browser["requestAnimationFrame"] = (draw: () => void) => setImmediate(draw);
  browser["document"] = { visibilityState: "visible" };
});

afterEach(() => {
  browser["fetch"] = original.fetch;
  delete browser["requestAnimationFrame"];
  delete browser["document"];
});

async function until(what: () => boolean): Promise<void> {
  for (let turn = 0; turn < 10_000 && !what(); turn += 1) await new Promise((resolve) => setImmediate(resolve));
  assert.ok(what(), "the condition was never met");
}

function offsets(follower: Follower): number[] {
  return follower.entries.slice(0, follower.entries.length).map((entry) => (isGap(entry) ? -entry.missed : entry.offset));
}

test("existing rows arrive at once, new rows as they are written, each row once", async () => {
  write(20);
  const follower = new Follower({}, { back: 5, canSkip: true });
  const end = follower.run();
  await until(() => follower.entries.length === 5);
  write(3_000);
  await until(() => follower.entries.length === 3_005);
  end();
  assert.deepEqual(offsets(follower), Array.from({ length: 3_005 }, (_, index) => index + 15));
  assert.equal(asked[0]?.get("wait_ms"), "0", "the first request does not wait");
});

test("a paused list does not change, counts new rows, and shows them when resumed", async () => {
  write(3);
  const follower = new Follower({}, { back: 100, canSkip: true });
  const end = follower.run();
  await until(() => follower.entries.length === 3);
  follower.pause();
  write(123);
  await until(() => follower.waiting.value === 123);
  assert.equal(follower.entries.length, 3);
  follower.resume();
  end();
  assert.equal(follower.waiting.value, 0);
  assert.deepEqual(offsets(follower), Array.from({ length: 126 }, (_, index) => index));
});

test("a list paused for long reports the rows it dropped", async () => {
  const follower = new Follower({}, { back: 1, canSkip: true });
  const end = follower.run();
  await until(() => follower.reach.value !== undefined);
  follower.pause();
  write(ENTRIES_MAX + 500);
  await until(() => follower.waiting.value === ENTRIES_MAX + 500);
  follower.resume();
  end();
  assert.equal(follower.entries.length, ENTRIES_MAX);
  assert.equal(offsets(follower).at(-1), ENTRIES_MAX + 499);
  const mark = follower.entries.at(0);
  assert.ok(mark !== undefined && isGap(mark), "the list starts with a gap for the dropped rows");
  assert.equal(mark.missed + follower.entries.length - 1, ENTRIES_MAX + 500);
});

test("the pause buffer is bounded in characters, and dropped gaps count their rows", async () => {
  const entries = new Entries(1_000, 100);
  entries.push([{ missed: 70, before: 70 }, ...journalOf(30, "x".repeat(10))]);
  assert.equal(entries.length, 10);
  assert.equal(entries.dropped, 21);
  assert.equal(entries.lost, 90);
  const follower = new Follower({}, { back: 1, canSkip: true });
  const end = follower.run();
  await until(() => follower.reach.value !== undefined);
  follower.pause();
  journal.push(...journalOf(10, "x".repeat(CHARACTERS_MAX / 5)));
  wakeTail();
  await until(() => follower.waiting.value === 10);
  follower.resume();
  end();
  assert.deepEqual(offsets(follower), [-6, 6, 7, 8, 9]);
});

test("deleted rows leave a gap with their number", async () => {
  write(10);
  const follower = new Follower({}, { after: 2, canSkip: true });
  keptFrom = 6;
  const end = follower.run();
  await until(() => follower.entries.length === 5);
  end();
  assert.deepEqual(offsets(follower), [-4, 6, 7, 8, 9]);
});

test("a failure shows the server's message, and the list retries", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  write(2);
  refusal = new Response(JSON.stringify({ error: { code: "UnknownRoute", message: "no journal", hint: "keep one" } }), { status: 404 });
  const follower = new Follower({ corr: "x" }, { after: 0, canSkip: false });
  const end = follower.run();
  await until(() => follower.failure.value !== undefined);
  assert.equal(follower.failure.value?.hint, "keep one");
  assert.equal(asked[0]?.get("corr"), "x");
  context.mock.timers.tick(3_000);
  await until(() => follower.entries.length === 2);
  end();
  assert.equal(follower.failure.value, undefined);
});
