// The live tail: every journal row as it is written.

import { useEffect, useMemo, useState } from "preact/hooks";

import { csv, download, jsonLines } from "../downloads.ts";
import { ENTRIES_MAX, Follower } from "../follower.ts";
import { Button, Command } from "../parts/button.tsx";
import { Choice, Filter } from "../parts/field.tsx";
import { Badge, Empty, PageHead, Refused } from "../parts/panel.tsx";
import { RowDetails } from "../parts/rowdetails.tsx";
import { RowList } from "../parts/rowlist.tsx";
import { updateQuery, route } from "../router.ts";
import { FILTERS, type FilterName, filtersOf, isGap, type Row } from "../rows.ts";
import { count, plural } from "../format.ts";
import { ConversationPage } from "./conversation.tsx";

/** Rows loaded at the start. */
const BACK = 500;
/** The delay after the last key before a filter applies. */
const TYPING_MS = 250;

export function TailPage({ rest }: { rest: readonly string[] }) {
  const [view, corr] = rest;
  return view === "conversation" && corr !== undefined ? <ConversationPage key={corr} corr={corr} /> : <LiveTail />;
}

function LiveTail() {
  const asked = useSettled(JSON.stringify(filtersOf(route.value.query)), TYPING_MS);
  const filters = filtersOf(JSON.parse(asked) as Record<string, string>);
  const follower = useMemo(() => new Follower(filters, { back: BACK, canSkip: true }), [asked]);
  const [opened, open] = useState<Row | undefined>(undefined);
  useEffect(() => follower.run(), [follower]);
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      const isTaken = event.target instanceof HTMLElement && event.target.closest("a, button, input, select, textarea, summary, dialog") !== null;
      if (event.key !== " " || isTaken) return;
      event.preventDefault();
      turn(follower);
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [follower]);
  // A link in the drawer changes the filters of this page, so close the drawer.
  useEffect(() => open(undefined), [asked]);
  return (
    <div class="tail">
      <PageHead title="Live tail" note="Journal rows as they are written, oldest first" actions={<Tools follower={follower} />} />
      <FilterBar />
      <Body key={asked} follower={follower} isNarrowed={Object.keys(filters).length > 0} onOpen={open} />
      {opened !== undefined && <RowDetails row={opened} onClose={() => open(undefined)} />}
    </div>
  );
}

function Body({ follower, isNarrowed, onOpen }: { follower: Follower; isNarrowed: boolean; onOpen: (row: Row) => void }) {
  const failure = follower.failure.value;
  const isEmpty = follower.version.value >= 0 && follower.reach.value !== undefined && follower.entries.length === 0;
  if (failure?.status === 404) {
    return (
      <Empty title="This server has no journal">
        <p>It runs without a data directory. To see rows here, start it with one:</p>
        <Command text="penstock up --data ./penstock-data" />
      </Empty>
    );
  }
  return (
    <div class="tail-body">
      <Refused failure={failure} />
      <RowList follower={follower} onOpen={onOpen} />
      {isEmpty && failure === undefined && (
        <div class="tail-empty">
          {isNarrowed ? (
            <Empty title="No rows match the filters">
              <p>New rows that match appear here. In a channel, kind or sender, * matches any text.</p>
            </Empty>
          ) : (
            <Empty title="No rows yet">
              <p>Send a message to see it here:</p>
              <Command text={`penstock send sam '{"text": "Good morning"}'`} />
            </Empty>
          )}
        </div>
      )}
      <Status follower={follower} />
    </div>
  );
}

function Status({ follower }: { follower: Follower }) {
  const shown = follower.version.value >= 0 ? follower.entries.length : 0;
  const gone = follower.entries.dropped;
  const waiting = follower.waiting.value;
  return (
    <div class="tail-status">
      <p class="note">
        {plural(shown, "row")} shown
        {gone > 0 && `, ${count(gone)} older rows dropped (limit ${count(ENTRIES_MAX)})`}
      </p>
      {follower.isPaused.value && (
        <Button kind="main" icon="down" onPress={() => follower.resume()}>
          <span data-waiting={waiting}>{waiting > 0 ? plural(waiting, "new row") : "Resume"}</span>
        </Button>
      )}
    </div>
  );
}

function Tools({ follower }: { follower: Follower }) {
  const isPaused = follower.isPaused.value;
  const isLive = !isPaused && follower.failure.value === undefined;
  const save = (kind: "jsonl" | "csv"): void => {
    const rows = follower.entries.slice(0, follower.entries.length).filter((entry): entry is Row => !isGap(entry));
    const name = `penstock-tail-${new Date().toISOString().replace(/[:.]/g, "-")}.${kind}`;
    if (kind === "csv") download(name, "text/csv", csv(rows));
    else download(name, "application/x-ndjson", jsonLines(rows));
  };
  return (
    <>
      <span role="status">
        <Badge tone={isLive ? "good" : "warn"}>{isLive ? "live" : isPaused ? "paused" : "disconnected"}</Badge>
      </span>
      <Button icon={isPaused ? "play" : "pause"} onPress={() => turn(follower)} isPressed={isPaused}>
        {isPaused ? "Resume" : "Pause"}
      </Button>
      <Button onPress={() => follower.clear()}>Clear</Button>
      <Button onPress={() => save("jsonl")} label="Export as JSON lines">
        JSON
      </Button>
      <Button onPress={() => save("csv")} label="Export as CSV">
        CSV
      </Button>
    </>
  );
}

const DOORS = [["", "all"], ["courier", "courier"], ["mew", "spaces"], ["streamservice", "token streams"], ["server", "server"]] as const;
const FIELDS: readonly (readonly [FilterName, string, string])[] = [
  ["channel", "Channel", "agents/*"],
  ["event", "Event", "enqueue"],
  ["kind", "Kind", "job*"],
  ["from", "From", "jen"],
  ["corr", "Correlation", ""],
];

function FilterBar() {
  const { query } = route.value;
  const isNarrowed = FILTERS.some((name) => query[name]);
  return (
    <div class="filter-bar" role="search" aria-label="Filters">
      <Filter label="Text" value={query["text"] ?? ""} placeholder="Text in bodies and ids" isMain onInput={(text) => updateQuery({ text })} />
      <Choice label="Door" value={query["door"] ?? ""} options={DOORS} onChange={(door) => updateQuery({ door })} />
      {FIELDS.map(([name, label, placeholder]) => (
        <Filter key={name} label={label} value={query[name] ?? ""} placeholder={placeholder} onInput={(value) => updateQuery({ [name]: value })} />
      ))}
      {query["id"] && <Filter label="Id" value={query["id"]} onInput={(id) => updateQuery({ id })} />}
      {isNarrowed && (
        <Button kind="quiet" icon="close" onPress={() => updateQuery(Object.fromEntries(FILTERS.map((name) => [name, undefined])))}>
          Clear filters
        </Button>
      )}
    </div>
  );
}

function turn(follower: Follower): void {
  if (follower.isPaused.value) follower.resume();
  else follower.pause();
}

/** A value after it has not changed for `ms`. */
function useSettled(value: string, ms: number): string {
  const [settled, settle] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => settle(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
