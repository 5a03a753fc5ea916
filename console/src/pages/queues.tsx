// The list of queue streams.

import { Button, Command } from "../parts/button.tsx";
import { Filter } from "../parts/field.tsx";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { SendDialog } from "../parts/send.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { updateQuery, href, route } from "../router.ts";
import { deadNameOf, isDeadLetters, type StreamFigures, useStreams } from "../streams.ts";
import { about, count, plural, rate, span } from "../format.ts";
import { QueuePage } from "./queue.tsx";
import { useState } from "preact/hooks";

/** Streams shown in the table; use the filter to find others. */
const SHOWN_MAX = 300;

export function QueuesPage({ rest }: { rest: readonly string[] }) {
  const [stream] = rest;
  return stream === undefined ? <Streams /> : <QueuePage key={stream} stream={stream} />;
}

interface Line extends StreamFigures {
  readonly dead: number;
}

const COLUMNS: readonly Column<Line>[] = [
  {
    key: "id",
    title: "Stream",
    sort: ({ id }) => id,
    cell: ({ id, stats: { hot = 0 } }) => (
      <>
        <a href={href(["queues", id])}>{id}</a> {isDeadLetters(id) && <Badge>dead letters</Badge>}
        {hot > 0 && <Badge tone="warn">fails again and again</Badge>}
      </>
    ),
  },
  { key: "depth", title: "Ready", isNumber: true, sort: ({ stats }) => stats.depth, cell: ({ stats }) => count(stats.depth), help: "waiting for a consumer" },
  { key: "inflight", title: "In flight", isNumber: true, sort: ({ stats }) => stats.inflight, cell: ({ stats }) => count(stats.inflight), help: "leased to a consumer" },
  { key: "delayed", title: "Delayed", isNumber: true, sort: ({ stats }) => stats.delayed, cell: ({ stats }) => count(stats.delayed), help: "not due yet" },
  {
    key: "dead",
    title: "Dead",
    isNumber: true,
    help: "dead letters",
    sort: ({ dead }) => dead,
    cell: ({ id, dead }) => (dead > 0 && !isDeadLetters(id) ? <a class="warn" href={href(["queues", id], { state: "dead" })}>{count(dead)}</a> : count(dead)),
  },
  { key: "in", title: "In/s", isNumber: true, sort: ({ stats }) => stats.rateIn, cell: ({ stats }) => rate(stats.rateIn) },
  { key: "out", title: "Out/s", isNumber: true, sort: ({ stats }) => stats.rateOut, cell: ({ stats }) => rate(stats.rateOut) },
  { key: "p95", title: "p95 wait", isNumber: true, sort: ({ stats }) => stats.latP95, cell: ({ stats }) => about(stats.latP95), help: "95th percentile of the time from enqueue to first delivery, last minute" },
  {
    key: "consumers",
    title: "Consumers",
    isNumber: true,
    sort: ({ stats }) => stats.consumers,
    cell: ({ id, stats }) => (stats.consumers === 0 && stats.depth > 0 && !isDeadLetters(id) ? <Badge tone="warn">none</Badge> : count(stats.consumers)),
  },
  { key: "oldest", title: "Oldest", isNumber: true, sort: ({ stats }) => stats.oldestMs, cell: ({ stats }) => (stats.oldestMs > 0 ? span(stats.oldestMs) : "–"), help: "age of the oldest envelope" },
];

function Streams() {
  const { data, failure, refresh } = useStreams();
  const [isSending, setSending] = useState(false);
  const filter = route.value.query["filter"] ?? "";
  const streams = data.value ?? [];
  const depths = new Map(streams.map(({ id, stats }) => [id, stats.depth]));
  const lines = streams
    .filter(({ id }) => id.toLowerCase().includes(filter.toLowerCase()))
    .map((stream): Line => ({ ...stream, dead: isDeadLetters(stream.id) ? 0 : (depths.get(deadNameOf(stream.id)) ?? 0) }));
  return (
    <div class="stack">
      <PageHead
        title="Queues"
        note={data.value === undefined ? "Loading…" : plural(streams.length, "stream")}
        actions={
          <>
            <Filter label="Filter streams" value={filter} placeholder="Filter streams" isMain onInput={(text) => updateQuery({ filter: text })} />
            <Button icon="send" kind="main" onPress={() => setSending(true)}>
              Send
            </Button>
          </>
        }
      />
      <Refused failure={failure.value} />
      {data.value !== undefined && streams.length === 0 ? (
        <Empty title="No streams yet">
          <p>The first message creates a stream. Try:</p>
          <Command text={`curl ${window.location.origin}/v1/send -d '{"to": "sam", "type": "hello", "payload": {"text": "Good morning"}}'`} />
        </Empty>
      ) : (
        <Panel title="Streams" isFlush note={lines.length > SHOWN_MAX ? `the first ${SHOWN_MAX} of ${count(lines.length)}, use the filter to find others` : undefined}>
          <Table
            label="Streams"
            columns={COLUMNS}
            rows={lines.slice(0, SHOWN_MAX)}
            keyOf={({ id }) => id}
            order={{ key: "id", isFalling: false }}
            empty={data.value === undefined ? <Empty title="Loading…" /> : <Empty title="No stream matches the filter" />}
          />
        </Panel>
      )}
      {isSending && (
        <SendDialog
          streams={streams.map(({ id }) => id)}
          onClose={() => {
            setSending(false);
            refresh();
          }}
        />
      )}
    </div>
  );
}
