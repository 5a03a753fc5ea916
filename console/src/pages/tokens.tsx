// Token streams: what the relay carries, and a viewer that shows a stream's text as far as its MACs prove it.

import { useMemo, useRef } from "preact/hooks";

import { Button } from "../parts/button.tsx";
import { Figure, Figures } from "../parts/figure.tsx";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { Rates } from "../rates.ts";
import { ask } from "../request.ts";
import { useResource } from "../resource.ts";
import { Viewer } from "../tokens/viewer.tsx";
import { bytes, count, plural, rate } from "../words.ts";

interface Topic {
  /** The hash of its name, which the server never tells. */
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
    key: "listeners",
    title: "Listeners",
    cell: (row) => (row.subscribers === 0 ? <Badge>none</Badge> : count(row.subscribers)),
    sort: (row) => row.subscribers,
    isNumber: true,
    help: "Sockets of the relay; all of this server's pages together are one",
  },
  { key: "waiting", title: "Waiting", cell: (row) => count(row.waiting), sort: (row) => row.waiting, isNumber: true, help: "Messages held that nobody was sent yet" },
];

/** Over how long rates are taken. */
const RATE_S = 5;

export function TokensPage() {
  return (
    <div class="stack">
      <PageHead title="Token streams" note="What the relay carries. It holds no keys: whoever has a stream's key verifies it here, in this page alone." />
      <Viewer />
      <TopicsPanel />
    </div>
  );
}

function TopicsPanel() {
  const { data, failure, refresh } = useResource<Topics>("relay topics", (stop) => ask<Topics>("/v1/relay/topics", { signal: stop }));
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
        <Empty title="This server tells nothing of topics.">
          <p>It runs without a relay, or is older than this page.</p>
        </Empty>
      </Panel>
    );
  }
  if (answer === undefined) return <Refused failure={failure.value} />;
  if (answer.running === false) {
    return (
      <Panel title="Topics" isFlush>
        <Empty title="The relay does not run.">
          <p>
            <code>penstock up</code> starts one, unless <code>--no-relay</code> or <code>relay.enabled: false</code> says otherwise.
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
        <Figure label="Sent again" value={count(totals["replayed"])} />
        <Figure label="Expired" value={count(totals["lost"])} note="before anybody listened" tone={(totals["lost"] ?? 0) > 0 ? "warn" : "plain"} />
        <Figure label="Held" value={bytes(totals["held_bytes"])} />
      </Figures>
      <Panel title="Topics" note={answer.more > 0 ? `${plural(answer.more, "less busy one")} not shown` : "the busiest first"} isFlush>
        <Table
          label="Topics of the relay"
          columns={COLUMNS}
          rows={rows}
          keyOf={(row) => row.topic}
          order={{ key: "messages", isFalling: true }}
          empty={
            <Empty title="No topic is registered.">
              <p>A publisher registers one when it starts. The examples have an inference service and a reader:</p>
              <code class="mono">python examples/tokens/writer.py</code>
              <Button onPress={refresh}>Look again</Button>
            </Empty>
          }
        />
      </Panel>
    </>
  );
}
