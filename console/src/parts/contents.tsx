// The envelopes of a stream that are ready, delayed or dead. Peeking does not lease them.

import { useState } from "preact/hooks";

import { written } from "../json.ts";
import { updateQuery, href, route } from "../router.ts";
import { PEEK_MAX, type Peeked, type PeekState, usePeek } from "../streams.ts";
import { ago, count, moment } from "../format.ts";
import { CopyButton } from "./button.tsx";
import { Code } from "./code.tsx";
import { Dialog } from "./dialog.tsx";
import { Tabs } from "./field.tsx";
import { Icon } from "./icon.tsx";
import { Empty, Panel, Refused } from "./panel.tsx";
import { type Column, Table } from "./table.tsx";

const STATES = [["ready", "Ready"], ["delayed", "Delayed"], ["dead", "Dead"]] as const;
type Shown = (typeof STATES)[number][0];
const NOTHING: Readonly<Record<Shown, string>> = {
  ready: "No ready envelopes",
  delayed: "No delayed envelopes",
  dead: "No dead letters",
};

const COLUMNS: readonly Column<Peeked>[] = [
  { key: "type", title: "Type", cell: ({ env }) => env.type, sort: ({ env }) => env.type },
  { key: "from", title: "From", cell: ({ env }) => env.from ?? "–", sort: ({ env }) => env.from },
  { key: "age", title: "Sent", cell: ({ env }) => (env.ts === undefined ? "–" : <span title={moment(env.ts)}>{ago(env.ts)}</span>), sort: ({ env }) => env.ts },
  { key: "attempt", title: "Attempts", isNumber: true, cell: (row) => count(attemptsOf(row)), sort: attemptsOf },
  { key: "note", title: "Note", cell: noteOf },
];

export function Contents({ stream }: { stream: string }) {
  const asked = route.value.query["state"];
  const state: Shown = STATES.find(([known]) => known === asked)?.[0] ?? "ready";
  const { data, failure } = usePeek(stream, state as PeekState);
  const [opened, open] = useState<Peeked | undefined>(undefined);
  const rows = data.value ?? [];
  const columns = [{ key: "id", title: "Envelope", cell: (row: Peeked) => <EnvelopeLink row={row} onOpen={open} /> }, ...COLUMNS];
  return (
    <Panel
      title="Contents"
      isFlush
      note={rows.length >= PEEK_MAX ? `the first ${PEEK_MAX}` : undefined}
      actions={<Tabs label="State" value={state} options={STATES} onChange={(next) => updateQuery({ state: next })} />}
    >
      <Refused failure={failure.value} />
      <Table
        label={`Envelopes: ${state}`}
        columns={columns}
        rows={rows}
        keyOf={({ seq }) => seq}
        empty={<Empty title={data.value === undefined ? "Loading…" : NOTHING[state]} />}
      />
      {opened !== undefined && <EnvelopeDetails row={opened} onClose={() => open(undefined)} />}
    </Panel>
  );
}

/** Delivery attempts; for a dead letter, those in its original stream. */
function attemptsOf({ env, attempt }: Peeked): number {
  return env.headers?.["x-courier"]?.attempts ?? attempt;
}

/** The last error, or the due time. */
function noteOf({ env, lastError, dueAt }: Peeked) {
  const end = env.headers?.["x-courier"];
  const error = lastError ?? end?.lastError ?? end?.reason;
  if (error !== undefined) return <span class="note wide">{error}</span>;
  return dueAt === undefined ? null : <span class="note">due {moment(dueAt)}</span>;
}

/** The id of an envelope, which opens its details. */
export function EnvelopeLink({ row, onOpen }: { row: Peeked; onOpen: (row: Peeked) => void }) {
  return (
    <button type="button" class="link mono" onClick={() => onOpen(row)}>
      {row.env.id}
    </button>
  );
}

/** The details of an envelope. They stay open when the envelope leaves the table. */
export function EnvelopeDetails({ row, onClose }: { row: Peeked; onClose: () => void }) {
  const { env } = row;
  return (
    <Dialog title={env.type ?? env.id} side onClose={onClose} actions={<CopyButton text={written(env)} label="Copy envelope" />}>
      <div class="stack">
        <p class="ways">
          <a class="button" href={href(["tail", "conversation", env.corr ?? env.id])}>
            <Icon name="tree" />
            Conversation
          </a>
          <a class="button" href={href(["tail"], { id: env.id })}>
            Show in live tail
          </a>
        </p>
        <p class="note">
          {row.state} in {row.stream}, sequence number {count(row.seq)}
          {row.holder === undefined ? "" : `, leased to ${row.holder}`}
          {row.lastError === undefined ? "" : `, last error: ${row.lastError}`}
        </p>
        <Code value={env} label="envelope" />
      </div>
    </Dialog>
  );
}
