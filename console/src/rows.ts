// Journal rows as `/v1/tail` returns them, and the bounded list that holds them.

import { parseExact, preview } from "./json.ts";
import { span } from "./format.ts";

export interface Row {
  readonly offset: number;
  readonly recorded_at: string;
  readonly door: string;
  readonly event: string;
  readonly channel?: string;
  readonly seq?: number;
  readonly id?: string;
  readonly kind?: string;
  readonly sender?: string;
  readonly peer?: string;
  readonly corr?: string;
  readonly attempt?: number;
  readonly bytes?: number;
  readonly recipients?: number;
  readonly reason?: string;
  readonly ref_offset?: number;
  readonly ref_at?: string;
  readonly first_at?: string;
  readonly meta?: unknown;
  readonly body?: string;
  readonly body_cut?: boolean;
}

/** Rows missing from the list: too many arrived at once, or the journal no longer holds them. */
export interface Gap {
  readonly missed: number;
  /** The offset after the gap, which identifies it. */
  readonly before: number;
}

export type Entry = Row | Gap;

export function isGap(entry: Entry): entry is Gap {
  return "missed" in entry;
}

export interface Answer {
  readonly rows: readonly Row[];
  readonly next: number;
  readonly end: number;
  readonly first: number;
  readonly epoch: number;
  readonly missed: number;
}

/** The filters of a tail, by query name. */
export const FILTERS = ["door", "event", "channel", "kind", "from", "corr", "id", "text"] as const;
export type FilterName = (typeof FILTERS)[number];
export type Filters = Readonly<Partial<Record<FilterName, string>>>;

/** The filters in a query. */
export function filtersOf(query: Readonly<Record<string, string>>): Filters {
  return Object.fromEntries(FILTERS.flatMap((name) => (query[name] ? [[name, query[name]]] : [])));
}

/** Entries in order of arrival, bounded by number and by characters of bodies. The oldest are dropped first. */
export class Entries {
  private items: (Entry | undefined)[] = [];
  private head = 0;
  private characters = 0;
  /** Entries dropped since the start, and the number of rows they represent. */
  dropped = 0;
  lost = 0;

  constructor(
    private readonly entriesMax: number,
    private readonly charactersMax: number,
  ) {}

  get length(): number {
    return this.items.length - this.head;
  }

  at(index: number): Entry | undefined {
    return this.items[this.head + index];
  }

  slice(from: number, to: number): Entry[] {
    return this.items.slice(this.head + from, this.head + to) as Entry[];
  }

  push(entries: readonly Entry[]): void {
    for (const entry of entries) {
      this.items.push(entry);
      this.characters += weight(entry);
    }
    while (this.length > this.entriesMax || (this.characters > this.charactersMax && this.length > 1)) this.shift();
    // Dropped entries leave unused slots at the front. They are removed in bulk, so each entry is moved once on average.
    if (this.head > this.entriesMax) {
      this.items = this.items.slice(this.head);
      this.head = 0;
    }
  }

  clear(): void {
    this.items = [];
    this.head = 0;
    this.characters = 0;
    this.dropped = 0;
    this.lost = 0;
  }

  private shift(): void {
    const gone = this.items[this.head];
    if (gone !== undefined) {
      this.characters -= weight(gone);
      this.lost += rowsIn(gone);
    }
    this.items[this.head] = undefined;
    this.head += 1;
    this.dropped += 1;
  }
}

/** The number of rows that an entry represents. */
export function rowsIn(entry: Entry): number {
  return isGap(entry) ? entry.missed : 1;
}

function weight(entry: Entry): number {
  return isGap(entry) ? 0 : (entry.body?.length ?? 0);
}

const FRACTION = /\.(\d+)/;

/** A journal time in milliseconds since 1970, with the microseconds that `Date` would truncate. */
export function instant(text: string): number {
  const digits = FRACTION.exec(text)?.[1] ?? "";
  return Date.parse(text.replace(FRACTION, "")) + (digits === "" ? 0 : Number(`0.${digits}`) * 1_000);
}

/** One line for a row: reason and timings, otherwise the payload, otherwise the metadata. */
export function summary(row: Row): string {
  const times = timings(row);
  if (row.reason !== undefined) return times === undefined ? row.reason : `${row.reason} (${times})`;
  if (times !== undefined) return times;
  if (row.body !== undefined) return payload(row.body);
  return row.meta === undefined ? "" : JSON.stringify(row.meta);
}

/** How long a settled envelope waited and was processed. */
export function timings(row: Row): string | undefined {
  if (row.ref_at === undefined) return undefined;
  const sent = instant(row.ref_at);
  const settled = instant(row.recorded_at);
  if (row.first_at === undefined) return `${span(settled - sent)} after sending`;
  const first = instant(row.first_at);
  return `waited ${span(first - sent)}, processed ${span(settled - first)}`;
}

/** The payload of an envelope; its other fields have their own columns. */
function payload(body: string): string {
  try {
    const { payload: sent } = parseExact(body) as { payload?: unknown };
    if (sent !== undefined) return preview(sent);
  } catch {
    // Truncated or not JSON: use the raw text.
  }
  const found = /"payload"\s*:\s*/.exec(body);
  const text = found === null ? body : body.slice(found.index + found[0].length);
  return preview(text);
}
