// Token streams over an unreliable socket, with a simulated clock.

import assert from "node:assert/strict";
import { test } from "node:test";

import { toHex } from "../src/tokens/chain.ts";
import { parseLink } from "../src/tokens/link.ts";
import { Listener, validate, type Socket, type Environment } from "../src/tokens/listener.ts";
import { CHARACTERS_MAX, Transcript } from "../src/tokens/transcript.ts";
import { verdict } from "../src/tokens/verdict.ts";
import { KEY, encodeStream, TOPIC } from "./encoder.ts";

const WANTED = { topic: TOPIC, key: toHex(KEY), suite: "sha256" } as const;
const STORY = encodeStream([[{ token: "Once" }], [{ token: " upon" }, { token: " a" }], [{ heartbeat: true }], [{ token: " time" }], [{ complete: 4 }]]);
const MACS = STORY.map((message) => toHex(message.slice(-16)));

class Wire implements Socket {
  binaryType = "";
  onopen: (() => void) | null = null;
  onmessage: ((event: { readonly data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;
  readonly sent: string[] = [];
  isClosed = false;

  send(text: string): void {
    this.sent.push(text);
  }

  close(): void {
    this.isClosed = true;
  }

  deliver(...messages: readonly (Uint8Array | string)[]): void {
    for (const message of messages) this.onmessage?.({ data: typeof message === "string" ? message : message.slice().buffer });
  }
}

class World implements Environment {
  readonly wires: Wire[] = [];
  private ms = 0;
  private ticking: (() => void) | undefined;

  open(): Socket {
    const wire = new Wire();
    this.wires.push(wire);
    return wire;
  }

  now(): number {
    return this.ms;
  }

  every(_: number, run: () => void): () => void {
    this.ticking = run;
    return () => {
      this.ticking = undefined;
    };
  }

  pass(ms: number): void {
    for (let gone = 0; gone < ms; gone += 100) {
      this.ms += 100;
      this.ticking?.();
      // A new socket opens at once and receives nothing.
      const last = this.wires.at(-1);
      if (last !== undefined && !last.isClosed && last.sent.length === 0) last.onopen?.();
    }
  }

  get wire(): Wire {
    const last = this.wires.at(-1);
    assert.ok(last);
    return last;
  }
}

function begin(): { world: World; listener: Listener } {
  const world = new World();
  const listener = new Listener(WANTED, world, () => undefined);
  world.wire.onopen?.();
  return { world, listener };
}

test("an intact stream is shown in full and completes", () => {
  const { world, listener } = begin();
  assert.equal(verdict(listener).label, "Waiting");
  world.wire.deliver(...STORY);
  assert.equal(listener.transcript.plain(), "Once upon a time");
  assert.equal(listener.transcript.tokens, 4);
  assert.equal(listener.verifier.counts.accepted, 5);
  assert.equal(verdict(listener).label, "Complete");
  assert.ok(world.wire.isClosed);
});

test("a lost connection resumes after the last verified MAC", () => {
  const { world, listener } = begin();
  world.wire.deliver(...STORY.slice(0, 2));
  world.wire.onclose?.();
  assert.equal(verdict(listener).label, "Connection lost");
  world.pass(1_000);
  assert.equal(world.wires.length, 2);
  assert.deepEqual(JSON.parse(world.wire.sent[0] ?? ""), { topic: TOPIC, resume: MACS[1] });
  world.wire.deliver(...STORY);
  assert.equal(listener.transcript.plain(), "Once upon a time");
  assert.equal(listener.verifier.counts.duplicates, 2);
  assert.equal(listener.disconnects, 1);
});

test("reconnects to an unreachable server back off", () => {
  const { world } = begin();
  for (let lost = 0; lost < 40; lost += 1) {
    world.wires.at(-1)?.onclose?.();
    world.pass(1_000);
  }
  assert.ok(world.wires.length < 12, String(world.wires.length));
});

test("missing messages are requested, and end the stream with a gap if they do not arrive", () => {
  const { world, listener } = begin();
  world.wire.deliver(...STORY.slice(0, 2), ...STORY.slice(3));
  assert.equal(listener.transcript.plain(), "Once upon a");
  assert.equal(verdict(listener).label, "Retrying");
  assert.equal(listener.verifier.doubtful, 2);
  world.pass(200);
  assert.deepEqual(JSON.parse(world.wire.sent[0] ?? ""), { topic: TOPIC, resume: MACS[1] });
  world.wire.deliver(JSON.stringify({ gone: MACS[1] }));
  world.pass(29_000);
  assert.equal(verdict(listener).label, "Gap");
  assert.match(verdict(listener).text, /no longer has them/);
  assert.equal(listener.transcript.plain(), "Once upon a");
});

test("skipping continues after a gap and marks it", () => {
  const { world, listener } = begin();
  world.wire.deliver(...STORY.slice(0, 1), ...STORY.slice(3));
  world.pass(29_000);
  assert.deepEqual(verdict(listener).offers, ["retry", "skip"]);
  listener.reopen(true);
  world.pass(100);
  assert.deepEqual(JSON.parse(world.wire.sent[0] ?? ""), { topic: TOPIC });
  world.wire.deliver(...STORY.slice(3));
  assert.equal(listener.transcript.plain(), "Once\n[missing]\n time");
  assert.equal(verdict(listener).label, "Complete");
});

test("continuing reads the next stream, and no stream twice", () => {
  const { world, listener } = begin();
  const second = encodeStream([[{ token: "Again" }], [{ complete: 1 }]]);
  const third = encodeStream([[{ token: "More" }], [{ token: "…" }]]);
  world.wire.deliver(...STORY);
  assert.deepEqual(verdict(listener).offers, ["next"]);
  listener.continueWithNext();
  world.pass(100);
  assert.deepEqual(JSON.parse(world.wire.sent[0] ?? ""), { topic: TOPIC });
  world.wire.deliver(...STORY);
  assert.equal(verdict(listener).label, "Waiting");
  world.wire.deliver(...second, ...third, ...STORY, ...second);
  assert.equal(listener.transcript.plain().replaceAll(/\n\[.*\]\n/g, "|"), "Once upon a time|Again|More…");
  assert.equal(verdict(listener).label, "Live");
  assert.equal(world.wires.length, 2);
});

test("a late reader soon reports that the beginning is missing", () => {
  const { world, listener } = begin();
  world.wire.deliver(...STORY.slice(2, 4));
  world.pass(3_000);
  assert.equal(verdict(listener).label, "Beginning missing");
  assert.equal(listener.transcript.plain(), "");
});

test("messages made with another key are never shown", () => {
  const { world, listener } = begin();
  world.wire.deliver(...encodeStream([[{ token: "lies" }], [{ complete: 1 }]], KEY.toReversed()));
  world.pass(5_000);
  assert.equal(listener.transcript.plain(), "");
  assert.equal(verdict(listener).label, "Not verified");
});

test("tampering is reported while it lasts, and counted afterwards", () => {
  const { world, listener } = begin();
  const forged = encodeStream([[{ token: "Once" }], [{ token: " lies" }]], KEY.toReversed())[1]?.slice() ?? new Uint8Array();
  const mark = STORY[0]?.slice(-16) ?? new Uint8Array();
  forged.set(mark, 32); // declares our last MAC as its previous one
  world.wire.deliver(STORY[0] ?? "", forged);
  assert.equal(verdict(listener).label, "Tampered with");
  assert.equal(verdict(listener).severity, "bad");
  world.wire.deliver(...STORY.slice(1, 3));
  assert.equal(verdict(listener).label, "Live");
  assert.match(verdict(listener).text, /1 message that the publisher did not make was dropped/);
  assert.equal(listener.transcript.plain(), "Once upon a");
});

test("a changed byte is never shown, and does not stop later messages", () => {
  const { world, listener } = begin();
  for (let at = 0; at < (STORY[1]?.length ?? 0); at += 1) {
    const changed = STORY[1]?.slice() ?? new Uint8Array();
    changed[at] = (changed[at] ?? 0) ^ 0x20;
    const fresh = begin();
    fresh.world.wire.deliver(STORY[0] ?? "", changed);
    assert.equal(fresh.listener.transcript.plain(), "Once", `byte ${at}`);
    fresh.world.wire.deliver(...STORY.slice(1));
    assert.equal(fresh.listener.transcript.plain(), "Once upon a time", `byte ${at}`);
  }
  world.wire.deliver(...STORY);
  assert.equal(listener.verifier.doubtful, 0);
});

test("silence without an end message truncates the stream", () => {
  const { world, listener } = begin();
  world.pass(60_000);
  assert.equal(verdict(listener).label, "Waiting");
  world.wire.deliver(...STORY.slice(0, 3));
  world.pass(31_000);
  assert.equal(verdict(listener).label, "Truncated");
});

test("a rejection shows the server's message and is not retried", () => {
  const { world, listener } = begin();
  world.wire.deliver(JSON.stringify({ error: { code: "Forbidden", message: "not for you", hint: "sign in", retryable: false } }));
  world.wire.onclose?.();
  world.pass(60_000);
  assert.equal(world.wires.length, 1);
  assert.equal(verdict(listener).text, "not for you sign in");
});

test("no sent message contains the key", () => {
  const { world } = begin();
  world.wire.deliver(...STORY.slice(0, 1), ...STORY.slice(2));
  world.pass(40_000);
  assert.ok(world.wires.length > 2);
  for (const text of world.wires.flatMap(({ sent }) => sent)) assert.ok(!text.includes(WANTED.key), text);
});

test("a link contains topic, key and suite", () => {
  assert.deepEqual(parseLink(`#/tokens?topic=${TOPIC.toUpperCase()}&key=${WANTED.key}&suite=blake3`), { ...WANTED, suite: "blake3" });
  assert.equal(parseLink("#/tokens"), undefined);
  assert.equal(parseLink(`#/spaces?topic=${TOPIC}&key=${WANTED.key}`), undefined);
  assert.equal(validate(WANTED), undefined);
  assert.match(validate({ ...WANTED, topic: "ab" })?.message ?? "", /64/);
  assert.match(validate({ ...WANTED, key: "zz".repeat(32) })?.message ?? "", /64/);
  assert.match(validate({ ...WANTED, key: "00".repeat(32) })?.message ?? "", /zeros/);
});

test("an endless text is bounded, and dropped characters are counted", () => {
  const transcript = new Transcript();
  const piece = "x".repeat(1_000);
  for (let index = 0; index < 1_000; index += 1) transcript.add([{ kind: "token", text: piece }]);
  const kept = transcript.plain().length;
  assert.ok(kept >= CHARACTERS_MAX && kept <= CHARACTERS_MAX * 1.25);
  assert.equal(kept + transcript.cut, 1_000_000);
});
