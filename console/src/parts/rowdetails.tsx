// The details of a journal row, with links to related views.

import { href, type Query } from "../router.ts";
import { type Row, timings } from "../rows.ts";
import { bytes, count, moment } from "../format.ts";
import { CopyButton } from "./button.tsx";
import { Code } from "./code.tsx";
import { Dialog } from "./dialog.tsx";
import { Icon } from "./icon.tsx";

/** Columns with their own section. */
const APART = new Set(["body", "body_cut", "meta"]);

export function RowDetails({ row, onClose }: { row: Row; onClose: () => void }) {
  const columns = Object.entries(row).filter(([name]) => !APART.has(name));
  return (
    <Dialog
      title={`${row.event} ${row.kind ?? ""}`}
      side
      onClose={onClose}
      actions={<CopyButton text={JSON.stringify(row)} label="Copy row as JSON" />}
    >
      <div class="stack">
        <RelatedLinks row={row} />
        <Timings row={row} />
        {row.body !== undefined && (
          <section class="stack tight" aria-label="Body">
            <h3>
              Body <span class="note">{row.body_cut ? "truncated; the journal has all of it" : bytes(row.bytes)}</span>
            </h3>
            <Code value={row.body} label="body" />
          </section>
        )}
        {row.meta !== undefined && (
          <section class="stack tight" aria-label="Metadata">
            <h3>Metadata</h3>
            <Code value={row.meta} label="metadata" />
          </section>
        )}
        <section class="stack tight" aria-label="Columns">
          <h3>Columns</h3>
          <dl class="columns">
            {columns.map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd class="mono">{typeof value === "number" && name !== "offset" ? count(value) : String(value)}</dd>
              </div>
            ))}
          </dl>
        </section>
      </div>
    </Dialog>
  );
}

/** Links to views related to the row. */
function RelatedLinks({ row }: { row: Row }) {
  const conversation = row.corr ?? row.id;
  const narrowed: readonly (readonly [string, Query])[] = [
    ...(row.channel ? [["Only this channel", { channel: row.channel }] as const] : []),
    ...(row.sender ? [["Only this sender", { from: row.sender }] as const] : []),
    ...(row.id ? [["Only this envelope", { id: row.id }] as const] : []),
  ];
  return (
    <p class="ways">
      {conversation !== undefined && (
        <a class="button" href={href(["tail", "conversation", conversation])}>
          <Icon name="tree" />
          Conversation
        </a>
      )}
      {row.door === "courier" && row.channel && (
        <a class="button" href={href(["queues", row.channel])}>
          <Icon name="queues" />
          Queue
        </a>
      )}
      {narrowed.map(([title, query]) => (
        <a key={title} class="button" href={href(["tail"], query)}>
          {title}
        </a>
      ))}
    </p>
  );
}

function Timings({ row }: { row: Row }) {
  const times = timings(row);
  if (times === undefined || row.ref_at === undefined) return null;
  return (
    <p class="note">
      Sent {moment(row.ref_at)}, {times}.
    </p>
  );
}
