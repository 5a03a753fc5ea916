// HTTP requests to the server. An unsuccessful response becomes a `Failure` with the server's message. Watchers are notified when the
// session has ended and when the server cannot be reached.

import { parseExact, written } from "./json.ts";
import { updateSkew } from "./skew.ts";

export class Failure extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly status: number,
    readonly hint: string | undefined = undefined,
  ) {
    super(message);
    this.name = "Failure";
  }

  /** Whether the request did not reach a server. */
  get isUnreachable(): boolean {
    return this.status === 0;
  }
}

export interface Options {
  readonly method?: "GET" | "POST" | "PUT" | "DELETE";
  readonly body?: unknown;
  readonly signal?: AbortSignal | undefined;
  /** A status besides 2xx whose body is the answer: `/health` responds with 503 while new envelopes are refused. */
  readonly accepts?: number;
}

/** Request timeout, after which the server counts as unreachable. Long polls wait at most 20 s. */
const PATIENCE_MS = 30_000;

type Listener = (failure: Failure) => void;
const watchers: Listener[] = [];

/** Watch requests that fail because there is no session or no server. */
export function onFailure(listener: Listener): void {
  watchers.push(listener);
}

/** The JSON of a response; `undefined` if it is empty. */
export async function fetchJson<T>(path: string, options: Options = {}): Promise<T> {
  const response = await send(path, options);
  const text = await body(response);
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** The JSON of a response whose numbers may exceed 2^53. */
export async function fetchExact<T>(path: string, options: Options = {}): Promise<T> {
  return parseExact(await body(await send(path, options))) as T;
}

/** The text of a response. */
export async function fetchText(path: string, options: Options = {}): Promise<string> {
  return body(await send(path, options));
}

/** A path with its query; empty and undefined values are omitted. */
export function withQuery(path: string, query: Readonly<Record<string, string | number | undefined>>): string {
  const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return kept.length > 0 ? `${path}?${new URLSearchParams(kept.map(([key, value]) => [key, String(value)]))}` : path;
}

/** Whether the page itself aborted the request, which is not an error to show. */
export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

export function asFailure(error: unknown): Failure {
  if (error instanceof Failure) return error;
  return new Failure("Unreadable", error instanceof Error ? error.message : String(error), -1);
}

async function send(path: string, options: Options): Promise<Response> {
  const patience = AbortSignal.timeout(PATIENCE_MS);
  const init: RequestInit = {
    method: options.method ?? "GET",
    credentials: "same-origin",
    cache: "no-store",
    signal: options.signal ? AbortSignal.any([options.signal, patience]) : patience,
  };
  if (options.body !== undefined) {
    init.body = written(options.body);
    init.headers = { "Content-Type": "application/json" };
  }
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    throw unreached(error);
  }
  updateSkew(response.headers.get("Date"));
  if (!response.ok && response.status !== options.accepts) throw notified(await refusal(response));
  return response;
}

async function body(response: Response): Promise<string> {
  try {
    return await response.text();
  } catch (error) {
    throw unreached(error);
  }
}

function unreached(error: unknown): unknown {
  if (isAbort(error)) return error;
  return notified(new Failure("Unreachable", "server unreachable", 0, "check that `penstock up` is running"));
}

function notified(failure: Failure): Failure {
  if (failure.isUnreachable || failure.status === 401) for (const watcher of watchers) watcher(failure);
  return failure;
}

async function refusal(response: Response): Promise<Failure> {
  try {
    const { error } = (await response.json()) as { error: { code: string; message: string; hint?: string } };
    return new Failure(error.code, error.message, response.status, error.hint);
  } catch {
    return new Failure("Unreadable", `the server responded with ${response.status} ${response.statusText}`, response.status);
  }
}
