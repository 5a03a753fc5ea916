// Server data that is polled while a component shows it. All components share one poller per name. It pauses while the tab is hidden or the
// server is unreachable, and slows down with the response time, so one poller takes at most a sixth of the server's time.

import { signal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";

import { reachable } from "./connection.ts";
import { asFailure, type Failure, isAbort } from "./request.ts";

export interface Resource<T> {
  /** The latest successful response; kept when later requests fail. */
  readonly data: ReadonlySignal<T | undefined>;
  /** The error of the latest request, if it failed. */
  readonly failure: ReadonlySignal<Failure | undefined>;
  /** Request now instead of at the next interval. */
  readonly refresh: () => void;
}

type Load<T> = (signal: AbortSignal) => Promise<T>;

export const EVERY_MS = 1_000;
const SLOWNESS = 5;
const ABSENT_MS = 30_000;

export class Poller<T> implements Resource<T> {
  readonly data = signal<T | undefined>(undefined);
  readonly failure = signal<Failure | undefined>(undefined);
  private users = 0;
  private stopped: AbortController | undefined;
  private wake: () => void = () => undefined;

  constructor(
    private readonly load: Load<T>,
    private readonly everyMs: number,
  ) {}

  get isUsed(): boolean {
    return this.users > 0;
  }

  readonly refresh = (): void => this.wake();

  /** Start using it; the returned function stops. */
  use(): () => void {
    this.users += 1;
    if (this.users === 1) {
      this.stopped = new AbortController();
      void this.run(this.stopped.signal);
    }
    return () => {
      this.users -= 1;
      if (this.users === 0) this.stopped?.abort();
    };
  }

  private async run(stop: AbortSignal): Promise<void> {
    while (!stop.aborted) {
      await Promise.all([reachable(), visible()]);
      if (stop.aborted) return;
      const began = performance.now();
      let everyMs = this.everyMs;
      try {
        const data = await this.load(stop);
        if (stop.aborted) return;
        this.data.value = data;
        this.failure.value = undefined;
      } catch (error) {
        if (isAbort(error) || stop.aborted) return;
        const failure = asFailure(error);
        this.failure.value = failure;
        // A route that this server does not have will not appear within a second.
        if (failure.code === "UnknownRoute") everyMs = ABSENT_MS;
      }
      await this.rest(restMs(performance.now() - began, everyMs), stop);
    }
  }

  private rest(ms: number, stop: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        stop.removeEventListener("abort", wake); // or listeners pile up while the page stays open
        resolve();
      };
      const timer = setTimeout(wake, ms);
      stop.addEventListener("abort", wake);
      this.wake = wake;
    });
  }
}

/** How long to wait after a response that took `tookMs`. */
export function restMs(tookMs: number, everyMs: number): number {
  return Math.max(everyMs - tookMs, SLOWNESS * tookMs);
}

/** Resolves when the page is visible. */
export function visible(): Promise<void> {
  if (document.visibilityState === "visible") return Promise.resolve();
  return new Promise((resolve) => {
    const look = (): void => {
      if (document.visibilityState !== "visible") return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
  });
}

const pollers = new Map<string, Poller<unknown>>();

/** A resource while the component is mounted. Two uses with one name share a poller, so both must load the same data. */
export function useResource<T>(name: string, load: Load<T>, everyMs: number = EVERY_MS): Resource<T> {
  const poller = useMemo(() => {
    const known = (pollers.get(name) as Poller<T> | undefined) ?? new Poller(load, everyMs);
    pollers.set(name, known as Poller<unknown>);
    return known;
  }, [name]);
  useEffect(() => {
    const end = poller.use();
    return () => {
      end();
      if (!poller.isUsed) pollers.delete(name);
    };
  }, [poller]);
  return poller;
}
