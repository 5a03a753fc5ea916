// Reads framed Cap'n Proto messages from untrusted senders: segments, pointers and structs, with bounds checks.
//
// It knows the layout and not the meaning. It reads nothing outside the frame, and allocates nothing by a length that a message declares.
// Pointers may share their target, so a small message can describe a huge one: every visit is charged to a budget that is a small multiple
// of the message size.

const WORD = 8;
const SEGMENTS_MAX = 512;
/** The traversal budget in multiples of the message size. */
const VISITS = 4;
/** Additional words, for small messages. */
const VISITS_FREE = 64;
const LIST_BYTE = 2;
const LIST_STRUCT = 7;

/** The reasons why a message is rejected. */
export const REASONS = {
  short: "the message is truncated",
  long: "trailing bytes after the message",
  segments: "too many segments",
  bounds: "a pointer leaves its segment",
  far: "a far pointer has no valid landing pad",
  kind: "a pointer has the wrong kind for its field",
  capability: "the message contains a capability",
  text: "a text has no terminating zero byte, or is not UTF-8",
  effort: "the message exceeds the traversal limit",
  unknown: "unknown message type",
  topic: "the topic must have 64 bytes",
  size: "a MAC has the wrong size",
} as const;

export type Reason = keyof typeof REASONS;

/** A message that cannot be decoded. */
export class WireError extends Error {
  readonly reason: Reason;

  constructor(reason: Reason) {
    super(REASONS[reason]);
    this.reason = reason;
  }
}

interface Extent {
  readonly start: number;
  readonly end: number;
}

/** The two halves of a pointer, and its target. */
interface Target {
  readonly low: number;
  readonly high: number;
  readonly segment: number;
  readonly at: number;
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The size of a framed message by its segment table; undefined if the table is incomplete. */
export function framedSize(frame: Uint8Array): number | undefined {
  if (frame.length < 2 * WORD) return undefined;
  const view = viewOf(frame);
  const count = view.getUint32(0, true) + 1;
  if (count > SEGMENTS_MAX) return undefined;
  let size = tableSize(count);
  if (size > frame.length) return undefined;
  for (let index = 0; index < count; index += 1) size += WORD * view.getUint32(4 + 4 * index, true);
  return size;
}

/** A frame with its segments, and the remaining traversal budget. */
export class Message {
  readonly frame: Uint8Array;
  readonly view: DataView;
  private readonly segments: readonly Extent[];
  private left: number;

  constructor(frame: Uint8Array) {
    const size = frame.length;
    if (size < 2 * WORD) throw new WireError("short");
    const view = viewOf(frame);
    const count = view.getUint32(0, true) + 1;
    if (count > SEGMENTS_MAX) throw new WireError("segments");
    let start = tableSize(count);
    if (start > size) throw new WireError("short");
    const segments: Extent[] = [];
    for (let index = 0; index < count; index += 1) {
      const end = start + WORD * view.getUint32(4 + 4 * index, true);
      segments.push({ start, end });
      start = end;
    }
    if (start !== size) throw new WireError(start > size ? "short" : "long");
    this.frame = frame;
    this.view = view;
    this.segments = segments;
    this.left = VISITS * Math.floor(size / WORD) + VISITS_FREE;
  }

  /** The root struct of the message. */
  root(): Struct {
    const { start, end } = this.segment(0);
    if (end - start < WORD) throw new WireError("short");
    const found = this.struct(0, start);
    if (found === undefined) throw new WireError("unknown");
    return found;
  }

  /** Follow the pointer at a position; undefined for a null pointer. */
  resolve(segment: number, at: number): Target | undefined {
    const low = this.view.getUint32(at, true);
    const high = this.view.getUint32(at + 4, true);
    if (low === 0 && high === 0) return undefined;
    const kind = low & 3;
    if (kind === 2) return this.far(low, high);
    if (kind === 3) throw new WireError("capability");
    return { low, high, segment, at: at + WORD + distance(low) };
  }

  /** The struct at the target of a pointer. */
  struct(segment: number, at: number): Struct | undefined {
    const found = this.resolve(segment, at);
    if (found === undefined) return undefined;
    if ((found.low & 3) !== 0) throw new WireError("kind");
    const [words, pointers] = [found.high & 0xffff, found.high >>> 16];
    this.extent(found.segment, found.at, (words + pointers) * WORD);
    return new Struct(this, found.segment, found.at, words, pointers);
  }

  /** The bytes at the target of a pointer. */
  data(segment: number, at: number): Uint8Array | undefined {
    const found = this.resolve(segment, at);
    if (found === undefined) return undefined;
    if ((found.low & 3) !== 1 || (found.high & 7) !== LIST_BYTE) throw new WireError("kind");
    const size = found.high >>> 3;
    const { start, end } = this.segment(found.segment);
    if (found.at < start || found.at + size > end) throw new WireError("bounds");
    this.spend((size + WORD) >>> 3);
    return this.frame.subarray(found.at, found.at + size);
  }

