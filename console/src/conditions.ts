// Conditions that need the operator's attention, derived from the metrics. The pipeline's alerts come from the tables and are separate.

import { type Scrape, valueOf } from "./exposition.ts";
import { count, plural } from "./format.ts";

export interface Condition {
  readonly key: string;
  readonly severity: "warning" | "critical";
  readonly text: string;
  /** What to do about it. */
  readonly hint: string;
  /** The page to open, after `#/`. */
  readonly path: readonly string[];
}

export interface Health {
  readonly status: string;
  readonly uptime: number;
  readonly journal?: { readonly ok: boolean; readonly trouble: string | null };
}

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
    path: ["queues"],
  },
  {
    metric: "penstock_dead_letters_blocked_total",
    severity: "warning",
    text: (many) => `A dead-letter stream was full ${plural(many, "time")} in the last minute`,
    hint: "redrive or purge it, or raise its limit",
    path: ["queues"],
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
    path: ["queues"],
  },
  {
    metric: "penstock_observations_dropped_total",
    severity: "warning",
    text: (many) => `${plural(many, "observation")} ${many === 1 ? "was" : "were"} not written to the journal in the last minute`,
    hint: "the disk is slower than the traffic; only observations are dropped, never facts",
  },
];

export function conditionsOf(scrape: Scrape, minute: ReadonlyMap<string, number>, health: Health | undefined): Condition[] {
  const found: Condition[] = [];
  const trouble = health?.journal?.ok === false ? (health.journal.trouble ?? "write failed") : undefined;
  if (trouble !== undefined) {
    found.push(critical("journal", `Journal error: ${trouble}`, "the server accepts no new envelopes until the journal can write again; check the disk"));
  }
  if (valueOf(scrape, "penstock_relay_up") === 0) {
    found.push(critical("relay", "The token stream relay is down", "the server restarts it; the server log contains the reason"));
  }
  if (valueOf(scrape, "penstock_pipeline_halted") === 1) {
    found.push(critical("pipeline", "The pipeline is halted and needs manual action", "`penstock pipeline status` shows the reason and what to do", ["pipeline"]));
  }
  const hot = valueOf(scrape, "penstock_redelivery_hot") ?? 0;
  if (hot > 0) {
    const text = `${plural(hot, "envelope")} ${hot === 1 ? "fails" : "fail"} again and again`;
    const hint = "the streams are marked under Queues; open one for the last error, then correct its consumer";
    found.push({ key: "redelivery.hot", severity: "warning", text, hint, path: ["queues"] });
  }
  for (const { metric, severity, text, hint, path = [] } of GROWTHS) {
    const many = minute.get(metric) ?? 0;
    if (many > 0) found.push({ key: metric, severity, text: text(many), hint, path });
  }
  return found.sort((a, b) => Number(b.severity === "critical") - Number(a.severity === "critical"));
}

function critical(key: string, text: string, hint: string, path: readonly string[] = []): Condition {
  return { key, severity: "critical", text, hint, path };
}

export interface Service {
  readonly name: string;
  readonly state: "up" | "down" | "off" | "starting" | "halted";
  /** What is connected or pending, as text. */
  readonly detail: string;
}

/** The state of each service, as far as the metrics show it. */
export function servicesOf(scrape: Scrape, spaces: number, pipeline: string | undefined): Service[] {
  const some = (name: string): number => scrape.get(name)?.reduce((sum, { value }) => sum + value, 0) ?? 0;
  const relay = valueOf(scrape, "penstock_relay_up");
  const lag = valueOf(scrape, "penstock_pipeline_lag_rows");
  return [
    { name: "Queues", state: "up", detail: `${plural(some("penstock_links"), "connection")}, ${plural(some("penstock_streams"), "stream")}` },
    {
      name: "Spaces",
      state: spaces > 0 ? "up" : "off",
      detail: spaces > 0 ? `${plural(some("penstock_space_participants"), "participant")} in ${plural(spaces, "space")}` : "no space configured",
    },
    {
      name: "Token streams",
      state: relay === undefined ? "off" : relay === 1 ? "up" : "down",
      detail: relay === undefined ? "relay is off" : plural(some("penstock_relay_topics"), "topic"),
    },
    { name: "Pipeline", state: pipelineState(scrape, pipeline), detail: lag === undefined ? "writes no tables" : `${count(lag)} rows behind` },
  ];
}

function pipelineState(scrape: Scrape, reported: string | undefined): Service["state"] {
  if (reported === "starting" || reported === "halted" || reported === "off") return reported;
  const isUp = valueOf(scrape, "penstock_pipeline_up");
  if (isUp === undefined) return "off";
  if (valueOf(scrape, "penstock_pipeline_halted") === 1) return "halted";
  return isUp === 1 ? "up" : "down";
}
