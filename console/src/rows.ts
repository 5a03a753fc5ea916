// Rows of the journal as `/v1/tail` answers them, and what a list keeps of them.

import { parseExact, written } from "./json.ts";
import { span } from "./words.ts";

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

/** Rows that are not in the list: they came and went faster than they could be shown, or are no longer kept. */
export interface Gap {
  readonly missed: number;
  /** The offset behind the gap, which tells gaps apart. */
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

/** What narrows a tail; by the names of the query. */
export const FILTERS = ["door", "event", "channel", "kind", "from", "corr", "id", "text"] as const;
export type FilterName = (typeof FILTERS)[number];
export type Filters = Readonly<Partial<Record<FilterName, string>>>;

/** The filters among the words of an address. */
export function filtersOf(query: Readonly<Record<string, string>>): Filters {
  return Object.fromEntries(FILTERS.flatMap((name) => (query[name] ? [[name, query[name]]] : [])));
}

/** Entries in the order they came: at most so many, and at most so many characters of bodies; the oldest go. */
export class Entries {
  private items: (Entry | undefined)[] = [];
  private head = 0;
  private characters = 0;
  /** How many have gone since the start, and how many rows those stood for. */
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
    // What went leaves a hole at the front; it is closed now and then, which costs each entry one move in the long run.
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

/** The rows that an entry stands for. */
export function rowsIn(entry: Entry): number {
  return isGap(entry) ? entry.missed : 1;
}

function weight(entry: Entry): number {
  return isGap(entry) ? 0 : (entry.body?.length ?? 0);
}

const FRACTION = /\.(\d+)/;

/** A time of the journal in milliseconds since 1970, with its microseconds, which a date of the browser's would cut off. */
export function instant(text: string): number {
  const digits = FRACTION.exec(text)?.[1] ?? "";
  return Date.parse(text.replace(FRACTION, "")) + (digits === "" ? 0 : Number(`0.${digits}`) * 1_000);
}

/** A line about a row: why and how long it took, else the payload, else what else there is. */
export function summary(row: Row): string {
  const times = timings(row);
  if (row.reason !== undefined) return times === undefined ? row.reason : `${row.reason} (${times})`;
  if (times !== undefined) return times;
  if (row.body !== undefined) return payload(row.body);
  return row.meta === undefined ? "" : JSON.stringify(row.meta);
}

/** How long a settled envelope waited and was worked on, which its row holds all by itself. */
export function timings(row: Row): string | undefined {
  if (row.ref_at === undefined) return undefined;
  const sent = instant(row.ref_at);
  const settled = instant(row.recorded_at);
  if (row.first_at === undefined) return `${span(settled - sent)} after it was sent`;
  const first = instant(row.first_at);
  return `waited ${span(first - sent)}, worked ${span(settled - first)}`;
}

/** The part of an envelope that its sender wrote; the rest stands in columns of its own. */
function payload(body: string): string {
  try {
    const { payload: sent } = parseExact(body) as { payload?: unknown };
    if (sent !== undefined) return written(sent).slice(0, 240);
  } catch {
    // It is cut short, or no JSON: its letters have to do.
  }
  const found = /"payload"\s*:\s*/.exec(body);
  const text = found === null ? body : body.slice(found.index + found[0].length);
  return text.slice(0, 240).replace(/\s+/g, " ");
}
