// Decodes the messages of token streams: blocks, chunks and their payloads, from untrusted bytes.
//
// Nothing here checks a MAC. The verifier does so first where the format allows it.

import { framedSize, Message, type Reason, type Struct, WireError } from "./segments.ts";

export const TOPIC_SIZE = 64;
export const CHUNK_MAC_SIZE = 32;
export const BLOCK_MAC_SIZE = 16;

/** A piece of generated text. */
export interface Token {
  readonly kind: "token";
  readonly text: string;
}

/** The stream ended normally, with its statistics. */
export interface Complete {
  readonly kind: "complete";
  readonly tokens: number;
  readonly finishReason: string;
  readonly generationMs: number;
  readonly tokensPerSecond: number;
  readonly perplexity: number;
  readonly entropy: number;
}

/** The stream ended with an error. */
export interface Failure {
  readonly kind: "failure";
  readonly message: string;
  readonly code: string;
  readonly details: string;
}

/** A heartbeat of the publisher. */
export interface Heartbeat {
  readonly kind: "heartbeat";
}

export type Payload = Token | Complete | Failure | Heartbeat;

/** A message that cannot be decoded. */
export interface Fault {
  readonly kind: "fault";
  readonly reason: Reason;
}

export interface Block {
  readonly kind: "block";
  readonly prev: Uint8Array;
  readonly payloads: readonly Payload[];
}

export interface Chunk {
  readonly kind: "chunk";
  readonly topic: string;
  readonly data: Uint8Array;
  readonly mac: Uint8Array;
  /** Empty in the first message. */
  readonly prev: Uint8Array;
}

/** A socket message: a chunk is one frame, a block is a frame followed by its MAC. */
export type Arrival =
  | { readonly format: "chunk"; readonly frame: Uint8Array }
  | { readonly format: "block"; readonly frame: Uint8Array; readonly mac: Uint8Array };

/** Distinguish a block from a chunk by the size in the segment table. */
export function arrival(bytes: Uint8Array): Arrival | undefined {
  const size = framedSize(bytes);
  if (size === bytes.length) return { format: "chunk", frame: bytes };
  if (size !== undefined && size + BLOCK_MAC_SIZE === bytes.length) {
    return { format: "block", frame: bytes.subarray(0, size), mac: bytes.subarray(size) };
  }
  return undefined;
}

export function readChunk(frame: Uint8Array): Chunk | Fault {
  return read(frame, (root) => {
    if (root.pointers < 3 || root.shape(0) !== "list") throw new WireError("unknown");
    const topic = root.data(0);
    if (topic.length !== TOPIC_SIZE + 1) throw new WireError("topic");
    const [mac, prev] = [root.data(2), root.data(3)];
    const isSized = mac.length === CHUNK_MAC_SIZE && (prev.length === 0 || prev.length === CHUNK_MAC_SIZE);
    if (!isSized) throw new WireError("size");
    return { kind: "chunk", topic: root.text(0), data: root.data(1), mac, prev };
  });
}

export function readBlock(frame: Uint8Array): Block | Fault {
  return read(frame, (root) => ({
    kind: "block",
    prev: root.data(0),
    payloads: root.structs(1).map(payload),
  }));
}

/** The previous MAC that a block declares. */
export function readPrev(frame: Uint8Array): Uint8Array | undefined {
  try {
    const prev = new Message(frame).root().data(0);
    return prev.length === BLOCK_MAC_SIZE ? prev : undefined;
  } catch (error) {
    if (error instanceof WireError) return undefined;
    throw error;
  }
}

/** A single payload, the data of a chunk. */
export function readPayload(frame: Uint8Array): Payload | Fault {
  return read(frame, payload);
}

function read<Value>(frame: Uint8Array, reading: (root: Struct) => Value): Value | Fault {
  try {
    return reading(new Message(frame).root());
  } catch (error) {
    if (error instanceof WireError) return { kind: "fault", reason: error.reason };
    throw error;
  }
}

function payload(body: Struct): Payload {
  body.text(0); // the stream name must be a valid text
  switch (body.u16(0)) {
    case 0:
      return { kind: "token", text: body.text(1) };
    case 1:
      return complete(body.struct(1));
    case 2:
      return failure(body.struct(1));
    case 3:
      return { kind: "heartbeat" };
    default:
      throw new WireError("unknown");
  }
}

function complete(part: Struct | undefined): Complete {
  return {
    kind: "complete",
    tokens: part?.u32(0) ?? 0,
    finishReason: part?.text(0) ?? "",
    generationMs: part?.u64(8) ?? 0,
    tokensPerSecond: part?.f32(4) ?? 0,
    perplexity: part?.f32(16) ?? 0,
    entropy: part?.f32(20) ?? 0,
  };
}

function failure(part: Struct | undefined): Failure {
  return {
    kind: "failure",
    message: part?.text(0) ?? "",
    code: part?.text(1) ?? "",
    details: part?.text(2) ?? "",
  };
}
