// The delivery status of a stream, its consumers and its leases.

import { useState } from "preact/hooks";

import { preview } from "../json.ts";
import { serverTime } from "../skew.ts";
import { type Consumer, type Explanation, type Peeked, type Reason, standing, type Standing, useExplanation, usePage } from "../streams.ts";
import { count, plural, span } from "../format.ts";
import { useNow } from "./banner.tsx";
import { EnvelopeDetails, EnvelopeLink } from "./contents.tsx";
import { Badge, Empty, Panel, Refused, type Tone } from "./panel.tsx";
import { type Column, Table } from "./table.tsx";

export function DeliveryStatus({ stream }: { stream: string }) {
  const { data, failure } = useExplanation(stream);
  const now = serverTime(useNow());
  const status = data.value;
  return (
    <Panel
      title="Delivery status"
      actions={status && <StatusBadge status={status} />}
    >
      <Refused failure={failure.value} />
      {status === undefined ? (
        <p class="note">Loading…</p>
      ) : status.reasons.length === 0 ? (
        <p>{status.flowing ? "Flowing: consumers receive envelopes." : "Idle: no messages"}</p>
      ) : (
        <ul class="reasons">
          {status.reasons.map((reason) => (
            <li key={reason.code}>
              <Badge tone={HARMLESS.has(reason.code) ? "plain" : "warn"}>{reason.code.replaceAll("_", " ")}</Badge>
              <span>
                {capital(reason.message)}.{more(reason, now)}
              </span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

/** Reasons that are part of normal operation. */
const HARMLESS = new Set(["empty", "all_leased", "delayed"]);

function StatusBadge({ status: { flowing, reasons } }: { status: Explanation }) {
  if (flowing) return <Badge tone="good">flowing</Badge>;
  return reasons.some(({ code }) => !HARMLESS.has(code)) ? <Badge tone="warn">blocked</Badge> : <Badge>idle</Badge>;
}

function more({ count: many, consumers, nextExpiryMs, nextDueAt }: Reason, now: number): string {
  const facts = [
    many === undefined ? "" : plural(many, "envelope"),
    consumers === undefined ? "" : plural(consumers, "consumer"),
    nextExpiryMs === undefined ? "" : `next lease expires in ${span(Math.max(0, nextExpiryMs))}`,
    nextDueAt === undefined ? "" : `next envelope due in ${span(Math.max(0, nextDueAt - now))}`,
  ].filter(Boolean);
  return facts.length > 0 ? ` ${capital(facts.join(", "))}.` : "";
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const STANDINGS: Readonly<Record<Standing, readonly [tone: Tone, word: string]>> = {
  working: ["good", "working"],
  waiting: ["plain", "waiting"],
  starved: ["warn", "starved"],
  slow: ["bad", "not reading"],
};

const CONSUMERS: readonly Column<Consumer>[] = [
  { key: "holder", title: "Consumer", cell: ({ holder }) => holder, sort: ({ holder }) => holder },
  {
    key: "state",
    title: "State",
    help: "starved: granted no credit, so it receives nothing",
    cell: (consumer) => {
      const [tone, word] = STANDINGS[standing(consumer)];
      return <Badge tone={tone}>{word}</Badge>;
    },
    sort: standing,
  },
  { key: "credit", title: "Credit", isNumber: true, help: "envelopes that it can still receive", cell: ({ credit }) => count(credit), sort: ({ credit }) => credit },
  { key: "inflight", title: "In flight", isNumber: true, cell: ({ inflight }) => count(inflight), sort: ({ inflight }) => inflight },
  { key: "delivered", title: "Delivered", isNumber: true, help: "deliveries since it subscribed", cell: ({ delivered }) => count(delivered), sort: ({ delivered }) => delivered },
];

export function Consumers({ stream }: { stream: string }) {
  const { data } = useExplanation(stream);
  return (
    <Panel title="Consumers" isFlush isSteady>
      <Table
        label="Consumers"
        columns={CONSUMERS}
        rows={data.value?.consumers ?? []}
        keyOf={({ holder }) => holder}
        empty={
          <Empty title={data.value === undefined ? "Loading…" : "No subscribers"}>
            {data.value !== undefined && <p>Clients that pull over HTTP are not listed.</p>}
          </Empty>
        }
      />
    </Panel>
  );
}

export function Leases({ stream }: { stream: string }) {
  const { data, failure } = usePage(stream, "inflight", 0);
  const [opened, open] = useState<Peeked | undefined>(undefined);
  const now = serverTime(useNow(250));
  const columns: readonly Column<Peeked>[] = [
    { key: "id", title: "Envelope", cell: (row) => <EnvelopeLink row={row} onOpen={open} /> },
    { key: "type", title: "Type", cell: ({ env }) => env.type, sort: ({ env }) => env.type },
    { key: "payload", title: "Payload", cell: ({ env }) => <span class="preview mono">{preview(env.payload)}</span> },
    { key: "holder", title: "Holder", cell: ({ holder }) => holder ?? "–", sort: ({ holder }) => holder },
    { key: "attempt", title: "Attempt", isNumber: true, cell: ({ attempt }) => count(attempt), sort: ({ attempt }) => attempt },
    {
      key: "left",
      title: "Time left",
      isNumber: true,
      cell: ({ leaseExpiresAt }) => <TimeLeft ms={(leaseExpiresAt ?? now) - now} />,
      sort: ({ leaseExpiresAt }) => leaseExpiresAt,
    },
  ];
  return (
    <Panel title="Leases" isFlush isSteady note="envelopes in flight; redelivered when the lease expires">
      <Refused failure={failure.value} />
      <Table
        label="Leases"
        columns={columns}
        rows={data.value?.rows ?? []}
        keyOf={({ seq }) => seq}
        order={{ key: "left", isFalling: false }}
        empty={<Empty title={data.value === undefined ? "Loading…" : "No envelopes in flight"} />}
      />
      {opened !== undefined && <EnvelopeDetails row={opened} onClose={() => open(undefined)} />}
    </Panel>
  );
}

/** The remaining time of a lease, highlighted below five seconds. */
function TimeLeft({ ms }: { ms: number }) {
  const left = Math.max(0, ms);
  return <span class={left < 5_000 ? "time-left warn" : "time-left"}>{left === 0 ? "expired" : `${(left / 1_000).toFixed(1)} s`}</span>;
}
