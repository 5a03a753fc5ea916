// The MAC chain of a token stream: each MAC covers the previous one, so removed, added or reordered messages are detected.
//
// The hash functions are part of the page, because browsers offer Web Crypto only on HTTPS pages, and a console often uses plain HTTP.

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
  /** The previous MAC that the first message declares. */
  readonly firstPrev: Uint8Array;
  private readonly topic: Uint8Array;
  /** The keyed hash before any input, so the key is set up only once. */
  private readonly keyed: Keyed;
  private last: Uint8Array | undefined;

  constructor(format: Format, key: Uint8Array, topic: string, suite: Suite) {
    if (key.length !== KEY_SIZE || key.every((byte) => byte === 0)) {
      throw new RangeError(`a MAC key must have ${KEY_SIZE} bytes and must not be all zero`);
    }
    this.size = format === "block" ? BLOCK_MAC_SIZE : CHUNK_MAC_SIZE;
    this.keyed = suite === "blake3" ? blake3.create({ key }) : hmac.create(sha256, key);
    this.topic = ascii.encode(topic);
    this.firstPrev = this.topic.subarray(0, format === "block" ? BLOCK_MAC_SIZE : 0);
  }

  /** The last MAC, or undefined at the start. */
  get state(): Uint8Array | undefined {
    return this.last;
  }

  /** The previous MAC that the next message declares. */
  get prev(): Uint8Array {
    return this.last ?? this.firstPrev;
  }

  /** Whether this is the next message. */
  isNext(data: Uint8Array, mac: Uint8Array): boolean {
    return areEqual(this.mac(this.last ?? this.topic, data), mac);
  }

  /** Whether this message is authentic and follows `prev`, a MAC that was not received. */
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

/** Compare in constant time. */
export function areEqual(one: Uint8Array, other: Uint8Array): boolean {
  if (one.length !== other.length) return false;
  let difference = 0;
  for (const [index, byte] of one.entries()) difference |= byte ^ (other[index] ?? 0);
  return difference === 0;
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Decode hexadecimal digits; undefined if there are other characters. */
export function fromHex(text: string): Uint8Array | undefined {
  if (text.length % 2 !== 0 || !/^[0-9a-f]*$/i.test(text)) return undefined;
  return Uint8Array.from({ length: text.length / 2 }, (_, index) =>
    Number.parseInt(text.slice(2 * index, 2 * index + 2), 16),
  );
}
