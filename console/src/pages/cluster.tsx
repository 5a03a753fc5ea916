// Who owns which shard of a cluster, and how its nodes are.

import type { ComponentChildren } from "preact";

import { count, plural, span } from "../format.ts";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { fetchJson } from "../request.ts";
import { useResource } from "../resource.ts";

interface Shard {
  readonly shard: number;
  readonly owner: string | null;
  readonly state: string;
  readonly epoch: number;
  readonly offset: number;
  /** Microseconds since 1970; 0 when it is not known. */
  readonly since: number;
  readonly reason: string;
  readonly wanted: string | null;
  readonly troubles: Readonly<Record<string, string>>;
}

interface Node {
  readonly node: string;
  readonly state: "up" | "draining" | "leaving" | "gone";
  readonly version: string;
  readonly http: string;
  readonly control: string | null;
  readonly owns: readonly number[];
  readonly verified: boolean;
  readonly started: number;
}

interface Answer {
  readonly cluster: string;
  readonly shards: readonly Shard[];
  readonly nodes: readonly Node[];
}

const PATH = "/v1/cluster";

function age(us: number): string {
  return us === 0 ? "–" : span(Math.floor((Date.now() - us / 1_000) / 1_000) * 1_000);
}

function State({ state }: { state: string }): ComponentChildren {
  if (state === "owning" || state === "up") return state;
  return <Badge tone={state === "halted" || state === "none" || state === "gone" ? "bad" : "warn"}>{state}</Badge>;
}

function Note({ owner, reason, wanted, troubles }: Shard): ComponentChildren {
  const moves = wanted !== null && wanted !== owner ? [`to move to ${wanted}`] : [];
  const damage = Object.entries(troubles).map(([node, why]) => `${node}: ${why}`);
  return [...moves, ...(damage.length > 0 ? damage : reason === "" ? [] : [reason])].join("; ");
}

const SHARDS: readonly Column<Shard>[] = [
  { key: "shard", title: "Shard", isNumber: true, cell: ({ shard }) => shard, sort: ({ shard }) => shard },
  { key: "owner", title: "Owner", cell: ({ owner }) => owner ?? <Badge tone="bad">none</Badge>, sort: ({ owner }) => owner ?? "" },
  { key: "state", title: "State", cell: ({ state }) => <State state={state} />, sort: ({ state }) => state },
  { key: "epoch", title: "Epoch", isNumber: true, help: "how many owners the shard has had", cell: ({ epoch }) => count(epoch), sort: ({ epoch }) => epoch },
  { key: "offset", title: "Offset", isNumber: true, help: "the next row of its log", cell: ({ offset }) => count(offset), sort: ({ offset }) => offset },
  { key: "since", title: "For", isNumber: true, cell: ({ since }) => age(since), sort: ({ since }) => -since },
  { key: "note", title: "Note", cell: Note },
];

const NODES: readonly Column<Node>[] = [
  { key: "node", title: "Node", cell: ({ node }) => node, sort: ({ node }) => node },
  { key: "state", title: "State", cell: ({ state }) => <State state={state} />, sort: ({ state }) => state },
  { key: "owns", title: "Owns", isNumber: true, cell: ({ owns }) => owns.length, sort: ({ owns }) => owns.length },
  { key: "shards", title: "Shards", cell: ({ owns }) => <span class="mono">{owns.join(" ")}</span> },
  { key: "address", title: "Address", cell: ({ control, http }) => <span class="mono">{control ?? http}</span> },
  { key: "version", title: "Version", cell: ({ version }) => version, sort: ({ version }) => version },
  { key: "started", title: "Up for", isNumber: true, cell: ({ started }) => age(started), sort: ({ started }) => -started },
  { key: "servers", title: "NATS", help: "whether the node found that its servers keep what they confirm", cell: ({ verified }) => (verified ? "verified" : <Badge tone="warn">unverified</Badge>) },
];

export function ClusterPage() {
  const { data, failure } = useResource(PATH, (stop) => fetchJson<Answer>(PATH, { signal: stop }));
  const answer = data.value;
  if (failure.value?.code === "Unsupported") {
    return (
      <div class="stack">
        <PageHead title="Cluster" />
        <Empty title="This server is not in a cluster">
          <p>
            <code>penstock up --join</code> makes a server a node of a cluster, which survives the loss of a machine.
          </p>
        </Empty>
      </div>
    );
  }
  const unowned = answer?.shards.filter(({ owner }) => owner === null).length ?? 0;
  const loading = <Empty title="Loading…" />;
  return (
    <div class="stack">
      <PageHead
        title="Cluster"
        note={answer === undefined ? "Loading…" : `${answer.cluster}: ${plural(answer.shards.length, "shard")}, ${plural(answer.nodes.length, "node")}`}
      />
      <Refused failure={failure.value} />
      <Panel title="Nodes" isFlush>
        <Table label="Nodes" columns={NODES} rows={answer?.nodes ?? []} keyOf={({ node }) => node} empty={loading} />
      </Panel>
      <Panel title="Shards" isFlush note={unowned > 0 ? `${plural(unowned, "shard")} without an owner` : undefined}>
        <Table label="Shards" columns={SHARDS} rows={answer?.shards ?? []} keyOf={({ shard }) => shard} empty={loading} />
      </Panel>
    </div>
  );
}
