// The dead letters of all streams.

import { Filter } from "../parts/field.tsx";
import { Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { href, route, updateQuery } from "../router.ts";
import { type DeadLetters, deadLettersOf, useStreams } from "../streams.ts";
import { count, plural, span } from "../format.ts";

const COLUMNS: readonly Column<DeadLetters>[] = [
  { key: "stream", title: "Stream", sort: ({ stream }) => stream, cell: ({ stream }) => <a href={href(["queues", stream], { state: "dead" })}>{stream}</a> },
  { key: "now", title: "Dead now", isNumber: true, help: "wait to be redriven or dropped", sort: ({ now }) => now, cell: ({ now }) => <span class={now > 0 ? "warn" : undefined}>{count(now)}</span> },
  { key: "ever", title: "Dead ever", isNumber: true, help: "envelopes that the stream gave up since it began", sort: ({ ever }) => ever, cell: ({ ever }) => count(ever) },
  { key: "oldest", title: "Oldest", isNumber: true, help: "how long the oldest waits", sort: ({ oldestMs }) => oldestMs, cell: ({ oldestMs }) => (oldestMs > 0 ? span(oldestMs) : "–") },
];

export function DeadPage() {
  const { data, failure } = useStreams();
  const filter = route.value.query["filter"] ?? "";
  const all = deadLettersOf(data.value ?? []);
  const rows = all.filter(({ stream }) => stream.toLowerCase().includes(filter.toLowerCase()));
  const total = all.reduce((sum, { now }) => sum + now, 0);
  return (
    <div class="stack">
      <PageHead
        title="Dead letters"
        note={data.value === undefined ? "Loading…" : `${plural(total, "dead letter")} now`}
        actions={<Filter label="Filter streams" value={filter} placeholder="Filter streams" isMain onInput={(text) => updateQuery({ filter: text })} />}
      />
      <Refused failure={failure.value} />
      <Panel title="By stream" isFlush note="open a stream to redrive, edit or drop its dead letters">
        <Table
          label="Dead letters by stream"
          columns={COLUMNS}
          rows={rows}
          keyOf={({ stream }) => stream}
          order={{ key: "now", isFalling: true }}
          empty={
            data.value === undefined ? (
              <Empty title="Loading…" />
            ) : filter !== "" && all.length > 0 ? (
              <Empty title="No stream matches the filter" />
            ) : (
              <Empty title="No dead letters">
                <p>An envelope comes here when its deliveries failed too often, or when a consumer gives it up.</p>
              </Empty>
            )
          }
        />
      </Panel>
    </div>
  );
}
