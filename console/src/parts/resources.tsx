// Processor, memory and disk: what each process uses, and what is reserved.

import { useMemo } from "preact/hooks";

import { Rates } from "../rates.ts";
import { fetchJson } from "../request.ts";
import { useResource } from "../resource.ts";
import { bytes, count } from "../format.ts";
import { Figure, Figures } from "./figure.tsx";
import { Empty, Panel, Refused } from "./panel.tsx";
import { type Column, Table } from "./table.tsx";

interface Process {
  readonly pid: number;
  readonly name: string;
  readonly memoryBytes: number;
  readonly cpuS: number;
  readonly threads: number;
}

interface Answer {
  readonly processes: readonly Process[];
  readonly disk: { readonly path: string; readonly totalBytes: number; readonly freeBytes: number; readonly reservedBytes: number } | null;
  readonly memory: readonly { readonly limit: string; readonly used: number; readonly bound: number }[];
}

interface Line extends Process {
  /** The share of one processor. */
  readonly share: number | undefined;
}

const MEASURE_MS = 3_000;
const TITLES: Readonly<Record<string, string>> = { memory_max: "Envelopes in memory", pending_max: "Waiting for the disk", outbox_total_max: "Unread by clients" };

const COLUMNS: readonly Column<Line>[] = [
  { key: "name", title: "Process", cell: ({ name }) => name, sort: ({ name }) => name },
  { key: "pid", title: "Pid", isNumber: true, cell: ({ pid }) => String(pid), sort: ({ pid }) => pid },
  { key: "memory", title: "Memory", isNumber: true, cell: ({ memoryBytes }) => bytes(memoryBytes), sort: ({ memoryBytes }) => memoryBytes },
  { key: "cpu", title: "CPU", isNumber: true, help: "of one processor", cell: ({ share }) => (share === undefined ? "–" : `${(share * 100).toFixed(1)} %`), sort: ({ share }) => share },
  { key: "threads", title: "Threads", isNumber: true, cell: ({ threads }) => count(threads), sort: ({ threads }) => threads },
];

export function Resources() {
  const { data, failure } = useResource("/v1/resources", (stop) => fetchJson<Answer>("/v1/resources", { signal: stop }), MEASURE_MS);
  const rates = useMemo(() => new Rates(10), []);
  const answer = data.value;
  const lines = useMemo((): readonly Line[] => {
    const processes = answer?.processes ?? [];
    const shares = rates.take(Date.now() / 1_000, new Map(processes.map(({ pid, cpuS }) => [String(pid), cpuS])));
    return processes.map((one) => ({ ...one, share: shares.get(String(one.pid)) }));
  }, [answer]);
  return (
    <Panel title="Resources" isFlush>
      <Refused failure={failure.value} />
      {answer !== undefined && (
        <Figures>
          {answer.disk !== null && (
            <>
              <Figure label="Disk free" value={bytes(answer.disk.freeBytes)} note={`of ${bytes(answer.disk.totalBytes)}, ${answer.disk.path}`} />
              <Figure label="Disk reserved" value={bytes(answer.disk.reservedBytes)} note="for acks on a full disk" />
            </>
          )}
          {answer.memory.map(({ limit, used, bound }) => (
            <Figure key={limit} label={TITLES[limit] ?? limit} value={bytes(used)} note={`of ${bytes(bound)}, limits.${limit}`} />
          ))}
        </Figures>
      )}
      <Table label="Processes" columns={COLUMNS} rows={lines} keyOf={({ pid }) => pid} empty={<Empty title="Loading…" />} />
    </Panel>
  );
}
