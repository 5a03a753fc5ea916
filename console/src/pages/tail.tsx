// Every row of the journal as it is written, from every door.

import { useEffect, useMemo, useState } from "preact/hooks";

import { csv, download, jsonLines } from "../downloads.ts";
import { ENTRIES_MAX, Follower } from "../follower.ts";
import { Button, Command } from "../parts/button.tsx";
import { Choice, Filter } from "../parts/field.tsx";
import { Badge, Empty, PageHead, Refused } from "../parts/panel.tsx";
import { RowDetails } from "../parts/rowdetails.tsx";
import { RowList } from "../parts/rowlist.tsx";
import { amend, place } from "../place.ts";
import { FILTERS, type FilterName, filtersOf, isGap, type Row } from "../rows.ts";
import { count, plural } from "../words.ts";
import { ConversationPage } from "./conversation.tsx";

/** Rows that are there at once. */
const BACK = 500;
/** How long after the last letter a filter counts. */
const TYPING_MS = 250;

export function TailPage({ rest }: { rest: readonly string[] }) {
  const [view, corr] = rest;
  return view === "conversation" && corr !== undefined ? <ConversationPage key={corr} corr={corr} /> : <LiveTail />;
}

function LiveTail() {
  const asked = useSettled(JSON.stringify(filtersOf(place.value.query)), TYPING_MS);
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
  // A link in the drawer leads to another view of the same page; the drawer belongs to the view before.
  useEffect(() => open(undefined), [asked]);
  return (
    <div class="tail">
      <PageHead title="Live tail" note="Every row of the journal as it is written, oldest first." actions={<Tools follower={follower} />} />
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
      <Empty title="This server keeps no journal, so there is nothing to follow.">
        <p>It was started without a data directory. With one, every row shows up here:</p>
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
            <Empty title="Nothing passes the filters yet.">
              <p>Rows that pass show up as they are written. A channel, a kind and a sender may hold *, which stands for anything.</p>
            </Empty>
          ) : (
            <Empty title="Nothing has happened yet.">
              <p>Send something, and it shows up here:</p>
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
        {plural(shown, "row")} kept
        {gone > 0 && `, ${count(gone)} older ones let go (the page keeps ${count(ENTRIES_MAX)})`}
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
        <Badge tone={isLive ? "good" : "warn"}>{isLive ? "live" : isPaused ? "paused" : "not live"}</Badge>
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

const DOORS = [["", "every door"], ["courier", "courier"], ["mew", "spaces"], ["streamservice", "token streams"], ["server", "server"]] as const;
const FIELDS: readonly (readonly [FilterName, string, string])[] = [
  ["channel", "Channel", "agents/*"],
  ["event", "Event", "enqueue"],
  ["kind", "Kind", "job*"],
  ["from", "From", "jen"],
  ["corr", "Correlation", ""],
];

function FilterBar() {
  const { query } = place.value;
  const isNarrowed = FILTERS.some((name) => query[name]);
  return (
    <div class="filter-bar" role="search" aria-label="Filters">
      <Filter label="Text" value={query["text"] ?? ""} placeholder="Text in bodies and ids" isMain onInput={(text) => amend({ text })} />
      <Choice label="Door" value={query["door"] ?? ""} options={DOORS} onChange={(door) => amend({ door })} />
      {FIELDS.map(([name, label, placeholder]) => (
        <Filter key={name} label={label} value={query[name] ?? ""} placeholder={placeholder} onInput={(value) => amend({ [name]: value })} />
      ))}
      {query["id"] && <Filter label="Id" value={query["id"]} onInput={(id) => amend({ id })} />}
      {isNarrowed && (
        <Button kind="quiet" icon="close" onPress={() => amend(Object.fromEntries(FILTERS.map((name) => [name, undefined])))}>
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

/** A value once it has not changed for a while. */
function useSettled(value: string, ms: number): string {
  const [settled, settle] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => settle(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
