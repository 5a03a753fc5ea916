// Encodes blocks of token streams with their MACs for tests, in one segment, as publishers do.

import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";

export const TOPIC = "ab".repeat(32);
export const KEY = Uint8Array.from({ length: 32 }, (_, index) => index + 1);

const utf8 = new TextEncoder();

export type Part = { readonly token: string } | { readonly heartbeat: true } | { readonly complete: number };

/** A message under construction, as a list of words. */
class MessageBuilder {
  private words: bigint[] = [];

  get length(): number {
    return this.words.length;
  }

  room(count: number): number {
    const at = this.words.length;
    for (let index = 0; index < count; index += 1) this.words.push(0n);
    return at;
  }

  set(at: number, word: bigint): void {
    this.words[at] = word;
  }

  /** Append bytes, and write the list pointer to them at a position. */
  bytes(at: number, data: Uint8Array): void {
    const start = this.room(Math.ceil(data.length / 8));
    this.set(at, BigInt(((start - at - 1) << 2) | 1) | (BigInt((data.length << 3) | 2) << 32n));
    for (const [index, byte] of data.entries()) {
      const wordAt = start + (index >> 3);
      this.set(wordAt, (this.words[wordAt] ?? 0n) | (BigInt(byte) << BigInt(8 * (index & 7))));
    }
  }

  framed(): Uint8Array {
    const out = new Uint8Array(8 + 8 * this.words.length);
    const view = new DataView(out.buffer);
    view.setUint32(4, this.words.length, true);
    for (const [index, word] of this.words.entries()) view.setBigUint64(8 + 8 * index, word, true);
    return out;
  }
}

export function block(prev: Uint8Array, parts: readonly Part[]): Uint8Array {
  const builder = new MessageBuilder();
  const root = builder.room(3);
  builder.set(root, 2n << 48n);
  builder.bytes(root + 1, prev);
  const tag = builder.room(1 + 3 * parts.length);
  const distance = tag - (root + 2) - 1;
  builder.set(root + 2, BigInt((distance << 2) | 1) | (BigInt((3 * parts.length * 8) | 7) << 32n));
  builder.set(tag, BigInt(parts.length << 2) | (1n << 32n) | (2n << 48n));
  for (const [index, part] of parts.entries()) {
    const at = tag + 1 + 3 * index;
    builder.bytes(at + 1, Uint8Array.of(0));
    if ("token" in part) builder.bytes(at + 2, utf8.encode(`${part.token}\0`));
    else if ("heartbeat" in part) builder.set(at, 3n);
    else {
      builder.set(at, 1n);
      const stats = builder.room(4);
      builder.set(at + 2, BigInt((stats - (at + 2) - 1) << 2) | (3n << 32n) | (1n << 48n));
      builder.set(stats, BigInt(part.complete));
      builder.bytes(stats + 3, utf8.encode("stop\0"));
    }
  }
  return builder.framed();
}

/** Socket messages, one per block, chained with the key. */
export function encodeStream(blocks: readonly (readonly Part[])[], key: Uint8Array = KEY): Uint8Array[] {
  const topic = utf8.encode(TOPIC);
  let [state, prev]: [Uint8Array, Uint8Array] = [topic, topic.subarray(0, 16)];
  return blocks.map((parts) => {
    const frame = block(prev, parts);
    const mac = hmac(sha256, key, Uint8Array.of(...state, ...frame)).slice(0, 16);
    state = prev = mac;
    return Uint8Array.of(...frame, ...mac);
  });
}
