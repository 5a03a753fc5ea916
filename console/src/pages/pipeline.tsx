// The pipeline: state, lag, batches, tables and SQL queries.

import { Command } from "../parts/button.tsx";
import { useNow } from "../parts/banner.tsx";
import { Figure, Figures } from "../parts/figure.tsx";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { Plot } from "../parts/plot.tsx";
import { Prose } from "../parts/prose.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { type Expectation, type Pipeline, type QueryProgress, STATES, webAddress } from "../lake/progress.ts";
import { QueryPanel } from "../lake/query.tsx";
import { type Lake, TablesPanel } from "../lake/tables.tsx";
import { fetchJson } from "../request.ts";
import { useResource } from "../resource.ts";
import { useHistory } from "../telemetry.ts";
import { ago, count, span } from "../format.ts";

/** Seconds of the plot. */
const PLOT_S = 3_600;
/** How often the tables are polled; the server reads a log per table. */
const LAKE_MS = 2_000;

export function PipelinePage() {
  const pipeline = useResource<Pipeline>("pipeline", (stop) => fetchJson<Pipeline>("/v1/pipeline", { signal: stop }));
  const lake = useResource<Lake>("lake", (stop) => fetchJson<Lake>("/v1/lake", { signal: stop }), LAKE_MS);
  const state = pipeline.data.value;
  const failure = pipeline.failure.value;
  const address = webAddress(state?.ui);
  return (
    <div class="stack">
      <PageHead
        title="Pipeline"
        note="The journal as tables for SQL queries"
        actions={
          address !== undefined && (
            <a href={address} target="_blank" rel="noopener noreferrer">
              Spark UI
            </a>
          )
        }
      />
      {failure !== undefined && failure.status !== 404 && <Refused failure={failure} />}
      {failure?.status === 404 && (
        <Panel title="No pipeline" isFlush>
          <Empty title="This server has no pipeline">
            <p>
              <Prose text={failure.hint ?? failure.message} />
            </p>
          </Empty>
        </Panel>
      )}
      {state !== undefined && <State pipeline={state} />}
      <TablesPanel lake={lake.data.value} failure={lake.failure.value} behind={state?.behind ?? {}} end={state?.end} />
      <QueryPanel tables={lake.data.value?.tables.map(({ name }) => name) ?? []} />
    </div>
  );
}

function State({ pipeline }: { pipeline: Pipeline }) {
  const { tone, text } = STATES[pipeline.state];
  const isBroken = pipeline.state === "failed" || pipeline.state === "halted";
  return (
    <>
      <div class={isBroken ? "pipeline-state bad" : "pipeline-state"} role={isBroken ? "alert" : "status"}>
        <Badge tone={tone}>{pipeline.state}</Badge>
        <div>
          <p>{text}</p>
          {pipeline.message && (
            <p class="said-by">
              {pipeline.code && <span class="mono">{pipeline.code}: </span>}
              <Prose text={pipeline.message} />
            </p>
          )}
          {pipeline.hint && (
            <p class="note">
              <Prose text={pipeline.hint} />
            </p>
          )}
        </div>
        {pipeline.state === "off" && <Command text={'pip install "penstock[spark]" && penstock up'} />}
      </div>
      {pipeline.state !== "off" && <Progress pipeline={pipeline} />}
    </>
  );
}

function Progress({ pipeline }: { pipeline: Pipeline }) {
  const { tracks } = useHistory(PLOT_S);
  return (
    <>
      <Figures>
        <Figure label="Lag" value={count(pipeline.lag)} unit="rows" metric="penstock_pipeline_lag_rows" />
        <Figure label="Committed offset" value={count(pipeline.offset)} />
        <Figure label="Journal end" value={count(pipeline.end)} />
        <Figure label="Restarts" value={count(pipeline.restarts)} tone={pipeline.restarts > 0 ? "warn" : "plain"} />
      </Figures>
      <div class="two">
        <Plot title="Pipeline lag" track={tracks(["penstock_pipeline_lag_rows"])} series={[{ label: "rows", colour: 3 }]} format={count} />
        <Queries queries={pipeline.queries} own={pipeline.own ?? {}} end={pipeline.end} />
      </div>
      <Expectations expectations={pipeline.expectations ?? []} stopped={pipeline.stopped ?? {}} />
    </>
  );
}

