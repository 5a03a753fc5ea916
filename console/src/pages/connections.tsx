// Who is connected, from where, and how well each peer reads.

import { useMemo, useState } from "preact/hooks";

import { notify, report } from "../notices.ts";
import { Button } from "../parts/button.tsx";
import { Confirm } from "../parts/form.tsx";
import { Filter } from "../parts/field.tsx";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { Rates } from "../rates.ts";
import { fetchJson, withQuery } from "../request.ts";
import { useResource } from "../resource.ts";
import { href, route, updateQuery } from "../router.ts";
import { bytes, count, plural, rate, span } from "../format.ts";

interface Connection {
  readonly link: number;
  readonly agent: string;
  readonly token: string;
  readonly peer: string;
  readonly door: string;
  readonly openMs: number;
  readonly streams: readonly string[];
  readonly subscriptions: number;
  readonly delivered: number;
  readonly inflight: number;
  readonly credit: number;
  readonly lag: number;
  readonly unreadBytes: number;
  readonly slow: boolean;
}

interface Line extends Connection {
  readonly rate: number | undefined;
}

interface Answer {
  readonly connections: readonly Connection[];
  readonly more: number;
}

const COLUMNS: readonly Column<Line>[] = [
  {
    key: "agent",
    title: "Agent",
    sort: ({ agent }) => agent,
    cell: ({ agent, token, slow }) => (
      <>
        {agent} {token !== agent && <span class="note">{token}</span>} {slow && <Badge tone="bad">does not read</Badge>}
      </>
    ),
  },
  { key: "peer", title: "From", cell: ({ peer }) => <span class="mono">{peer}</span>, sort: ({ peer }) => peer },
  { key: "door", title: "Door", cell: ({ door }) => door, sort: ({ door }) => door },
  { key: "open", title: "Open for", isNumber: true, cell: ({ openMs }) => span(Math.floor(openMs / 1_000) * 1_000), sort: ({ openMs }) => openMs },
  { key: "streams", title: "Streams", cell: Streams, sort: ({ subscriptions }) => subscriptions },
  { key: "rate", title: "Out/s", isNumber: true, help: "messages sent to the peer per second: envelopes, frames or parts of a token stream", cell: (line) => rate(line.rate), sort: (line) => line.rate },
  { key: "inflight", title: "In flight", isNumber: true, cell: ({ inflight }) => count(inflight), sort: ({ inflight }) => inflight },
  { key: "lag", title: "Lag", isNumber: true, help: "envelopes that are ready in its streams", cell: ({ lag }) => count(lag), sort: ({ lag }) => lag },
  { key: "unread", title: "Unread", isNumber: true, help: "bytes that the peer has not read", cell: ({ unreadBytes }) => bytes(unreadBytes), sort: ({ unreadBytes }) => unreadBytes },
];

function Streams({ streams, subscriptions }: Line) {
  return (
    <>
      {streams.map((stream, index) => (
        <>
          {index > 0 && ", "}
          <a href={href(["queues", stream])}>{stream}</a>
        </>
      ))}
      {subscriptions > streams.length && <span class="note"> {plural(subscriptions, "subscription")}</span>}
    </>
  );
}

export function ConnectionsPage() {
  const text = route.value.query["filter"] ?? "";
  const path = withQuery("/v1/connections", { text });
  const { data, failure, refresh } = useResource(path, (stop) => fetchJson<Answer>(path, { signal: stop }));
  const rates = useMemo(() => new Rates(5), []);
  const [closing, close] = useState<Connection | undefined>(undefined);
  const answer = data.value;
  const lines = useMemo((): readonly Line[] => {
    const counts = new Map((answer?.connections ?? []).map(({ link, delivered }) => [String(link), delivered]));
    const now = rates.take(Date.now() / 1_000, counts);
    return (answer?.connections ?? []).map((one) => ({ ...one, rate: now.get(String(one.link)) }));
  }, [answer]);
  const end = async ({ link, agent }: Connection): Promise<void> => {
    await report(async () => {
      await fetchJson(`/v1/connections/${link}`, { method: "DELETE" });
      notify(`Connection ${link} of ${agent} closed.`);
    });
    close(undefined);
    refresh();
  };
  const columns = [
    ...COLUMNS,
    {
      key: "close",
      title: "Action",
      cell: (line: Line) => (
        <Button kind="danger" label={`Close connection ${line.link} of ${line.agent}`} onPress={() => close(line)}>
          Close
        </Button>
      ),
    },
  ];
  return (
    <div class="stack">
      <PageHead
        title="Connections"
        note={answer === undefined ? "Loading…" : plural(answer.connections.length + answer.more, "connection")}
        actions={<Filter label="Filter connections" value={text} placeholder="Agent, token or address" isMain onInput={(filter) => updateQuery({ filter })} />}
      />
      <Refused failure={failure.value} />
      <Panel title="Peers" isFlush note={answer !== undefined && answer.more > 0 ? `slow readers first, ${count(answer.more)} not shown; use the filter` : undefined}>
        <Table
          label="Connections"
          columns={columns}
          rows={lines}
          keyOf={({ link }) => link}
          empty={
            <Empty title={answer === undefined ? "Loading…" : text === "" ? "No connections" : "No connection matches the filter"}>
              <p>Subscriptions, control connections, participants of spaces and waiting pulls appear here. Single requests do not.</p>
            </Empty>
          }
        />
      </Panel>
      {closing !== undefined && (
        <Confirm title={`Close the connection of ${closing.agent}`} word={closing.agent} verb="Close connection" onConfirm={() => end(closing)} onClose={() => close(undefined)}>
          <p>
            Close connection {closing.link} from {closing.peer}. Its {plural(closing.inflight, "lease")} {closing.inflight === 1 ? "returns" : "return"} to the streams. The client may
            connect again; revoke its token to prevent that.
          </p>
        </Confirm>
      )}
    </div>
  );
}
