import assert from "node:assert/strict";
import { test } from "node:test";

import { conversationOf } from "../src/conversation.ts";
import type { Row } from "../src/rows.ts";

function at(ms: number): string {
  return new Date(Date.UTC(2026, 0, 1) + ms).toISOString();
}

function sent(offset: number, id: string, ms: number, refs: readonly string[] = [], more: Partial<Row> = {}): Row {
  const body = JSON.stringify({ id, refs, payload: {} });
  return { offset, recorded_at: at(ms), door: "courier", event: "enqueue", channel: "q", id, kind: id, sender: "s", body, ...more };
}

function settled(offset: number, id: string, event: string, sentMs: number, firstMs: number, ms: number, attempt = 1): Row {
  return {
    offset, recorded_at: at(ms), door: "courier", event, channel: "q", id, ref_at: at(sentMs), first_at: at(firstMs), attempt,
  };
}

function shape(rows: readonly Row[], corr = "root"): string[] {
  return conversationOf(rows, corr).branches.map(({ step, depth }) => `${" ".repeat(depth)}${step.id}`);
}

test("a reply is below its request, siblings are ordered by time, in any order of rows", () => {
  const rows = [sent(0, "root", 0), sent(1, "reply", 5, ["root"]), sent(2, "late", 30, ["reply"]), sent(3, "early", 20, ["reply"])];
  assert.deepEqual(shape(rows), ["root", " reply", "  early", "  late"]);
  assert.deepEqual(shape([...rows].reverse()), ["root", " reply", "  early", "  late"]);
});

test("an envelope with unknown refs is below the first envelope of the conversation, otherwise a root", () => {
  assert.deepEqual(shape([sent(0, "root", 0), sent(1, "a", 1, ["gone"]), sent(2, "b", 2)]), ["root", " a", " b"]);
  assert.deepEqual(shape([sent(1, "a", 1, ["gone"]), sent(2, "b", 2)]), ["a", "b"]);
});

test("cycles of refs terminate and lose no envelope", () => {
  const rows = [sent(0, "a", 0, ["b"]), sent(1, "b", 1, ["a"]), sent(2, "c", 2, ["c"])];
  assert.deepEqual([...shape(rows, "none")].map((line) => line.trim()).sort(), ["a", "b", "c"]);
});

test("refs are found in a truncated body", () => {
  const cut = { body: '{"id":"x","refs":["root"],"payload":{"text":"and so' };
  assert.deepEqual(shape([sent(0, "root", 0), sent(1, "x", 1, [], cut)]), ["root", " x"]);
});

test("envelopes of spaces are linked by correlation id", () => {
  const body = JSON.stringify({ id: "m2", correlation_id: ["m1"] });
  const rows = [
    sent(0, "m1", 0, [], { door: "mew", event: "envelope", channel: "room" }),
    sent(1, "m2", 3, [], { door: "mew", event: "envelope", channel: "room", body }),
  ];
  assert.deepEqual(shape(rows, "m1"), ["m1", " m2"]);
});

test("timings come from the settlement, with the number of attempts", () => {
  const rows = [sent(0, "root", 0), settled(1, "root", "nack", 0, 10, 15), settled(2, "root", "ack", 0, 10, 40, 2)];
  const { branches, startedAt, endedAt } = conversationOf(rows, "root");
  const step = branches[0]?.step;
  assert.equal(step?.outcome, "ack");
  assert.equal(step?.attempts, 2);
  assert.equal((step?.firstAt ?? 0) - (step?.sentAt ?? 0), 10);
  assert.equal((step?.settledAt ?? 0) - (step?.sentAt ?? 0), 40);
  assert.equal(endedAt - startedAt, 40);
});

test("a dead letter is a separate step, and a pending envelope has no outcome", () => {
  const rows = [
    sent(0, "root", 0), settled(1, "root", "dead", 0, 5, 9), sent(2, "root", 9, [], { channel: "dlq/q" }), sent(3, "x", 10, ["root"]),
  ];
  const { branches } = conversationOf(rows, "root");
  const outcomes = branches.map(({ step }) => `${step.id} in ${step.channel}: ${step.outcome ?? "pending"}`);
  assert.deepEqual(outcomes.sort(), ["root in dlq/q: pending", "root in q: dead", "x in q: pending"]);
});

test("no rows give an empty conversation", () => {
  assert.deepEqual(conversationOf([], "x"), { branches: [], startedAt: 0, endedAt: 0 });
});
