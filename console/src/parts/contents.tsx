// The envelopes of a stream that are ready, delayed or dead. Peeking does not lease them.

import { useEffect, useState } from "preact/hooks";

import { preview, written } from "../json.ts";
import { updateQuery, href, route } from "../router.ts";
import { asFailure, type Failure, isAbort } from "../request.ts";
import { type Found, MATCHES_MAX, type Peeked, search, usePage } from "../streams.ts";
import { ago, count, moment, plural } from "../format.ts";
import { Button, CopyButton } from "./button.tsx";
import { Code } from "./code.tsx";
import { Dialog } from "./dialog.tsx";
import { Filter, Tabs, Tick } from "./field.tsx";
import { Icon } from "./icon.tsx";
import { Empty, Panel, Refused } from "./panel.tsx";
import { Repairs } from "./repairs.tsx";
import { type Column, Table } from "./table.tsx";

const STATES = [["ready", "Ready"], ["delayed", "Delayed"], ["dead", "Dead"]] as const;
type Shown = (typeof STATES)[number][0];
/** The title and the text of each empty state. */
const NOTHING: Readonly<Record<Shown, readonly [string, string]>> = {
  ready: ["No ready envelopes", "Nothing waits for a consumer."],
  delayed: ["No delayed envelopes", "Envelopes with a due time, and those that wait for their next attempt, appear here."],
  dead: ["No dead letters", "Envelopes that failed too often, or that a consumer gave up, appear here."],
};

const NONE: ReadonlySet<string> = new Set();

const COLUMNS: readonly Column<Peeked>[] = [
  { key: "type", title: "Type", cell: ({ env }) => env.type, sort: ({ env }) => env.type },
  { key: "from", title: "From", cell: ({ env }) => env.from ?? "–", sort: ({ env }) => env.from },
  { key: "payload", title: "Payload", cell: ({ env }) => <span class="preview mono">{preview(env.payload)}</span> },
  { key: "age", title: "Sent", cell: ({ env }) => (env.ts === undefined ? "–" : <span title={moment(env.ts)}>{ago(env.ts)}</span>), sort: ({ env }) => env.ts },
  { key: "attempt", title: "Attempts", isNumber: true, cell: (row) => count(attemptsOf(row)), sort: attemptsOf },
  { key: "note", title: "Error or due time", cell: noteOf },
];

