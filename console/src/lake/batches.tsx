// The latest batches of a query, and where their time goes. Press a bar to see one batch.

import { useState } from "preact/hooks";

import { Tabs } from "../parts/field.tsx";
import { Empty, Panel } from "../parts/panel.tsx";
import { type Column, Table } from "../parts/table.tsx";
import { clock, plural, span } from "../format.ts";
import type { QueryProgress } from "./progress.ts";
import { type Batch, meanOf, type StepTime } from "./steps.ts";

/** The parts of a step, with the colour of each. */
const PARTS = [["rows", "s1"], ["commit", "s3"], ["other", "s6"]] as const;

export function BatchesPanel({ queries }: { queries: Readonly<Record<string, QueryProgress>> }) {
  const names = Object.keys(queries);
  const [picked, pick] = useState<string | undefined>(undefined);
  const [at, show] = useState<number | undefined>(undefined);
  const name = picked !== undefined && names.includes(picked) ? picked : names[0];
  const batches = (name === undefined ? undefined : queries[name]?.recent) ?? [];
  const one = batches.find(({ at_us: us }) => us === at);
  const shown = meanOf(one === undefined ? batches : [one]);
  const tabs = names.length > 1 && name !== undefined && <Tabs label="Query" value={name} options={names.map((key) => [key, key] as const)} onChange={pick} />;
  return (
    <Panel title="Batch times" note={batches.length === 0 ? undefined : `latest ${plural(batches.length, "batch", "batches")}`} actions={tabs}>
      {batches.length === 0 && <Empty title="No batches yet" />}
      {batches.length > 0 && (
        <div class="two batches">
          <div class="batch-times">
            <Bars batches={batches} picked={one} onPick={(batch) => show(batch === one ? undefined : batch.at_us)} />
            <p class="note">
              {one === undefined ? "Mean" : clock(one.at_us / 1000).slice(0, 8)}: <b>{span(Math.round(shown.ms))}</b> for {plural(Math.round(shown.rows), "row")}
              {one !== undefined && (
                <>
                  {" · "}
                  <button class="as-link" type="button" onClick={() => show(undefined)}>
                    Show mean
                  </button>
                </>
              )}
            </p>
          </div>
          <Steps steps={shown.steps} />
        </div>
      )}
    </Panel>
  );
}

/** A bar for each batch; its height is the duration. */
function Bars({ batches, picked, onPick }: { batches: readonly Batch[]; picked: Batch | undefined; onPick: (batch: Batch) => void }) {
  const most = Math.max(...batches.map(({ ms }) => ms), 1);
  return (
    <div class="batch-bars" role="group" aria-label="Duration of each batch">
      <span class="note most">{span(most)}</span>
      {batches.map((batch) => {
        const text = `${clock(batch.at_us / 1000).slice(0, 8)}: ${span(batch.ms)}, ${plural(batch.rows, "row")}`;
        return (
          <button key={batch.at_us} type="button" title={text} aria-label={text} aria-pressed={batch === picked} onClick={() => onPick(batch)}>
            <i style={{ height: `${(100 * batch.ms) / most}%` }} />
          </button>
        );
      })}
    </div>
  );
}

function Steps({ steps }: { steps: readonly StepTime[] }) {
  const most = Math.max(...steps.map(({ total }) => total), 1);
  const hasTables = steps.some(({ rows, commit }) => rows + commit > 0);
  const time = (ms: number): string => (ms === 0 ? "–" : span(Math.round(ms)));
  const columns: readonly Column<StepTime>[] = [
    { key: "name", title: hasTables ? "Table or step" : "Phase", cell: ({ name }) => name, sort: ({ name }) => name },
    {
      key: "bar",
      title: "",
      cell: (step) => (
        <span class="step-bar" aria-hidden="true">
          {PARTS.map(([part, colour]) => (
            <i key={part} class={colour} style={{ width: `${(100 * step[part]) / most}%` }} />
          ))}
        </span>
      ),
    },
    ...(hasTables
      ? [
          { key: "rows", title: "Rows", cell: ({ rows }: StepTime) => time(rows), sort: ({ rows }: StepTime) => rows, isNumber: true, help: "Computing the rows" },
          { key: "commit", title: "Commit", cell: ({ commit }: StepTime) => time(commit), sort: ({ commit }: StepTime) => commit, isNumber: true, help: "Writing them to the table" },
        ]
      : []),
    { key: "total", title: "Total", cell: ({ total }) => time(total), sort: ({ total }) => total, isNumber: true },
  ];
  return (
    <div class={hasTables ? "steps of-tables" : "steps"}>
      <Table label="Time by step" columns={columns} rows={steps} keyOf={({ name }) => name} empty={<Empty title="No step took a millisecond" />} />
      {hasTables && (
        <p class="note">
          <span class="swatch s1" aria-hidden="true" /> rows <span class="swatch s3" aria-hidden="true" /> commit. Tables are written in parallel, so their times overlap.
        </p>
      )}
    </div>
  );
}
