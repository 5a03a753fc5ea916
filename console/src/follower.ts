// Follows the journal for a list on the page: asks for what is new, waits where there is nothing, and keeps the newest. However fast rows
// come, the page hears of them once a frame. While the list is paused, what comes is kept aside and counted.

import { signal } from "@preact/signals";

import { addMissed, reachable } from "./link.ts";
import { ask, asFailure, type Failure, isAbort, withQuery } from "./request.ts";
import { visible } from "./resource.ts";
import { type Answer, Entries, type Entry, type Filters, rowsIn } from "./rows.ts";

/** Entries that a list keeps, and the same again while it is paused. */
export const ENTRIES_MAX = 50_000;
/** Characters of bodies that it keeps: one body may have two thousand. */
export const CHARACTERS_MAX = 32_000_000;
const ANSWER_MAX = 2_000;
const WAIT_MS = 15_000;
const RETRY_MS = 3_000;

export interface Start {
  /** Begin with this row; else that many before the end. */
  readonly after?: number;
  readonly back?: number;
  /** Whether to go on at the end when too far behind. */
  readonly canSkip: boolean;
}

export class Follower {
  readonly entries = new Entries(ENTRIES_MAX, CHARACTERS_MAX);
  /** Grows whenever `entries` changed. */
  readonly version = signal(0);
  readonly failure = signal<Failure | undefined>(undefined);
  readonly isPaused = signal(false);
  /** What came while the list was paused. */
  readonly waiting = signal(0);
  /** How far the journal was searched, and how far it goes. */
  readonly reach = signal<{ readonly next: number; readonly end: number } | undefined>(undefined);
  private readonly aside = new Entries(ENTRIES_MAX, CHARACTERS_MAX);
  private isDrawn = true;
  private stop = new AbortController();

  constructor(
    private readonly filters: Filters,
    private readonly start: Start,
  ) {}

  /** Begin; what comes back ends it. */
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
        const answer = await ask<Answer>(this.address(after), { signal: stop });
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
      // Only who has seen all there is waits for more: else a list with nothing in it would not know that for a long time.
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

  /** What came while the list was paused. Where some of it went, a mark takes the place of the oldest, for which there is room then. */
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
