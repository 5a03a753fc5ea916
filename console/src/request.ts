// Asking the server. Every answer that is no success becomes a `Failure` with the server's own words; who is not signed in any more and a
// server that cannot be reached are told to those who watch for it.

import { parseExact, written } from "./json.ts";
import { learnSkew } from "./skew.ts";

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

  /** Whether the request did not reach a server at all. */
  get isUnreachable(): boolean {
    return this.status === 0;
  }
}

export interface Options {
  readonly method?: "GET" | "POST" | "PUT" | "DELETE";
  readonly body?: unknown;
  readonly signal?: AbortSignal | undefined;
}

/** How long one request may take before the server counts as gone; long polls wait at most 20 s. */
const PATIENCE_MS = 30_000;

type Listener = (failure: Failure) => void;
const watchers: Listener[] = [];

/** Be told of every request that failed for want of a session or of a server. */
export function onFailure(listener: Listener): void {
  watchers.push(listener);
}

/** The JSON of an answer; `undefined` where it is empty. */
export async function ask<T>(path: string, options: Options = {}): Promise<T> {
  const response = await send(path, options);
  const text = await body(response);
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** The same where the numbers are somebody else's, and may be longer than ours can be. */
export async function askExact<T>(path: string, options: Options = {}): Promise<T> {
  return parseExact(await body(await send(path, options))) as T;
}

/** The text of an answer. */
export async function askText(path: string, options: Options = {}): Promise<string> {
  return body(await send(path, options));
}

/** A path with its query; what is empty or undefined is left out. */
export function withQuery(path: string, query: Readonly<Record<string, string | number | undefined>>): string {
  const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return kept.length > 0 ? `${path}?${new URLSearchParams(kept.map(([key, value]) => [key, String(value)]))}` : path;
}

/** Whether an error is one's own giving up, which nobody needs to hear about. */
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
  learnSkew(response.headers.get("Date"));
  if (!response.ok) throw told(await refusal(response));
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
  return told(new Failure("Unreachable", "the server cannot be reached", 0, "is `penstock up` still running?"));
}

function told(failure: Failure): Failure {
  if (failure.isUnreachable || failure.status === 401) for (const watcher of watchers) watcher(failure);
  return failure;
}

async function refusal(response: Response): Promise<Failure> {
  try {
    const { error } = (await response.json()) as { error: { code: string; message: string; hint?: string } };
    return new Failure(error.code, error.message, response.status, error.hint);
  } catch {
    return new Failure("Unreadable", `the server answered ${response.status} ${response.statusText}`, response.status);
  }
}
