// Conditions that need the operator's attention, derived from the metrics. The pipeline's alerts come from the tables and are separate.

import { type Scrape, valueOf } from "./exposition.ts";
import { count, moment, plural } from "./format.ts";

export interface Condition {
  readonly key: string;
  readonly severity: "warning" | "critical";
  readonly text: string;
  /** What to do about it. */
  readonly hint: string;
  /** The page to open, after `#/`. */
  readonly path: readonly string[];
}

/** One part of the server as `/health` reports it. */
export interface Part {
  readonly state: "ok" | "starting" | "degraded" | "failed" | "off";
  readonly since: string;
  readonly reason?: string;
  readonly lastFailure?: { readonly at: string; readonly reason: string } | null;
  readonly action?: string | null;
}

export interface Health {
  readonly status: "ok" | "degraded" | "draining" | "refusing";
  readonly parts: Readonly<Record<string, Part>>;
}

const PART_PATHS: Readonly<Record<string, readonly string[]>> = { pipeline: ["pipeline"], lake: ["pipeline"], relay: ["tokens"] };

interface Growth {
  readonly metric: string;
  readonly severity: Condition["severity"];
  readonly text: (many: number) => string;
  readonly hint: string;
  readonly path?: readonly string[];
}

/** Counters that do not grow on a healthy server. */
const GROWTHS: readonly Growth[] = [
  {
    metric: "penstock_records_refused_total",
    severity: "critical",
    text: (many) => `The journal rejected ${plural(many, "envelope")} in the last minute`,
    hint: "check whether the disk is full or slow: `penstock doctor` measures it",
  },
  {
    metric: "penstock_settles_refused_total",
    severity: "critical",
    text: (many) => `The journal rejected ${plural(many, "settlement")} in the last minute`,
    hint: "those envelopes are redelivered when their leases expire; check the disk",
  },
  {
    metric: "penstock_q_dead_total",
    severity: "warning",
    text: (many) => `${plural(many, "envelope")} moved to dead letters in the last minute`,
    hint: "check the last error of each, fix its cause, then redrive",
    path: ["dead"],
  },
  {
    metric: "penstock_dead_letters_blocked_total",
    severity: "warning",
    text: (many) => `A dead-letter stream was full ${plural(many, "time")} in the last minute`,
    hint: "redrive or purge it, or raise its limit",
    path: ["dead"],
  },
  {
    metric: "penstock_q_drop_total",
    severity: "warning",
    text: (many) => `${plural(many, "envelope")} ${many === 1 ? "was" : "were"} dropped at a limit in the last minute`,
    hint: "a stream is full; consume faster or raise its limit",
    path: ["queues"],
  },
  {
    metric: "penstock_q_reject_total",
    severity: "warning",
    text: (many) => `${plural(many, "envelope")} ${many === 1 ? "was" : "were"} rejected at a limit in the last minute`,
    hint: "a stream is full; consume faster or raise its limit",
    path: ["queues"],
  },
  {
    metric: "penstock_slow_peers_cut_total",
    severity: "warning",
    text: (many) => `${plural(many, "connection")} ${many === 1 ? "was" : "were"} closed in the last minute for not reading`,
    hint: "a consumer is too slow for the credit that it grants",
    path: ["connections"],
  },
  {
    metric: "penstock_tokens_refused_total",
    severity: "warning",
    text: (many) => `${plural(many, "request")} had no token or an unknown one in the last minute`,
    hint: "`token.refused` in the log names the peers; a token was lost, revoked, has expired, or is mistyped: `penstock token ls` lists those that are valid",
  },
  {
    metric: "penstock_observations_dropped_total",
    severity: "warning",
    text: (many) => `${plural(many, "observation")} ${many === 1 ? "was" : "were"} not written to the journal in the last minute`,
    hint: "the disk is slower than the traffic; only observations are dropped, never facts",
  },
];

/** The condition about envelopes that fail again and again, and the reason in `explain`. */
export const HOT = "redelivery.hot";

export function conditionsOf(scrape: Scrape, minute: ReadonlyMap<string, number>, health: Health | undefined): Condition[] {
  const found: Condition[] = [];
  for (const [name, { state, since, reason = state, action }] of Object.entries(health?.parts ?? {})) {
    if (state !== "failed" && state !== "degraded") continue;
    const severity = state === "failed" ? "critical" : "warning";
    const hint = `since ${moment(since)}${action ? `; ${action}` : ""}`;
    found.push({ key: name, severity, text: `${name[0]?.toUpperCase()}${name.slice(1)}: ${reason}`, hint, path: PART_PATHS[name] ?? [] });
  }
  const hot = valueOf(scrape, "penstock_redelivery_hot") ?? 0;
  if (hot > 0) {
    const text = `${plural(hot, "envelope")} ${hot === 1 ? "fails" : "fail"} again and again`;
    const hint = "the streams are marked under Queues; open one for the last error, then correct its consumer";
    found.push({ key: HOT, severity: "warning", text, hint, path: ["queues"] });
  }
  for (const { metric, severity, text, hint, path = [] } of GROWTHS) {
    const many = minute.get(metric) ?? 0;
    if (many > 0) found.push({ key: metric, severity, text: text(many), hint, path });
  }
  return found.sort((a, b) => Number(b.severity === "critical") - Number(a.severity === "critical"));
}

export interface Service {
  readonly name: string;
  readonly state: "up" | "down" | "off" | "starting" | "degraded";
  /** What is connected or pending, as text. */
  readonly detail: string;
}

const SERVICE_STATES: Readonly<Record<Part["state"], Service["state"]>> = { ok: "up", failed: "down", degraded: "degraded", off: "off", starting: "starting" };

/** The state of each service: what `/health` reports, and numbers from the metrics. */
export function servicesOf(scrape: Scrape, spaces: number, health: Health | undefined): Service[] {
  const some = (name: string): number => scrape.get(name)?.reduce((sum, { value }) => sum + value, 0) ?? 0;
  const stateOf = (part: string): Service["state"] => SERVICE_STATES[health?.parts[part]?.state ?? "off"];
  const relay = stateOf("relay");
  const lag = valueOf(scrape, "penstock_pipeline_lag_rows");
  return [
    { name: "Queues", state: health?.status === "refusing" ? "down" : "up", detail: `${plural(some("penstock_links"), "connection")}, ${plural(some("penstock_streams"), "stream")}` },
    {
      name: "Spaces",
      state: spaces > 0 ? "up" : "off",
      detail: spaces > 0 ? `${plural(some("penstock_space_participants"), "participant")} in ${plural(spaces, "space")}` : "no space configured",
    },
    {
      name: "Token streams",
      state: relay,
      detail: relay === "off" ? "relay is off" : plural(some("penstock_relay_topics"), "topic"),
    },
    { name: "Pipeline", state: stateOf("pipeline"), detail: lag === undefined ? "writes no tables" : `${count(lag)} rows behind` },
  ];
}
