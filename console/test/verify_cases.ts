// Reads cases from standard input as one JSON document and prints the verifier's result for each. The Python tests compare it with the
// Python reader.

import { readFileSync } from "node:fs";

import { fromHex, type Suite } from "../src/tokens/chain.ts";
import { StreamVerifier } from "../src/tokens/verifier.ts";
import { readBlock, readChunk, readPayload } from "../src/tokens/messages.ts";

interface Stream {
  readonly topic: string;
  readonly key: string;
  readonly suite: Suite;
  /** Binary messages in hexadecimal; one that starts with `gone:` reports a MAC that the relay no longer has. */
  readonly messages: readonly string[];
  /** Skip missing messages, as a user can. */
  readonly skip?: boolean;
}

interface Cases {
  readonly streams: readonly Stream[];
  readonly frames: readonly string[];
}

const bytes = (text: string): Uint8Array => fromHex(text) ?? new Uint8Array();

function follow(stream: Stream): unknown {
  const verifier = new StreamVerifier(0, stream.topic, bytes(stream.key), stream.suite);
  const given: unknown[] = [];
  const take = (message: string): void => {
    if (message.startsWith("gone:")) verifier.gone(message.slice(5));
    else given.push(...verifier.take(0, bytes(message)));
  };
  for (const [index, message] of stream.messages.entries()) {
    take(message);
    if (stream.skip !== true || !verifier.isAsking) continue;
    for (let now = 0; verifier.ending === undefined; now += 1_000) verifier.step(now);
    verifier.reopen(0, true);
    // A new subscription receives all that the relay has.
    stream.messages.slice(0, index + 1).forEach(take);
  }
  return { given, ending: verifier.ending ?? null, counts: verifier.counts, doubtful: verifier.doubtful };
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
