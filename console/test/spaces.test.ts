// The layout of the stream graph, and values derived from `/v1/spaces`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { EDGES_MAX, layoutGraph, shortened } from "../src/spaces/layout.ts";
import { NODES_MAX, Slots } from "../src/spaces/slots.ts";
import { capabilityText, Measuring, type Participant, saving, type Space, type Stream } from "../src/spaces/survey.ts";

const SIZE = { width: 640, height: 420 };

function participant(id: string, connected = true, type: string | null = "websocket"): Participant {
  return { id, as: id, connected, type: connected ? type : null, capabilities: [{ kind: "chat" }] };
}

function stream(owner: string, receivers: readonly string[], target?: readonly string[], frames = 0): Stream {
  return {
    stream_id: `${owner} ${target?.join() ?? "all"}`,
    owner,
    authorized_writers: [owner],
    created: "",
    ...(target === undefined ? {} : { target }),
    name: null,
    keep: "counts",
    overflow: "drop-oldest",
    receivers,
    frames,
    bytes: 10 * frames,
    deliveries: frames * receivers.length,
    broadcast: frames * 3,
    dropped: 0,
  };
}

function space(participants: readonly Participant[], streams: readonly Stream[], counts: Readonly<Record<string, number>> = {}): Space {
  return { id: "demo", name: null, participants, streams, invited: [], kicked: [], counts };
}

const drawn = (shown: Space, slots: readonly (string | undefined)[]) => layoutGraph(shown, slots, SIZE, () => 1);

test("participants keep their slots while others join and leave", () => {
  const slots = new Slots();
  assert.deepEqual(slots.assign(["a", "b", "c"]), ["a", "b", "c"]);
  assert.deepEqual(slots.assign(["c", "a", "b"]), ["a", "b", "c"]);
  assert.deepEqual(slots.assign(["a", "c"]), ["a", undefined, "c"]);
  assert.deepEqual(slots.assign(["a", "c", "d"]), ["a", "d", "c"]);
  assert.deepEqual(slots.assign(["a", "b", "c", "d"]), ["a", "d", "c", "b"]);
});

test("the number of slots is bounded, and the rest is counted", () => {
  const ids = Array.from({ length: NODES_MAX + 15 }, (_, index) => `p${index}`);
  const slots = new Slots().assign(ids);
  assert.equal(slots.length, NODES_MAX);
  assert.equal(drawn(space(ids.map((id) => participant(id)), []), slots).hiddenNodes, 15);
});

test("nodes are inside the graph and do not overlap", () => {
  for (const many of [1, 2, 3, 8, 20, 21, 60]) {
    const participants = Array.from({ length: many }, (_, index) => participant(`participant-${index}`));
    const { nodes } = drawn(space(participants, []), participants.map(({ id }) => id));
    assert.equal(nodes.length, many);
    assert.equal(new Set(nodes.map(({ x, y }) => `${Math.round(x)} ${Math.round(y)}`)).size, many);
    for (const { x, y } of nodes) assert.ok(x > 0 && x < SIZE.width && y > 0 && y < SIZE.height);
  }
});

test("targeted edges go to their targets, broadcast edges to all but the owner", () => {
  const participants = ["a", "b", "c"].map((id) => participant(id));
  const { edges } = drawn(space(participants, [stream("a", ["b"], ["b"]), stream("c", ["a", "b", "c"])]), ["a", "b", "c"]);
  assert.deepEqual(
    edges.map(({ from, to, isTargeted }) => [from, to, isTargeted]),
    [
      ["a", "b", true],
      ["c", "a", false],
      ["c", "b", false],
    ],
  );
  assert.ok(edges[0]?.head.endsWith("Z"));
  assert.ok(!edges[1]?.head.endsWith("Z"));
});

test("streams between the same two participants are one edge with the sum of their rates", () => {
  const participants = [participant("a"), participant("b", false)];
  const streams = [stream("a", [], ["b"]), { ...stream("a", [], ["b"]), stream_id: "second" }];
  const { edges } = drawn(space(participants, streams), ["a", "b"]);
  assert.equal(edges.length, 1);
  assert.deepEqual([edges[0]?.rate, edges[0]?.streams, edges[0]?.isReached], [2, 2, false]);
});

test("edges in opposite directions do not overlap", () => {
  const participants = [participant("a"), participant("b")];
  const { edges } = drawn(space(participants, [stream("a", ["b"], ["b"]), stream("b", ["a"], ["a"])]), ["a", "b"]);
  const [one, other] = edges;
  assert.ok(one !== undefined && other !== undefined);
  assert.ok(Math.hypot(one.labelX - other.labelX, one.labelY - other.labelY) > 10);
});

test("the number of edges is bounded, targeted ones first", () => {
  const participants = Array.from({ length: 30 }, (_, index) => participant(`p${index}`));
  const ids = participants.map(({ id }) => id);
  const streams = [...ids.map((id) => stream(id, ids)), stream("p1", ["p2"], ["p2"])];
  const { edges, hiddenEdges } = drawn(space(participants, streams), ids);
  assert.equal(edges.length, EDGES_MAX);
  assert.equal(edges[0]?.isTargeted, true);
  assert.equal(hiddenEdges, 30 * 29 + 1 - EDGES_MAX);
});

test("rates are differences between responses, and a restart does not make them negative", () => {
  const measuring = new Measuring();
  const at = (frames: number) => space([], [stream("a", ["b"], ["b"], frames)], { frames });
  const rate = (seconds: number, frames: number): number | undefined => {
    const shown = at(frames);
    const measured = measuring.take(seconds, { spaces: [shown] });
    const [only] = shown.streams;
    return only === undefined ? undefined : measured.streamRate(shown, only, "frames");
  };
  assert.equal(rate(1, 100), undefined);
  assert.equal(rate(2, 150), 50);
  assert.equal(rate(3, 150), 25);
  assert.ok((rate(4, 10) ?? -1) >= 0);
});

test("deliveries saved by targeting", () => {
  assert.deepEqual(saving(space([], [], { deliveries: 25, broadcast: 100 })), { deliveries: 25, broadcast: 100, part: 0.75 });
  assert.equal(saving(space([], [])).part, 0);
});

test("capabilities and long names are shortened", () => {
  assert.equal(capabilityText({ kind: "chat", id: "c-1" }), "chat");
  assert.equal(capabilityText({ kind: "mcp/request", payload: { method: "tools/*" } }), 'mcp/request where payload {"method":"tools/*"}');
  assert.equal(shortened("walker-in-the-woods-17", 11), "walke…ds-17");
  assert.equal(shortened("short", 11), "short");
});
