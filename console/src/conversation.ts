// The envelopes of one conversation as a tree: replies below requests, with wait and processing times.
//
// The parent of an envelope is the last known envelope in its `refs` (in a space: `correlation_id`), otherwise the envelope whose id is the
// correlation id. An envelope without a known parent is a root, and so is one whose parent would close a cycle.

import { instant, type Row } from "./rows.ts";

export interface Step {
  readonly key: string;
  readonly id: string;
  readonly door: string;
  readonly channel: string;
  readonly kind: string;
  readonly sender: string;
  /** Milliseconds since 1970; the later times are undefined while the envelope is pending. */
  readonly sentAt: number;
  readonly firstAt: number | undefined;
  readonly settledAt: number | undefined;
  readonly outcome: string | undefined;
  readonly reason: string | undefined;
  readonly attempts: number;
  readonly row: Row;
}

export interface Branch {
  readonly step: Step;
  readonly depth: number;
}

export interface Conversation {
  /** Parents before their children, siblings by time. */
  readonly branches: readonly Branch[];
  readonly startedAt: number;
  readonly endedAt: number;
}

const ARRIVALS = new Set(["enqueue", "envelope"]);
const OUTCOMES = new Set(["ack", "dead", "drop", "purge", "move"]);

interface Draft {
  step: Step;
  parents: readonly string[];
}

export function conversationOf(rows: readonly Row[], corr: string): Conversation {
  const drafts = new Map<string, Draft>();
  const keys = new Map<string, string>();
  for (const row of [...rows].sort((a, b) => a.offset - b.offset)) {
    const id = row.id;
    if (id === undefined) continue;
    const key = `${row.channel ?? ""}\n${id}`;
    if (ARRIVALS.has(row.event)) {
      if (!drafts.has(key)) drafts.set(key, { step: begun(key, id, row), parents: refsOf(row) });
      if (!keys.has(id)) keys.set(id, key);
    } else {
      const draft = drafts.get(key);
      if (draft !== undefined) draft.step = continued(draft.step, row);
    }
  }
  return arranged(drafts, keys, corr);
}

function arranged(drafts: ReadonlyMap<string, Draft>, keys: ReadonlyMap<string, string>, corr: string): Conversation {
  const children = new Map<string | undefined, Step[]>();
  const parents = new Map<string, string | undefined>();
  for (const [key, { step, parents: refs }] of drafts) {
    const named = [...refs].reverse().concat(corr).map((ref) => keys.get(ref));
    const parent = named.find((candidate) => candidate !== undefined && !isAbove(parents, key, candidate));
    parents.set(key, parent);
    children.set(parent, [...(children.get(parent) ?? []), step]);
  }
  const branches: Branch[] = [];
  const walk = (parent: string | undefined, depth: number): void => {
    for (const step of (children.get(parent) ?? []).sort((a, b) => a.sentAt - b.sentAt)) {
      branches.push({ step, depth });
      walk(step.key, depth + 1);
    }
  };
  walk(undefined, 0);
  const steps = branches.map(({ step }) => step);
  const times = steps.flatMap(({ sentAt, firstAt, settledAt }) => [sentAt, firstAt ?? sentAt, settledAt ?? sentAt]);
  const least = times.reduce((a, b) => Math.min(a, b), Infinity);
  const most = times.reduce((a, b) => Math.max(a, b), -Infinity);
  return { branches, startedAt: Number.isFinite(least) ? least : 0, endedAt: Number.isFinite(most) ? most : 0 };
}

/** Whether `key` is `candidate` or one of its ancestors, so that the link would close a cycle. */
function isAbove(parents: ReadonlyMap<string, string | undefined>, key: string, candidate: string): boolean {
  for (let at: string | undefined = candidate; at !== undefined; at = parents.get(at)) if (at === key) return true;
  return false;
}

function begun(key: string, id: string, row: Row): Step {
  return {
    key,
    id,
    door: row.door,
    channel: row.channel ?? "",
    kind: row.kind ?? "",
    sender: row.sender ?? "",
    sentAt: instant(row.recorded_at),
    firstAt: undefined,
    settledAt: undefined,
    outcome: undefined,
    reason: undefined,
    attempts: 0,
    row,
  };
}

function continued(step: Step, row: Row): Step {
  const at = instant(row.recorded_at);
  const firstAt = step.firstAt ?? (row.first_at === undefined ? undefined : instant(row.first_at));
  const attempts = Math.max(step.attempts, row.attempt ?? 0);
  const reason = row.reason ?? step.reason;
  if (!OUTCOMES.has(row.event)) return { ...step, firstAt, attempts, reason };
  return { ...step, firstAt, attempts, reason, settledAt: at, outcome: row.event };
}

/** The ids that an envelope refers to. A truncated body is not valid JSON, so it is searched with a regular expression. */
function refsOf(row: Row): readonly string[] {
  if (row.body === undefined) return [];
  try {
    const body = JSON.parse(row.body) as { refs?: unknown; correlation_id?: unknown };
    return [...texts(body.refs), ...texts(body.correlation_id)];
  } catch {
    const found = /"(?:refs|correlation_id)"\s*:\s*\[([^\]]*)\]/.exec(row.body)?.[1] ?? "";
    return [...found.matchAll(/"((?:[^"\\]|\\.)*)"/g)].map((match) => match[1] ?? "");
  }
}

function texts(value: unknown): string[] {
  if (typeof value === "string") return [value];
  return Array.isArray(value) ? value.filter((item): item is string => typeof item === "string") : [];
}
