// Why a stream flows or does not, who takes from it, and who holds what for how long.

import { useState } from "preact/hooks";

import { serverTime } from "../skew.ts";
import { type Consumer, type Peeked, type Reason, standing, type Standing, useExplanation, usePeek } from "../streams.ts";
import { count, span } from "../words.ts";
import { useNow } from "./banner.tsx";
import { EnvelopeDetails, EnvelopeLink } from "./contents.tsx";
import { Badge, Empty, Panel, Refused, type Tone } from "./panel.tsx";
import { type Column, Table } from "./table.tsx";

export function Why({ stream }: { stream: string }) {
  const { data, failure } = useExplanation(stream);
  const now = serverTime(useNow());
  const told = data.value;
  return (
    <Panel
      title="Why is nothing flowing?"
      actions={told && <Badge tone={told.flowing ? "good" : isTrouble(told.reasons) ? "warn" : "plain"}>{told.flowing ? "flowing" : "at rest"}</Badge>}
    >
      <Refused failure={failure.value} />
      {told === undefined ? (
        <p class="note">Asking…</p>
      ) : told.reasons.length === 0 ? (
        <p>{told.flowing ? "It flows: there are envelopes, and consumers that take them." : "Everything that came was taken."}</p>
      ) : (
        <ul class="reasons">
          {told.reasons.map((reason) => (
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

/** What is how things are, and no trouble. */
const HARMLESS = new Set(["empty", "all_leased", "delayed"]);

function isTrouble(reasons: readonly Reason[]): boolean {
  return reasons.some(({ code }) => !HARMLESS.has(code));
}

function more({ count: many, consumers, nextExpiryMs, nextDueAt }: Reason, now: number): string {
  const facts = [
    many === undefined ? "" : `${count(many)} of them`,
    consumers === undefined ? "" : `${count(consumers)} of the consumers`,
    nextExpiryMs === undefined ? "" : `the next lease ends in ${span(Math.max(0, nextExpiryMs))}`,
    nextDueAt === undefined ? "" : `the next is due in ${span(Math.max(0, nextDueAt - now))}`,
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
    help: "starved: it granted no credit, so it gets nothing",
    cell: (consumer) => {
      const [tone, word] = STANDINGS[standing(consumer)];
      return <Badge tone={tone}>{word}</Badge>;
    },
    sort: standing,
  },
  { key: "credit", title: "Credit", isNumber: true, help: "how many more it asked for", cell: ({ credit }) => count(credit), sort: ({ credit }) => credit },
  { key: "inflight", title: "Holds", isNumber: true, cell: ({ inflight }) => count(inflight), sort: ({ inflight }) => inflight },
  { key: "delivered", title: "Had", isNumber: true, help: "deliveries since it came", cell: ({ delivered }) => count(delivered), sort: ({ delivered }) => delivered },
];

export function Consumers({ stream }: { stream: string }) {
  const { data } = useExplanation(stream);
  return (
    <Panel title="Who waits and who works" isFlush isSteady>
      <Table
        label="Consumers"
        columns={CONSUMERS}
        rows={data.value?.consumers ?? []}
        keyOf={({ holder }) => holder}
        empty={
          <Empty title={data.value === undefined ? "Asking…" : "Nobody is subscribed."}>
            {data.value !== undefined && <p>Agents that pull come and go with each request, and are not listed.</p>}
          </Empty>
        }
      />
    </Panel>
  );
}

export function Leases({ stream }: { stream: string }) {
  const { data, failure } = usePeek(stream, "inflight");
  const [opened, open] = useState<Peeked | undefined>(undefined);
  const now = serverTime(useNow(250));
  const columns: readonly Column<Peeked>[] = [
    { key: "id", title: "Envelope", cell: (row) => <EnvelopeLink row={row} onOpen={open} /> },
    { key: "type", title: "Type", cell: ({ env }) => env.type, sort: ({ env }) => env.type },
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
    <Panel title="Leases" isFlush isSteady note="what is with a consumer; it comes back when the time is over">
      <Refused failure={failure.value} />
      <Table
        label="Leases"
        columns={columns}
        rows={data.value ?? []}
        keyOf={({ seq }) => seq}
        order={{ key: "left", isFalling: false }}
        empty={<Empty title={data.value === undefined ? "Asking…" : "Nothing is in flight."} />}
      />
      {opened !== undefined && <EnvelopeDetails row={opened} onClose={() => open(undefined)} />}
    </Panel>
  );
}

/** Seconds that run down; the last ones stand out. */
function TimeLeft({ ms }: { ms: number }) {
  const left = Math.max(0, ms);
  return <span class={left < 5_000 ? "time-left warn" : "time-left"}>{left === 0 ? "over" : `${(left / 1_000).toFixed(1)} s`}</span>;
}
