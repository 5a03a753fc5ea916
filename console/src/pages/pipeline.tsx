// The pipeline: state, lag, batches, tables and SQL queries.

import { Command } from "../parts/button.tsx";
import { useNow } from "../parts/banner.tsx";
import { Figure, Figures } from "../parts/figure.tsx";
import { Badge, Empty, PageHead, Panel, Refused } from "../parts/panel.tsx";
import { Plot } from "../parts/plot.tsx";
import { Prose } from "../parts/prose.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { BatchesPanel } from "../lake/batches.tsx";
import { type BatchFailure, type Expectation, LATE_S, type Pipeline, type QueryProgress, STATES, webAddress } from "../lake/progress.ts";
import { QueryPanel } from "../lake/query.tsx";
import { type Lake, TablesPanel } from "../lake/tables.tsx";
import { fetchJson } from "../request.ts";
import { useResource } from "../resource.ts";
import { useHistory } from "../telemetry.ts";
import { ago, count, rate, span } from "../format.ts";

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
      <TablesPanel lake={lake.data.value} failure={lake.failure.value} progress={state?.tables ?? {}} />
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
  const failed = pipeline.failed ?? [];
  const failures = failed.reduce((sum, one) => sum + one.count, 0);
  const lagMs = 1_000 * Math.max(0, ...Object.values(pipeline.tables ?? {}).map((table) => table.lag_seconds));
  return (
    <>
      <Figures columns="three">
        <Figure label="Lag" value={count(pipeline.lag)} unit="rows" metric="penstock_pipeline_lag_rows" />
        <Figure label="Oldest missing row" value={lagMs === 0 ? "0 s" : span(Math.round(lagMs))} tone={lagMs > 1_000 * LATE_S ? "warn" : "plain"} />
        <Figure label="Input" value={rate(pipeline.queries["ingest"]?.input_rate)} unit="rows/s" />
        <Figure label="Journal end" value={count(pipeline.end)} note={`tables at ${count(pipeline.offset)}`} />
        <Figure label="Failed batches" value={count(failures)} tone={failures > 0 ? "warn" : "plain"} metric="penstock_pipeline_failed_batches_total" />
        <Figure label="Restarts" value={count(pipeline.restarts)} tone={pipeline.restarts > 0 ? "warn" : "plain"} metric="penstock_pipeline_restarts_total" />
      </Figures>
      <div class="two">
        <Plot title="Pipeline lag" track={tracks(["penstock_pipeline_lag_rows"])} series={[{ label: "rows", colour: 3 }]} format={count} />
        <Queries pipeline={pipeline} />
      </div>
      <Failures failed={failed} />
      <BatchesPanel queries={{ ...pipeline.queries, ...pipeline.own_queries }} />
      <Expectations expectations={pipeline.expectations ?? []} stopped={pipeline.stopped ?? {}} />
    </>
  );
}

/** The steps in which batches failed, the latest first. */
function Failures({ failed }: { failed: readonly BatchFailure[] }) {
  const now = useNow();
  if (failed.length === 0) return null;
  return (
    <Panel title="Failed batches" note="since the server started" isFlush>
      <ul class="entries" aria-label="Failed batches">
        {[...failed].reverse().map(({ query, table, step, count: times, at_us: us, cause }) => (
          <li key={`${query} ${table} ${step}`}>
            <b>{table === "" ? query : table}</b>
            {step !== "" && <span>step {step}</span>}
            {table !== "" && <span class="note">query {query}</span>}
            <Badge tone="warn">{count(times)} failed</Badge>
            <span class="note">last {ago(us / 1000, now)}</span>
            <p class="said-by">
              <Prose text={cause} />
            </p>
          </li>
        ))}
      </ul>
    </Panel>
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
        <ul class="entries" aria-label="Stopped tables">
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

interface Row extends Partial<Omit<QueryProgress, "offset">> {
  readonly name: string;
  readonly offset: number | undefined;
  /** The state of a user-defined query: `running`, `starting`, or why it failed. */
  readonly state?: string;
}

const RUNNING = "running";
const STARTING = "starting";

function Queries({ pipeline }: { pipeline: Pipeline }) {
  const now = useNow();
  const own = Object.entries(pipeline.own ?? {});
  const rows: readonly Row[] = [
    ...Object.entries(pipeline.queries).map(([name, progress]) => ({ name, ...progress })),
    ...own.map(([name, state]) => ({ ...pipeline.own_queries?.[name], name, state, offset: undefined })),
  ];
  const failed = own.filter(([, state]) => state !== RUNNING && state !== STARTING);
  const columns: readonly Column<Row>[] = [
    {
      key: "name",
      title: "Query",
      cell: ({ name, state }) => (
        <>
          {name} {state !== undefined && state !== RUNNING && <Badge tone={state === STARTING ? "accent" : "bad"}>{state === STARTING ? state : "failed"}</Badge>}
        </>
      ),
      sort: ({ name }) => name,
    },
    { key: "offset", title: "Offset", cell: ({ offset }) => count(offset), sort: ({ offset }) => offset, isNumber: true },
    { key: "rows", title: "Rows", cell: (row) => count(row.rows), sort: (row) => row.rows, isNumber: true, help: "Rows of the latest batch" },
    { key: "rate", title: "Rows/s", cell: (row) => rate(row.input_rate), sort: (row) => row.input_rate, isNumber: true, help: "Rows a second that arrive" },
    { key: "ms", title: "Duration", cell: ({ batch_ms: ms }) => span(ms), sort: ({ batch_ms: ms }) => ms, isNumber: true, help: "Duration of the latest batch" },
    { key: "at", title: "Updated", cell: ({ at_us: us }) => (us ? ago(us / 1000, now) : "–"), sort: ({ at_us: us }) => (us ? -us : null) },
  ];
  return (
    <Panel title="Queries" isFlush>
      <Table label="Pipeline queries" columns={columns} rows={rows} keyOf={({ name }) => name} empty={<Empty title="No batches yet" />} />
      {failed.length > 0 && (
        <ul class="entries" aria-label="User-defined queries that failed">
          {failed.map(([name, reason]) => (
            <li key={name}>
              <b>{name}</b>
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
