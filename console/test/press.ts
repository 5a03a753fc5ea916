// Writes blocks of token streams for the tests, with their MACs: one segment, as publishers write them.

import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";

export const TOPIC = "ab".repeat(32);
export const KEY = Uint8Array.from({ length: 32 }, (_, index) => index + 1);

const utf8 = new TextEncoder();

export type Part = { readonly token: string } | { readonly heartbeat: true } | { readonly complete: number };

/** Words of a message, put one behind the other. */
class Sheet {
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

  /** Bytes behind all else, and the list pointer to them at a place. */
  bytes(at: number, data: Uint8Array): void {
    const start = this.room(Math.ceil(data.length / 8));
    this.set(at, BigInt(((start - at - 1) << 2) | 1) | (BigInt((data.length << 3) | 2) << 32n));
    for (const [index, byte] of data.entries()) {
      const place = start + (index >> 3);
      this.set(place, (this.words[place] ?? 0n) | (BigInt(byte) << BigInt(8 * (index & 7))));
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
  const sheet = new Sheet();
  const root = sheet.room(3);
  sheet.set(root, 2n << 48n);
  sheet.bytes(root + 1, prev);
  const tag = sheet.room(1 + 3 * parts.length);
  const distance = tag - (root + 2) - 1;
  sheet.set(root + 2, BigInt((distance << 2) | 1) | (BigInt((3 * parts.length * 8) | 7) << 32n));
  sheet.set(tag, BigInt(parts.length << 2) | (1n << 32n) | (2n << 48n));
  for (const [index, part] of parts.entries()) {
    const at = tag + 1 + 3 * index;
    sheet.bytes(at + 1, Uint8Array.of(0));
    if ("token" in part) sheet.bytes(at + 2, utf8.encode(`${part.token}\0`));
    else if ("heartbeat" in part) sheet.set(at, 3n);
    else {
      sheet.set(at, 1n);
      const stats = sheet.room(4);
      sheet.set(at + 2, BigInt((stats - (at + 2) - 1) << 2) | (3n << 32n) | (1n << 48n));
      sheet.set(stats, BigInt(part.complete));
      sheet.bytes(stats + 3, utf8.encode("stop\0"));
    }
  }
  return sheet.framed();
}

/** Messages of the socket, one for each block, chained under the key. */
export function press(blocks: readonly (readonly Part[])[], key: Uint8Array = KEY): Uint8Array[] {
  const topic = utf8.encode(TOPIC);
  let [state, prev]: [Uint8Array, Uint8Array] = [topic, topic.subarray(0, 16)];
  return blocks.map((parts) => {
    const frame = block(prev, parts);
    const mac = hmac(sha256, key, Uint8Array.of(...state, ...frame)).slice(0, 16);
    state = prev = mac;
    return Uint8Array.of(...frame, ...mac);
  });
}
