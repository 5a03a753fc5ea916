// The picture of a space, and what is worked out of what the server tells.

import assert from "node:assert/strict";
import { test } from "node:test";

import { EDGES_MAX, picture, shortened } from "../src/spaces/picture.ts";
import { SEATS_MAX, Seating } from "../src/spaces/seating.ts";
import { capabilityText, Measuring, type Participant, saving, type Space, type Stream } from "../src/spaces/survey.ts";

const SIZE = { width: 640, height: 420 };

function person(id: string, connected = true, type: string | null = "websocket"): Participant {
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

const drawn = (shown: Space, seats: readonly (string | undefined)[]) => picture(shown, seats, SIZE, () => 1);

test("seats stay while people come and go", () => {
  const seating = new Seating();
  assert.deepEqual(seating.take(["a", "b", "c"]), ["a", "b", "c"]);
  assert.deepEqual(seating.take(["c", "a", "b"]), ["a", "b", "c"]);
  assert.deepEqual(seating.take(["a", "c"]), ["a", undefined, "c"]);
  assert.deepEqual(seating.take(["a", "c", "d"]), ["a", "d", "c"]);
  assert.deepEqual(seating.take(["a", "b", "c", "d"]), ["a", "d", "c", "b"]);
});

test("no more seats than can be drawn, and the rest is told", () => {
  const ids = Array.from({ length: SEATS_MAX + 15 }, (_, index) => `p${index}`);
  const seats = new Seating().take(ids);
  assert.equal(seats.length, SEATS_MAX);
  assert.equal(drawn(space(ids.map((id) => person(id)), []), seats).hiddenNodes, 15);
});

test("nobody is drawn outside the picture, or on somebody else", () => {
  for (const many of [1, 2, 3, 8, 20, 21, 60]) {
    const people = Array.from({ length: many }, (_, index) => person(`person-${index}`));
    const { nodes } = drawn(space(people, []), people.map(({ id }) => id));
    assert.equal(nodes.length, many);
    assert.equal(new Set(nodes.map(({ x, y }) => `${Math.round(x)} ${Math.round(y)}`)).size, many);
    for (const { x, y } of nodes) assert.ok(x > 0 && x < SIZE.width && y > 0 && y < SIZE.height);
  }
});

test("aimed edges go to their targets, others to everybody but their owner", () => {
  const people = ["a", "b", "c"].map((id) => person(id));
  const { edges } = drawn(space(people, [stream("a", ["b"], ["b"]), stream("c", ["a", "b", "c"])]), ["a", "b", "c"]);
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

test("streams between the same two are one edge with the sum of their rates", () => {
  const people = [person("a"), person("b", false)];
  const streams = [stream("a", [], ["b"]), { ...stream("a", [], ["b"]), stream_id: "second" }];
  const { edges } = drawn(space(people, streams), ["a", "b"]);
  assert.equal(edges.length, 1);
  assert.deepEqual([edges[0]?.rate, edges[0]?.streams, edges[0]?.isReached], [2, 2, false]);
});

test("two directions do not cover each other", () => {
  const people = [person("a"), person("b")];
  const { edges } = drawn(space(people, [stream("a", ["b"], ["b"]), stream("b", ["a"], ["a"])]), ["a", "b"]);
  const [one, other] = edges;
  assert.ok(one !== undefined && other !== undefined);
  assert.ok(Math.hypot(one.labelX - other.labelX, one.labelY - other.labelY) > 10);
});

test("edges are bounded, the aimed ones first", () => {
  const people = Array.from({ length: 30 }, (_, index) => person(`p${index}`));
  const ids = people.map(({ id }) => id);
  const streams = [...ids.map((id) => stream(id, ids)), stream("p1", ["p2"], ["p2"])];
  const { edges, hiddenEdges } = drawn(space(people, streams), ids);
  assert.equal(edges.length, EDGES_MAX);
  assert.equal(edges[0]?.isTargeted, true);
  assert.equal(hiddenEdges, 30 * 29 + 1 - EDGES_MAX);
});

test("rates are differences between two answers, and a server that starts again does not make them negative", () => {
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

test("what aiming saves", () => {
  assert.deepEqual(saving(space([], [], { deliveries: 25, broadcast: 100 })), { deliveries: 25, broadcast: 100, part: 0.75 });
  assert.equal(saving(space([], [])).part, 0);
});

test("capabilities and long names in few words", () => {
  assert.equal(capabilityText({ kind: "chat", id: "c-1" }), "chat");
  assert.equal(capabilityText({ kind: "mcp/request", payload: { method: "tools/*" } }), 'mcp/request where payload {"method":"tools/*"}');
  assert.equal(shortened("walker-in-the-woods-17", 11), "walke…ds-17");
  assert.equal(shortened("short", 11), "short");
});
