// Something of the server that is asked for again and again while somebody looks at it. One poller per name, however many look; it rests
// while the tab is hidden or the server is away, and a slow answer makes it slower, so that the console never takes more than a sixth of a
// server's time.

import { signal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";

import { reachable } from "./link.ts";
import { asFailure, type Failure, isAbort } from "./request.ts";

export interface Resource<T> {
  /** The latest answer; it stays while newer ones fail. */
  readonly data: ReadonlySignal<T | undefined>;
  /** Why the latest attempt failed, if it did. */
  readonly failure: ReadonlySignal<Failure | undefined>;
  /** Ask now instead of when it is due. */
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

  /** Begin to use it; what comes back ends that. */
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
        // What this server does not have it will hardly have in a second.
        if (failure.code === "UnknownRoute") everyMs = ABSENT_MS;
      }
      await this.rest(restMs(performance.now() - began, everyMs), stop);
    }
  }

  private rest(ms: number, stop: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        stop.removeEventListener("abort", wake); // a page may stay open for weeks
        resolve();
      };
      const timer = setTimeout(wake, ms);
      stop.addEventListener("abort", wake);
      this.wake = wake;
    });
  }
}

/** How long to wait after an answer that took so long. */
export function restMs(tookMs: number, everyMs: number): number {
  return Math.max(everyMs - tookMs, SLOWNESS * tookMs);
}

/** Resolves once somebody can see the page. */
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

/** A resource for as long as the component is shown. The name says what is loaded: two of one name must load the same. */
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
