// Token streams: the topics of the relay, and a viewer that shows the verified text of a stream.

import { useMemo, useRef } from "preact/hooks";

import { Button } from "../parts/button.tsx";
import { Figure, Figures } from "../parts/figure.tsx";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { Rates } from "../rates.ts";
import { fetchJson } from "../request.ts";
import { useResource } from "../resource.ts";
import { Viewer } from "../tokens/viewer.tsx";
import { bytes, count, rate } from "../format.ts";

interface Topic {
  /** The hash of its name, which the server does not reveal. */
  readonly topic: string;
  readonly messages: number;
  readonly bytes: number;
  readonly subscribers?: number;
  readonly waiting: number;
}

interface Topics {
  readonly running?: boolean;
  readonly topics: readonly Topic[];
  readonly more: number;
  readonly totals: Readonly<Record<string, number>>;
}

interface Row extends Topic {
  readonly rate: number | undefined;
  readonly byteRate: number | undefined;
}

const COLUMNS: readonly Column<Row>[] = [
  { key: "topic", title: "Topic (hash)", cell: (row) => <span class="mono" title={row.topic}>{row.topic.slice(0, 16)}</span>, sort: (row) => row.topic },
  { key: "rate", title: "Messages/s", cell: (row) => rate(row.rate), sort: (row) => row.rate, isNumber: true },
  { key: "byteRate", title: "Bytes/s", cell: (row) => bytes(row.byteRate === undefined ? undefined : Math.round(row.byteRate)), sort: (row) => row.byteRate, isNumber: true },
  { key: "messages", title: "Messages", cell: (row) => count(row.messages), sort: (row) => row.messages, isNumber: true },
  { key: "bytes", title: "Size", cell: (row) => bytes(row.bytes), sort: (row) => row.bytes, isNumber: true },
  {
    key: "subscribers",
    title: "Subscribers",
    cell: (row) => (row.subscribers === 0 ? <Badge>none</Badge> : count(row.subscribers)),
    sort: (row) => row.subscribers,
    isNumber: true,
    help: "Subscriber sockets of the relay; all console pages of this server share one",
  },
  { key: "waiting", title: "Unread", cell: (row) => count(row.waiting), sort: (row) => row.waiting, isNumber: true, help: "Buffered messages not yet sent to a subscriber" },
];

/** The window of the rates in seconds. */
const RATE_S = 5;

export function TokenStreamsPage() {
  return (
    <div class="stack">
      <PageHead title="Token streams" note="Topics of the relay. The relay has no keys: this page verifies a stream with the key that you enter." />
      <Viewer />
      <TopicsPanel />
    </div>
  );
}

function TopicsPanel() {
  const { data, failure, refresh } = useResource<Topics>("relay topics", (stop) => fetchJson<Topics>("/v1/relay/topics", { signal: stop }));
  const rates = useRef(new Rates(RATE_S));
  const answer = data.value;
  const rows = useMemo<readonly Row[]>(() => {
    if (answer === undefined) return [];
    const counts = new Map<string, number>();
    for (const topic of answer.topics) counts.set(`${topic.topic} messages`, topic.messages).set(`${topic.topic} bytes`, topic.bytes);
    const grown = rates.current.take(performance.now() / 1000, counts);
    return answer.topics.map((topic) => ({
      ...topic,
      rate: grown.get(`${topic.topic} messages`),
      byteRate: grown.get(`${topic.topic} bytes`),
    }));
  }, [answer]);
  if (failure.value?.status === 404) {
    return (
      <Panel title="Topics" isFlush>
        <Empty title="No topic data">
          <p>The server runs without a relay, or is older than this page.</p>
        </Empty>
      </Panel>
    );
  }
  if (answer === undefined) return <Refused failure={failure.value} />;
  if (answer.running === false) {
    return (
      <Panel title="Topics" isFlush>
        <Empty title="The relay is off">
          <p>
            <code>penstock up</code> starts it, unless <code>--no-relay</code> or <code>relay.enabled: false</code> is set.
          </p>
        </Empty>
      </Panel>
    );
  }
  const { totals } = answer;
  return (
    <>
      <Refused failure={failure.value} />
      <Figures>
        <Figure label="Topics" value={count(totals["topics"] ?? answer.topics.length + answer.more)} />
        <Figure label="Messages" value={count(totals["messages"])} note={totals["bytes"] === undefined ? undefined : bytes(totals["bytes"])} />
        <Figure label="Forwarded" value={count(totals["forwarded"])} />
        <Figure label="Replayed" value={count(totals["replayed"])} />
        <Figure label="Expired" value={count(totals["lost"])} note="without a subscriber" tone={(totals["lost"] ?? 0) > 0 ? "warn" : "plain"} />
        <Figure label="Buffered" value={bytes(totals["held_bytes"])} />
      </Figures>
      <Panel title="Topics" note={answer.more > 0 ? `busiest first, ${count(answer.more)} not shown` : "busiest first"} isFlush>
        <Table
          label="Relay topics"
          columns={COLUMNS}
          rows={rows}
          keyOf={(row) => row.topic}
          order={{ key: "messages", isFalling: true }}
          empty={
            <Empty title="No topics">
              <p>A publisher registers a topic when it starts. The examples contain an inference service and a reader:</p>
              <code class="mono">python examples/tokens/writer.py</code>
              <Button onPress={refresh}>Refresh</Button>
            </Empty>
          }
        />
      </Panel>
    </>
  );
}
