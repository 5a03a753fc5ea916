// Follows the journal for a list on the page: long-polls for new rows and keeps the newest. The page is redrawn at most once per animation
// frame. While the list is paused, new rows are buffered and counted.

import { signal } from "@preact/signals";

import { addMissed, reachable } from "./connection.ts";
import { fetchJson, asFailure, type Failure, isAbort, withQuery } from "./request.ts";
import { visible } from "./resource.ts";
import { type Answer, Entries, type Entry, type Filters, rowsIn } from "./rows.ts";

/** Entries that a list keeps; the buffer of a paused list has the same limit. */
export const ENTRIES_MAX = 50_000;
/** Characters of bodies that a list keeps; one body has up to two thousand. */
export const CHARACTERS_MAX = 32_000_000;
const ANSWER_MAX = 2_000;
const WAIT_MS = 15_000;
const RETRY_MS = 3_000;

export interface Start {
  /** Start after this offset, otherwise `back` rows before the end. */
  readonly after?: number;
  readonly back?: number;
  /** Whether to skip to the end when too far behind. */
  readonly canSkip: boolean;
}

export class Follower {
  readonly entries = new Entries(ENTRIES_MAX, CHARACTERS_MAX);
  /** Incremented whenever `entries` changes. */
  readonly version = signal(0);
  readonly failure = signal<Failure | undefined>(undefined);
  readonly isPaused = signal(false);
  /** Number of rows buffered while paused. */
  readonly waiting = signal(0);
  /** The next offset to read, and the end of the journal. */
  readonly reach = signal<{ readonly next: number; readonly end: number } | undefined>(undefined);
  private readonly aside = new Entries(ENTRIES_MAX, CHARACTERS_MAX);
  private isDrawn = true;
  private stop = new AbortController();

  constructor(
    private readonly filters: Filters,
    private readonly start: Start,
  ) {}

  /** Start; the returned function stops it. */
  run(): () => void {
    this.stop = new AbortController();
    void this.follow(this.stop.signal);
    return () => this.stop.abort();
  }

  pause(): void {
    this.isPaused.value = true;
  }

  resume(): void {
    this.entries.push(this.kept());
    this.aside.clear();
    this.isPaused.value = false;
    this.waiting.value = 0;
    this.version.value += 1;
  }

  clear(): void {
    this.entries.clear();
    this.version.value += 1;
  }

  private async follow(stop: AbortSignal): Promise<void> {
    let after = this.start.after;
    let wasAway = false;
    while (!stop.aborted) {
      await Promise.all([reachable(), visible()]);
      if (stop.aborted) return;
      try {
        const answer = await fetchJson<Answer>(this.address(after), { signal: stop });
        if (stop.aborted) return;
        this.take(answer);
        if (wasAway && answer.missed > 0) addMissed(answer.missed);
        wasAway = false;
        after = answer.next;
      } catch (error) {
        if (isAbort(error) || stop.aborted) return;
        const failure = asFailure(error);
        wasAway = failure.isUnreachable;
        this.failure.value = failure.isUnreachable ? undefined : failure;
        if (!failure.isUnreachable) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  private address(after: number | undefined): string {
    return withQuery("/v1/tail", {
      ...this.filters,
      after,
      back: after === undefined ? this.start.back : undefined,
      max: ANSWER_MAX,
      // Long-poll only at the end of the journal. Otherwise an empty list would not be known to be empty until the poll times out.
      wait_ms: this.isAtEnd ? WAIT_MS : 0,
      skip: this.start.canSkip ? 1 : undefined,
    });
  }

  private get isAtEnd(): boolean {
    const reach = this.reach.peek();
    return reach !== undefined && reach.next >= reach.end;
  }

  private take({ rows, missed, next, end }: Answer): void {
    this.failure.value = undefined;
    this.reach.value = { next, end };
    const came: Entry[] = missed > 0 ? [{ missed, before: rows[0]?.offset ?? next }, ...rows] : [...rows];
    if (came.length === 0) return;
    (this.isPaused.value ? this.aside : this.entries).push(came);
    this.draw();
  }

  /** The rows buffered while paused. If the buffer dropped some, a gap replaces its oldest entry, so the limit still holds. */
  private kept(): Entry[] {
    const [first, ...others] = this.aside.slice(0, this.aside.length);
    if (first === undefined) return [];
    const lost = this.aside.lost;
    return lost === 0 ? [first, ...others] : [{ missed: lost + rowsIn(first), before: -lost }, ...others];
  }

  private draw(): void {
    if (!this.isDrawn) return;
    this.isDrawn = false;
    requestAnimationFrame(() => {
      this.isDrawn = true;
      this.waiting.value = this.aside.length + this.aside.lost;
      if (!this.isPaused.value) this.version.value += 1;
    });
  }
}