/** `onChange` is called when envelopes were dropped, redriven or resent. */
export function Contents({ stream, onChange }: { stream: string; onChange: () => void }) {
  const asked = route.value.query["state"];
  const state: Shown = STATES.find(([known]) => known === asked)?.[0] ?? "ready";
  // The pages before this one, by the sequence number that they begin after.
  const [trail, setTrail] = useState<readonly number[]>([0]);
  const { data, failure, refresh } = usePage(stream, state, trail.at(-1) ?? 0);
  const [opened, open] = useState<Peeked | undefined>(undefined);
  // A selection counts only in the stream and state in which it was made.
  const place = `${state} ${stream}`;
  const [selection, select] = useState({ place, ids: NONE });
  const chosen = selection.place === place ? selection.ids : NONE;
  const choose = (ids: ReadonlySet<string>): void => select({ place, ids });
  const filter = route.value.query["contents"] ?? "";
  const page = data.value;
  const found = useSearch(stream, state, filter);
  const rows = filter === "" ? (page?.rows ?? []) : (found.rows ?? []);
  // The last page is gone when its envelopes are.
  useEffect(() => {
    if (page?.rows.length === 0 && trail.length > 1) setTrail(trail.slice(0, -1));
  }, [page, trail]);
  const picked = rows.filter(({ env }) => chosen.has(env.id));
  const pick = (ids: readonly string[], isPicked: boolean): void =>
    choose(new Set([...chosen].filter((id) => !ids.includes(id)).concat(isPicked ? ids : [])));
  const done = (): void => {
    choose(NONE);
    open(undefined);
    refresh();
    found.refresh();
    onChange();
  };
  const columns: readonly Column<Peeked>[] = [
    {
      key: "pick",
      title: <Tick label="Select all" isOn={rows.length > 0 && picked.length === rows.length} onTurn={(isOn) => pick(rows.map(({ env }) => env.id), isOn)} />,
      cell: ({ env }) => <Tick label={`Select ${env.id}`} isOn={chosen.has(env.id)} onTurn={(isOn) => pick([env.id], isOn)} />,
    },
    { key: "id", title: "Envelope", cell: (row) => <EnvelopeLink row={row} onOpen={open} /> },
    ...COLUMNS,
  ];
  return (
    <Panel
      title="Contents"
      isFlush
      note={filter === "" ? undefined : <span role="status">{found.progress}</span>}
      actions={
        <>
          {picked.length > 0 && <Repairs rows={picked} onDone={done} />}
          <Filter label="Filter envelopes" value={filter} placeholder="Filter by any text" onInput={(contents) => updateQuery({ contents })} />
          <Tabs
            label="State"
            value={state}
            options={STATES}
            onChange={(next) => {
              setTrail([0]);
              updateQuery({ state: next });
            }}
          />
        </>
      }
    >
      <Refused failure={filter === "" ? failure.value : found.failure} />
      <Table
        label={`Envelopes: ${state}`}
        columns={columns}
        rows={rows}
        keyOf={({ seq }) => seq}
        empty={
          filter === "" ? (
            <Empty title={page === undefined ? "Loading…" : NOTHING[state][0]}>
              <p>{NOTHING[state][1]}</p>
            </Empty>
          ) : (
            <Empty title={found.isOver ? "No envelope matches the filter" : "Searching…"} />
          )
        }
      />
      {filter === "" && (trail.length > 1 || page?.next != null) && (
        <div class="pages actions">
          <Button isDisabled={trail.length === 1} onPress={() => setTrail(trail.slice(0, -1))}>
            Previous page
          </Button>
          <span class="note">Page {count(trail.length)}</span>
          <Button isDisabled={page?.next == null} onPress={() => setTrail([...trail, page?.next ?? 0])}>
            Next page
          </Button>
        </div>
      )}
      {opened !== undefined && <EnvelopeDetails row={opened} onClose={() => open(undefined)} onRepaired={done} />}
    </Panel>
  );
}

/** Wait after a key before the search begins. */
const TYPING_MS = 250;

/** The envelopes of all pages that contain a text. */
function useSearch(stream: string, state: Shown, text: string) {
  const [found, tell] = useState<Found | undefined>(undefined);
  const [failure, fail] = useState<Failure | undefined>(undefined);
  const [round, again] = useState(0);
  useEffect(() => {
    tell(undefined);
    fail(undefined);
    if (text === "") return undefined;
    const stop = new AbortController();
    const timer = setTimeout(() => {
      search(stream, state, text, tell, stop.signal).catch((error: unknown) => {
        if (!isAbort(error)) fail(asFailure(error));
      });
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [stream, state, text, round]);
  const { rows = [], looked = 0, isOver = false, next = null } = found ?? {};
  const matches = plural(rows.length, "match", "matches");
  const progress = !isOver
    ? `${plural(looked, "envelope")} searched, ${matches} so far`
    : `${rows.length >= MATCHES_MAX && next !== null ? `the first ${matches}` : matches} in ${plural(looked, "envelope")}`;
  return { rows, isOver, progress, failure, refresh: () => again(round + 1) };
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

interface DetailsProps {
  readonly row: Peeked;
  readonly onClose: () => void;
  /** Offers to redrive, edit and drop the envelope; called afterwards. */
  readonly onRepaired?: () => void;
}

/** The details of an envelope. They stay open when the envelope leaves the table. */
export function EnvelopeDetails({ row, onClose, onRepaired }: DetailsProps) {
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
          {onRepaired !== undefined && <Repairs rows={[row]} onDone={onRepaired} />}
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
