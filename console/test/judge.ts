// Reads cases from the standard input, one JSON document, and says what the verifier makes of each. The tests in Python compare it
// with their own reader.

import { readFileSync } from "node:fs";

import { fromHex, type Suite } from "../src/tokens/chain.ts";
import { Follower } from "../src/tokens/follower.ts";
import { readBlock, readChunk, readPayload } from "../src/tokens/messages.ts";

interface Stream {
  readonly topic: string;
  readonly key: string;
  readonly suite: Suite;
  /** Binary messages in hexadecimal; one that begins with `gone:` is the relay's answer about a mark. */
  readonly messages: readonly string[];
  /** Go on behind gaps, as a person may choose to. */
  readonly skip?: boolean;
}

interface Cases {
  readonly streams: readonly Stream[];
  readonly frames: readonly string[];
}

const bytes = (text: string): Uint8Array => fromHex(text) ?? new Uint8Array();

function follow(stream: Stream): unknown {
  const follower = new Follower(0, stream.topic, bytes(stream.key), stream.suite);
  const given: unknown[] = [];
  const take = (message: string): void => {
    if (message.startsWith("gone:")) follower.gone(message.slice(5));
    else given.push(...follower.take(0, bytes(message)));
  };
  for (const [index, message] of stream.messages.entries()) {
    take(message);
    if (stream.skip !== true || !follower.isAsking) continue;
    for (let now = 0; follower.ending === undefined; now += 1_000) follower.step(now);
    follower.reopen(0, true);
    // Whoever subscribes anew is sent all that the relay has.
    stream.messages.slice(0, index + 1).forEach(take);
  }
  return { given, ending: follower.ending ?? null, counts: follower.counts, doubtful: follower.doubtful };
}

function read(text: string): unknown {
  const frame = bytes(text);
  const chunk = readChunk(frame);
  return {
    payload: readPayload(frame),
    block: readBlock(frame).kind === "fault" ? readBlock(frame) : (readBlock(frame) as { payloads: unknown }).payloads,
    chunk: chunk.kind === "fault" ? chunk : Buffer.from(chunk.data).toString("hex"),
  };
}

const cases = JSON.parse(readFileSync(0, "utf8")) as Cases;
process.stdout.write(JSON.stringify({ streams: cases.streams.map(follow), frames: cases.frames.map(read) }));
