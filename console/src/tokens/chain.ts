// The MAC chain of a token stream: each MAC covers the one before it, so that nothing can be left out, added or moved unseen.
//
// The hash functions are synchronous and our own page's: browsers offer theirs on encrypted pages only, and a console is often plain
// HTTP on a machine's own network.

import { blake3 } from "@noble/hashes/blake3.js";
import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { BLOCK_MAC_SIZE, CHUNK_MAC_SIZE } from "./messages.ts";

export type Suite = "sha256" | "blake3";
export type Format = "chunk" | "block";

export const KEY_SIZE = 32;

interface Keyed {
  clone(): Keyed;
  update(data: Uint8Array): Keyed;
  digest(): Uint8Array;
}

const ascii = new TextEncoder();

export class Chain {
  readonly size: number;
  /** What the first message says of the MAC before it, where there is none. */
  readonly firstPrev: Uint8Array;
  private readonly topic: Uint8Array;
  /** The MAC under the key, before anything was put in: what the key costs is paid once. */
  private readonly keyed: Keyed;
  private last: Uint8Array | undefined;

  constructor(format: Format, key: Uint8Array, topic: string, suite: Suite) {
    if (key.length !== KEY_SIZE || key.every((byte) => byte === 0)) {
      throw new RangeError(`a MAC key has ${KEY_SIZE} bytes, and is not zero`);
    }
    this.size = format === "block" ? BLOCK_MAC_SIZE : CHUNK_MAC_SIZE;
    this.keyed = suite === "blake3" ? blake3.create({ key }) : hmac.create(sha256, key);
    this.topic = ascii.encode(topic);
    this.firstPrev = this.topic.subarray(0, format === "block" ? BLOCK_MAC_SIZE : 0);
  }

  /** The last MAC, or nothing at the start. */
  get state(): Uint8Array | undefined {
    return this.last;
  }

  /** What the next message says of the MAC before it. */
  get prev(): Uint8Array {
    return this.last ?? this.firstPrev;
  }

  /** Whether this comes next. */
  isNext(data: Uint8Array, mac: Uint8Array): boolean {
    return areEqual(this.mac(this.last ?? this.topic, data), mac);
  }

  /** Whether a holder of the key made this to follow a MAC that we never saw. */
  follows(prev: Uint8Array, data: Uint8Array, mac: Uint8Array): boolean {
    return prev.length === this.size && areEqual(this.mac(prev, data), mac);
  }

  advance(mac: Uint8Array): void {
    this.last = mac.slice();
  }

  private mac(first: Uint8Array, second: Uint8Array): Uint8Array {
    return this.keyed.clone().update(first).update(second).digest().subarray(0, this.size);
  }
}

/** Compared whole, in a time that does not tell where the first difference is. */
export function areEqual(one: Uint8Array, other: Uint8Array): boolean {
  if (one.length !== other.length) return false;
  let difference = 0;
  for (const [index, byte] of one.entries()) difference |= byte ^ (other[index] ?? 0);
  return difference === 0;
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Bytes out of hexadecimal digits, or nothing where there are other characters. */
export function fromHex(text: string): Uint8Array | undefined {
  if (text.length % 2 !== 0 || !/^[0-9a-f]*$/i.test(text)) return undefined;
  return Uint8Array.from({ length: text.length / 2 }, (_, index) =>
    Number.parseInt(text.slice(2 * index, 2 * index + 2), 16),
  );
}