  /** The structs of the list at the target of a pointer. */
  structs(segment: number, at: number): Struct[] {
    const found = this.resolve(segment, at);
    if (found === undefined) return [];
    if ((found.low & 3) !== 1 || (found.high & 7) !== LIST_STRUCT) throw new WireError("kind");
    const size = found.high >>> 3;
    this.extent(found.segment, found.at, WORD + size * WORD);
    const tag = this.view.getUint32(found.at, true);
    const shape = this.view.getUint32(found.at + 4, true);
    if ((tag & 3) !== 0) throw new WireError("kind");
    const [count, words, pointers] = [tag >>> 2, shape & 0xffff, shape >>> 16];
    if (count * (words + pointers) > size) throw new WireError("bounds");
    // A list of zero-size structs has no size but many elements, so each element is charged.
    this.spend(words + pointers === 0 ? 2 * count : count);
    const step = (words + pointers) * WORD;
    const first = found.at + WORD;
    return Array.from(
      { length: count },
      (_, index) => new Struct(this, found.segment, first + index * step, words, pointers),
    );
  }

  private segment(index: number): Extent {
    const found = this.segments[index];
    if (found === undefined) throw new WireError("far");
    return found;
  }

  private far(low: number, high: number): Target {
    const isDouble = (low & 4) !== 0;
    const pad = this.landing(low, high, isDouble ? 2 * WORD : WORD);
    const padLow = this.view.getUint32(pad.at, true);
    const padHigh = this.view.getUint32(pad.at + 4, true);
    if (!isDouble) {
      if ((padLow === 0 && padHigh === 0) || (padLow & 3) > 1) throw new WireError("far");
      return { low: padLow, high: padHigh, segment: pad.segment, at: pad.at + WORD + distance(padLow) };
    }
    const tagLow = this.view.getUint32(pad.at + WORD, true);
    const tagHigh = this.view.getUint32(pad.at + WORD + 4, true);
    const isTag = (tagLow !== 0 || tagHigh !== 0) && (tagLow & 3) <= 1 && distance(tagLow) === 0;
    if ((padLow & 7) !== 2 || !isTag) throw new WireError("far");
    return { low: tagLow, high: tagHigh, ...this.landing(padLow, padHigh, 0) };
  }

  /** The target of a far pointer, with at least `bytes` bytes. */
  private landing(low: number, high: number, size: number): { segment: number; at: number } {
    const { start, end } = this.segment(high);
    const at = start + (low >>> 3) * WORD;
    if (at + size > end) throw new WireError("far");
    return { segment: high, at };
  }

  private extent(segment: number, at: number, size: number): void {
    const { start, end } = this.segment(segment);
    if (at < start || at + size > end) throw new WireError("bounds");
    this.spend(Math.ceil(size / WORD));
  }

  /** Charge at least one word, because a message may contain many empty values. */
  private spend(words: number): void {
    this.left -= words || 1;
    if (this.left < 0) throw new WireError("effort");
  }
}

/** A struct of a message. A field beyond its end has the default value, as in messages of older writers. */
export class Struct {
  private readonly message: Message;
  private readonly segment: number;
  private readonly at: number;
  private readonly words: number;
  readonly pointers: number;

  constructor(message: Message, segment: number, at: number, words: number, pointers: number) {
    this.message = message;
    this.segment = segment;
    this.at = at;
    this.words = words;
    this.pointers = pointers;
  }

  u16(byte: number): number {
    return this.has(byte) ? this.message.view.getUint16(this.at + byte, true) : 0;
  }

  u32(byte: number): number {
    return this.has(byte) ? this.message.view.getUint32(this.at + byte, true) : 0;
  }

  /** As a number, exact up to 2^53. */
  u64(byte: number): number {
    return this.has(byte) ? Number(this.message.view.getBigUint64(this.at + byte, true)) : 0;
  }

  f32(byte: number): number {
    return this.has(byte) ? this.message.view.getFloat32(this.at + byte, true) : 0;
  }

  /** The kind of a pointer: struct, list, or undefined if null. */
  shape(index: number): "struct" | "list" | undefined {
    const found = index < this.pointers ? this.message.resolve(this.segment, this.pointer(index)) : undefined;
    if (found === undefined) return undefined;
    return (found.low & 3) === 0 ? "struct" : "list";
  }

  /** The bytes of a field; empty if it was not set. */
  data(index: number): Uint8Array {
    const found = index < this.pointers ? this.message.data(this.segment, this.pointer(index)) : undefined;
    return found ?? new Uint8Array();
  }

  /** The text of a field; empty if it was not set. */
  text(index: number): string {
    const found = index < this.pointers ? this.message.data(this.segment, this.pointer(index)) : undefined;
    if (found === undefined) return "";
    if (found.at(-1) !== 0) throw new WireError("text");
    try {
      return utf8.decode(found.subarray(0, -1));
    } catch {
      throw new WireError("text");
    }
  }

  struct(index: number): Struct | undefined {
    return index < this.pointers ? this.message.struct(this.segment, this.pointer(index)) : undefined;
  }

  structs(index: number): Struct[] {
    return index < this.pointers ? this.message.structs(this.segment, this.pointer(index)) : [];
  }

  private has(byte: number): boolean {
    return byte < this.words * WORD;
  }

  private pointer(index: number): number {
    return this.at + (this.words + index) * WORD;
  }
}

function viewOf(frame: Uint8Array): DataView {
  return new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
}

function tableSize(count: number): number {
  return Math.ceil((4 + 4 * count) / WORD) * WORD;
}

/** The signed offset of a struct or list pointer in bytes. */
function distance(low: number): number {
  return (low >> 2) * WORD;
}
