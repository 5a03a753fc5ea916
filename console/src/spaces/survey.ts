// What `/v1/spaces` tells of the spaces, and what is worked out from it: rates between two answers, and what targeting saved.

import { Rates } from "../rates.ts";

/** Over how long rates are taken. */
const RATE_S = 5;

export interface Capability {
  readonly kind: string;
  readonly [field: string]: unknown;
}

export interface Participant {
  readonly id: string;
  /** The participant of the config whose token it came with. */
  readonly as: string;
  readonly connected: boolean;
  readonly type: string | null;
  readonly capabilities: readonly Capability[];
}

export interface Stream {
  readonly stream_id: string;
  readonly owner: string;
  readonly authorized_writers: readonly string[];
  readonly created: string;
  /** Left out where it goes to everybody. */
  readonly target?: readonly string[];
  readonly direction?: string;
  readonly description?: unknown;
  readonly content_type?: unknown;
  readonly name: string | null;
  readonly keep: string;
  readonly overflow: string;
  readonly receivers: readonly string[];
  readonly frames: number;
  readonly bytes: number;
  readonly deliveries: number;
  /** What the deliveries would have been without targets. */
  readonly broadcast: number;
  readonly dropped: number;
}

export interface Space {
  readonly id: string;
  readonly name: string | null;
  readonly participants: readonly Participant[];
  readonly streams: readonly Stream[];
  readonly invited: readonly string[];
  readonly kicked: readonly string[];
  readonly counts: Readonly<Record<string, number>>;
}

export interface Survey {
  readonly spaces: readonly Space[];
}

/** A survey with the growth per second of what it counts. */
export interface Measured {
  readonly spaces: readonly Space[];
  rate(space: Space, count: string): number | undefined;
  streamRate(space: Space, stream: Stream, count: "frames" | "bytes"): number | undefined;
}

/** Puts rates beside surveys that come one after the other. */
export class Measuring {
  private readonly rates = new Rates(RATE_S);

  take(at: number, survey: Survey): Measured {
    const counts = new Map<string, number>();
    for (const space of survey.spaces) {
      for (const [name, value] of Object.entries(space.counts)) counts.set(spaceKey(space, name), value);
      for (const stream of space.streams) {
        counts.set(streamKey(space, stream, "frames"), stream.frames);
        counts.set(streamKey(space, stream, "bytes"), stream.bytes);
      }
    }
    const rates = this.rates.take(at, counts);
    return {
      spaces: survey.spaces,
      rate: (space, count) => rates.get(spaceKey(space, count)),
      streamRate: (space, stream, count) => rates.get(streamKey(space, stream, count)),
    };
  }
}

export function isTargeted(stream: Stream): boolean {
  return stream.target !== undefined && stream.target.length > 0;
}

/** What a stream is called where there is little room. */
export function streamTitle(stream: Stream): string {
  if (stream.name !== null && stream.name !== "") return stream.name;
  return typeof stream.description === "string" && stream.description !== "" ? stream.description : stream.stream_id;
}

export interface Saving {
  readonly deliveries: number;
  readonly broadcast: number;
  /** The part of the broadcast that was not needed, from 0 to 1. */
  readonly part: number;
}

/** What targets saved in a space since the server started. */
export function saving(space: Space): Saving {
  const deliveries = space.counts["deliveries"] ?? 0;
  const broadcast = Math.max(space.counts["broadcast"] ?? 0, deliveries);
  return { deliveries, broadcast, part: broadcast === 0 ? 0 : 1 - deliveries / broadcast };
}

/** A capability in one line: its kind, and what else it asks of an envelope. */
export function capabilityText(capability: Capability): string {
  const { kind, id: _, ...rest } = capability;
  const asked = Object.entries(rest).map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`);
  return asked.length === 0 ? kind : `${kind} where ${asked.join(", ")}`;
}

function spaceKey(space: Space, name: string): string {
  return JSON.stringify([space.id, name]);
}

function streamKey(space: Space, stream: Stream, name: string): string {
  return JSON.stringify([space.id, stream.stream_id, name]);
}