const ON_FAIL = { warn: "counts it", drop: "drops it", fail: "stops the table" } as const;

interface ExpectationsProps {
  readonly expectations: readonly Expectation[];
  readonly stopped: NonNullable<Pipeline["stopped"]>;
}

/** What the user's tables promise of their rows, and the tables that stopped. */
function Expectations({ expectations, stopped }: ExpectationsProps) {
  const reasons = Object.entries(stopped);
  if (expectations.length === 0 && reasons.length === 0) return null;
  const columns: readonly Column<Expectation>[] = [
    { key: "table", title: "Table", cell: ({ table }) => table, sort: ({ table }) => table },
    { key: "name", title: "Expectation", cell: ({ name }) => name, sort: ({ name }) => name },
    { key: "on_fail", title: "A row that fails", cell: (one) => ON_FAIL[one.on_fail], sort: (one) => one.on_fail },
    {
      key: "failed",
      title: "Failed",
      cell: ({ failed }) => (failed === 0 ? "0" : <Badge tone="warn">{count(failed)}</Badge>),
      sort: ({ failed }) => failed,
      isNumber: true,
      help: "Rows since the pipeline started",
    },
    { key: "sample", title: "Such as", cell: ({ sample }) => <span class="mono">{sample === "" ? "–" : sample}</span> },
  ];
  return (
    <Panel title="Expectations" isFlush>
      <Table label="Expectations of your tables" columns={columns} rows={expectations} keyOf={({ table, name }) => `${table} ${name}`} empty={<Empty title="No expectations" />} />
      {reasons.length > 0 && (
        <ul class="own-queries" aria-label="Stopped tables">
          {reasons.map(([name, reason]) => (
            <li key={name}>
              <span>{name}</span>
              <Badge tone="bad">stopped</Badge>
              <p class="said-by">
                <Prose text={reason} />
              </p>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

type Row = QueryProgress & { readonly name: string };

interface QueriesProps {
  readonly queries: Pipeline["queries"];
  readonly own: NonNullable<Pipeline["own"]>;
  readonly end: number;
}

function Queries({ queries, own, end }: QueriesProps) {
  const now = useNow();
  const rows: readonly Row[] = Object.entries(queries).map(([name, progress]) => ({ name, ...progress }));
  const columns: readonly Column<Row>[] = [
    { key: "name", title: "Query", cell: ({ name }) => name, sort: ({ name }) => name },
    {
      key: "offset",
      title: "Offset",
      cell: ({ offset }) => (
        <span class="progress">
          <progress value={Math.min(offset, end)} max={Math.max(end, 1)} aria-label="position in the journal" />
          {count(offset)}
        </span>
      ),
      sort: ({ offset }) => offset,
      isNumber: true,
    },
    { key: "batches", title: "Batches", cell: ({ batches }) => count(batches), sort: ({ batches }) => batches, isNumber: true },
    { key: "rows", title: "Rows", cell: (row) => count(row.rows), sort: (row) => row.rows, isNumber: true, help: "Journal rows of the latest batch" },
    { key: "ms", title: "Duration", cell: ({ batch_ms: ms }) => span(ms), sort: ({ batch_ms: ms }) => ms, isNumber: true, help: "Duration of the latest batch" },
    { key: "at", title: "Updated", cell: ({ at_us: us }) => (us === 0 ? "–" : ago(us / 1000, now)), sort: ({ at_us: us }) => -us },
  ];
  return (
    <Panel title="Batches" isFlush>
      <Table label="Pipeline queries" columns={columns} rows={rows} keyOf={({ name }) => name} empty={<Empty title="No batches yet" />} />
      {Object.keys(own).length > 0 && (
        <ul class="own-queries" aria-label="User-defined queries">
          {Object.entries(own).map(([name, state]) => (
            <li key={name}>
              <span>{name}</span>
              <Badge tone={state === "running" ? "good" : state === "starting" ? "accent" : "bad"}>{state === "running" || state === "starting" ? state : "failed"}</Badge>
              {state !== "running" && state !== "starting" && <p class="said-by">{state}</p>}
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}
