// Spaces as `/v1/spaces` returns them, with rates between responses and the deliveries saved by targeting.

import { Rates } from "../rates.ts";

/** The window of the rates in seconds. */
const RATE_S = 5;

export interface Capability {
  readonly kind: string;
  readonly [field: string]: unknown;
}

export interface Participant {
  readonly id: string;
  /** The configured participant whose token it uses. */
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
  /** Missing for a broadcast stream. */
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
  /** The deliveries there would be without targets. */
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

/** A response with the rates of its counters. */
export interface Measured {
  readonly spaces: readonly Space[];
  rate(space: Space, count: string): number | undefined;
  streamRate(space: Space, stream: Stream, count: "frames" | "bytes"): number | undefined;
}

/** Computes rates from successive responses. */
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

/** The short name of a stream. */
export function streamTitle(stream: Stream): string {
  if (stream.name !== null && stream.name !== "") return stream.name;
  return typeof stream.description === "string" && stream.description !== "" ? stream.description : stream.stream_id;
}

export interface Saving {
  readonly deliveries: number;
  readonly broadcast: number;
  /** The saved fraction of the broadcast deliveries, from 0 to 1. */
  readonly part: number;
}

/** The deliveries saved by targets in a space since the server started. */
export function saving(space: Space): Saving {
  const deliveries = space.counts["deliveries"] ?? 0;
  const broadcast = Math.max(space.counts["broadcast"] ?? 0, deliveries);
  return { deliveries, broadcast, part: broadcast === 0 ? 0 : 1 - deliveries / broadcast };
}

/** A capability in one line: its kind, and its other conditions. */
export function capabilityText(capability: Capability): string {
  const { kind, id: _, ...rest } = capability;
  const conditions = Object.entries(rest).map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`);
  return conditions.length === 0 ? kind : `${kind} where ${conditions.join(", ")}`;
}

function spaceKey(space: Space, name: string): string {
  return JSON.stringify([space.id, name]);
}

function streamKey(space: Space, stream: Stream, name: string): string {
  return JSON.stringify([space.id, stream.stream_id, name]);
}
