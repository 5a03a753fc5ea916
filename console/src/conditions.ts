// What an operator should know of without looking for it: worked out from the metrics, beside the alerts that the pipeline finds in the tables.

import { type Scrape, valueOf } from "./exposition.ts";
import { count, plural } from "./words.ts";

export interface Condition {
  readonly key: string;
  readonly severity: "warning" | "critical";
  readonly text: string;
  /** What to do about it. */
  readonly hint: string;
  /** Where to look, after `#/`. */
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

/** Counters that should stand still. */
const GROWTHS: readonly Growth[] = [
  {
    metric: "penstock_records_refused_total",
    severity: "critical",
    text: (many) => `The journal refused ${plural(many, "envelope")} in the last minute`,
    hint: "is the disk full or slow? `penstock doctor` measures it",
  },
  {
    metric: "penstock_settles_refused_total",
    severity: "critical",
    text: (many) => `The journal refused ${plural(many, "settle")} in the last minute`,
    hint: "those envelopes come again when their leases end; look at the disk",
  },
  {
    metric: "penstock_q_dead_total",
    severity: "warning",
    text: (many) => `${plural(many, "envelope")} went to the dead letters in the last minute`,
    hint: "look at the last error of each, mend its cause, then redrive",
    path: ["queues"],
  },
  {
    metric: "penstock_dead_letters_blocked_total",
    severity: "warning",
    text: (many) => `A stream of dead letters was full ${plural(many, "time")} in the last minute`,
    hint: "redrive or purge it, or raise its bound",
    path: ["queues"],
  },
  {
    metric: "penstock_q_drop_total",
    severity: "warning",
    text: (many) => `${plural(many, "envelope")} ${many === 1 ? "was" : "were"} dropped at a bound in the last minute`,
    hint: "a stream is full; consume faster or raise its bound",
    path: ["queues"],
  },
  {
    metric: "penstock_q_reject_total",
    severity: "warning",
    text: (many) => `${plural(many, "envelope")} ${many === 1 ? "was" : "were"} refused at a bound in the last minute`,
    hint: "a stream is full; consume faster or raise its bound",
    path: ["queues"],
  },
  {
    metric: "penstock_slow_peers_cut_total",
    severity: "warning",
    text: (many) => `${plural(many, "connection")} ${many === 1 ? "was" : "were"} cut off in the last minute for not reading`,
    hint: "a consumer is too slow for the credit it grants",
    path: ["queues"],
  },
  {
    metric: "penstock_observations_dropped_total",
    severity: "warning",
    text: (many) => `${plural(many, "observation")} did not reach the journal in the last minute`,
    hint: "the disk is slower than the traffic; facts are never dropped",
  },
];

export function conditionsOf(scrape: Scrape, minute: ReadonlyMap<string, number>, health: Health | undefined): Condition[] {
  const found: Condition[] = [];
  const trouble = health?.journal?.ok === false ? (health.journal.trouble ?? "it cannot write") : undefined;
  if (trouble !== undefined) {
    found.push(critical("journal", `The journal is in trouble: ${trouble}`, "nothing new is accepted until it can write again; look at the disk"));
  }
  if (valueOf(scrape, "penstock_relay_up") === 0) {
    found.push(critical("relay", "The relay of token streams is down", "it is started again by itself; the server's log says why it ended"));
  }
  if (valueOf(scrape, "penstock_pipeline_halted") === 1) {
    found.push(critical("pipeline", "The pipeline has halted and waits for a person", "`penstock pipeline status` says why and what to do", ["pipeline"]));
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

export interface Door {
  readonly name: string;
  readonly state: "up" | "down" | "off" | "starting" | "halted";
  /** How many are there, in words. */
  readonly who: string;
}

/** How each door stands, as far as the metrics tell. */
export function doorsOf(scrape: Scrape, spaces: number, pipeline: string | undefined): Door[] {
  const some = (name: string): number => scrape.get(name)?.reduce((sum, { value }) => sum + value, 0) ?? 0;
  const relay = valueOf(scrape, "penstock_relay_up");
  const lag = valueOf(scrape, "penstock_pipeline_lag_rows");
  return [
    { name: "Queues", state: "up", who: `${plural(some("penstock_links"), "connection")}, ${plural(some("penstock_streams"), "stream")}` },
    {
      name: "Spaces",
      state: spaces > 0 ? "up" : "off",
      who: spaces > 0 ? `${plural(some("penstock_space_participants"), "participant")} in ${plural(spaces, "space")}` : "none is configured",
    },
    {
      name: "Token streams",
      state: relay === undefined ? "off" : relay === 1 ? "up" : "down",
      who: relay === undefined ? "the relay is off" : plural(some("penstock_relay_topics"), "topic"),
    },
    { name: "Pipeline", state: pipelineState(scrape, pipeline), who: lag === undefined ? "no tables are written" : `${count(lag)} rows behind` },
  ];
}

function pipelineState(scrape: Scrape, told: string | undefined): Door["state"] {
  if (told === "starting" || told === "halted" || told === "off") return told;
  const isUp = valueOf(scrape, "penstock_pipeline_up");
  if (isUp === undefined) return "off";
  if (valueOf(scrape, "penstock_pipeline_halted") === 1) return "halted";
  return isUp === 1 ? "up" : "down";
}
