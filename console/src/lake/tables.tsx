// The tables of the lake: size, age, columns and sample rows.

import { useEffect, useState } from "preact/hooks";

import { useNow } from "../parts/banner.tsx";
import { Button } from "../parts/button.tsx";
import { Dialog } from "../parts/dialog.tsx";
import { Badge, Empty, Panel, Refused } from "../parts/panel.tsx";
import { Prose } from "../parts/prose.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { updateQuery, route } from "../router.ts";
import { asFailure, type Failure, isAbort } from "../request.ts";
import { ago, bytes, count, moment, plural, span } from "../format.ts";
import { LATE_S, type TableProgress } from "./progress.ts";
import { type Answer, runQuery, sample } from "./sql.ts";
import { draft } from "./query.tsx";
import { Result } from "./result.tsx";

export interface LakeTable {
  readonly name: string;
  readonly rows: number | null;
  readonly bytes: number | null;
  readonly files: number | null;
  readonly version: number | null;
  readonly updated_at: string | null;
  readonly columns: readonly { readonly name: string; readonly type: string }[];
}

export interface Lake {
  readonly tables: readonly LakeTable[];
}

interface TablesProps {
  readonly lake: Lake | undefined;
  readonly failure: Failure | undefined;
  /** The progress of the tables that the pipeline fills. */
  readonly progress: Readonly<Record<string, TableProgress>>;
}

export function TablesPanel({ lake, failure, progress }: TablesProps) {
  const now = useNow();
  const open = lake?.tables.find(({ name }) => name === route.value.query["table"]);
  const columns: readonly Column<LakeTable>[] = [
    {
      key: "name",
      title: "Table",
      cell: ({ name }) => (
        <button class="as-link" type="button" onClick={() => updateQuery({ table: name })}>
          {name}
        </button>
      ),
      sort: ({ name }) => name,
    },
    { key: "rows", title: "Rows", cell: ({ rows }) => count(rows), sort: ({ rows }) => rows, isNumber: true },
    { key: "bytes", title: "Size", cell: (table) => bytes(table.bytes), sort: (table) => table.bytes, isNumber: true },
    { key: "files", title: "Files", cell: ({ files }) => count(files), sort: ({ files }) => files, isNumber: true },
    { key: "version", title: "Version", cell: ({ version }) => count(version), sort: ({ version }) => version, isNumber: true },
    {
      key: "fresh",
      title: "Updated",
      cell: ({ updated_at: at }) => (at === null ? "never" : <span title={moment(at)}>{ago(at, Math.max(now, Date.parse(at)))}</span>),
      sort: ({ updated_at: at }) => (at === null ? null : -Date.parse(at)),
    },
    {
      key: "lag",
      title: "Lag",
      cell: ({ name }) => <Lag progress={progress[name]} />,
      sort: ({ name }) => progress[name]?.lag_rows,
      isNumber: true,
      help: "Journal rows that the table lacks, and the age of the oldest",
    },
    {
      key: "time",
      title: "Batch",
      cell: ({ name }) => span(progress[name]?.batch_ms),
      sort: ({ name }) => progress[name]?.batch_ms,
      isNumber: true,
      help: "Time of this table in the latest batch",
    },
    {
      key: "written",
      title: "Batch rows",
      cell: ({ name }) => count(progress[name]?.batch_rows),
      sort: ({ name }) => progress[name]?.batch_rows,
      isNumber: true,
      help: "Rows that the latest batch wrote to this table",
    },
  ];
  return (
    <Panel title="Tables" note={lake === undefined ? undefined : plural(lake.tables.length, "table")} isFlush>
      {failure !== undefined && failure.status !== 404 && <Refused failure={failure} />}
      {lake !== undefined && (
        <Table
          label="Tables of the lake"
          columns={columns}
          rows={lake.tables}
          keyOf={({ name }) => name}
          empty={
            <Empty title="No tables yet">
              <p>The pipeline creates tables when it receives the first journal rows.</p>
            </Empty>
          }
        />
      )}
      {lake === undefined && failure?.status === 404 && (
        <Empty title="This server has no tables">
          <p>
            <Prose text={failure.hint ?? failure.message} />
          </p>
        </Empty>
      )}
      {open !== undefined && <TableDrawer table={open} onClose={() => updateQuery({ table: undefined })} />}
    </Panel>
  );
}

function Lag({ progress }: { progress: TableProgress | undefined }) {
  if (progress === undefined) return <>–</>;
  const { lag_rows: rows, lag_seconds: seconds } = progress;
  if (rows === 0) return <>0</>;
  const text = `${plural(rows, "row")}, ${span(Math.round(seconds * 1000))}`;
  return seconds > LATE_S ? <Badge tone="warn">{text}</Badge> : <>{text}</>;
}

function TableDrawer({ table, onClose }: { table: LakeTable; onClose: () => void }) {
  const [answer, setAnswer] = useState<Answer | undefined>(undefined);
  const [failure, fail] = useState<Failure | undefined>(undefined);
  useEffect(() => {
    const stop = new AbortController();
    runQuery(sample(table.name), 50, stop.signal).then(setAnswer, (error: unknown) => {
      if (!isAbort(error)) fail(asFailure(error));
    });
    return () => stop.abort();
  }, [table.name]);
  return (
    <Dialog
      title={table.name}
      onClose={onClose}
      side
      actions={
        <Button
          onPress={() => {
            draft.value = sample(table.name);
            onClose();
          }}
        >
          Query this table
        </Button>
      }
    >
      <div class="stack">
        <h3>{plural(table.columns.length, "column")}</h3>
        <ul class="table-columns">
          {table.columns.map(({ name, type }) => (
            <li key={name}>
              <span class="mono">{name}</span> <span class="note">{type}</span>
            </li>
          ))}
        </ul>
        <h3>Sample rows</h3>
        <Refused failure={failure} />
        {answer !== undefined && <Result answer={answer} title={`Sample rows of ${table.name}`} />}
        {answer === undefined && failure === undefined && <p class="note">Loading…</p>}
      </div>
    </Dialog>
  );
}
