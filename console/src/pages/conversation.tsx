// One conversation as a tree with timings, updated live.

import { useEffect, useMemo, useState } from "preact/hooks";

import { type Branch, type Conversation, conversationOf, type Step } from "../conversation.ts";
import { Follower } from "../follower.ts";
import { CopyButton } from "../parts/button.tsx";
import { Figure, Figures } from "../parts/figure.tsx";
import { Badge, Empty, PageHead, Panel, Refused, type Tone } from "../parts/panel.tsx";
import { RowDetails } from "../parts/rowdetails.tsx";
import { href } from "../router.ts";
import { isGap, type Row } from "../rows.ts";
import { clock, count, span } from "../format.ts";

export function ConversationPage({ corr }: { corr: string }) {
  // The first envelope of a conversation may have the correlation id only as its own id.
  const parts = useMemo(
    () => [{ corr }, { id: corr }].map((filters) => new Follower(filters, { after: 0, canSkip: false })),
    [corr],
  );
  useEffect(() => {
    const ends = parts.map((part) => part.run());
    return () => ends.forEach((end) => end());
  }, [parts]);
  const [opened, open] = useState<Row | undefined>(undefined);
  const version = parts.map((part) => part.version.value).join();
  const conversation = useMemo(() => conversationOf(rowsOf(parts), corr), [version]);
  const reach = parts.map((part) => part.reach.value);
  const searched = Math.min(...reach.map((part) => (part === undefined ? 0 : part.next)));
  const end = Math.max(...reach.map((part) => part?.end ?? 0));
  const isSearching = reach.some((part) => part === undefined || part.next < part.end);
  return (
    <div class="stack">
      <PageHead title="Conversation" back={{ href: href(["tail"]), title: "Live tail" }} />
      <div class="row">
        <code>{corr}</code>
        <CopyButton text={corr} label="Copy correlation id" />
        <a href={href(["tail"], { corr })}>show in live tail</a>
        <span class="note" role="status">
          {isSearching ? `searching: row ${count(searched)} of ${count(end)}` : "complete; new envelopes are added live"}
        </span>
      </div>
      <Refused failure={parts[0]?.failure.value} />
      {conversation.branches.length === 0 ? (
        !isSearching && (
          <Empty title="No envelopes of this conversation in the journal">
            <p>Check the id. The journal deletes rows older than `journal.retention`.</p>
          </Empty>
        )
      ) : (
        <Tree conversation={conversation} onOpen={open} />
      )}
      {opened !== undefined && <RowDetails row={opened} onClose={() => open(undefined)} />}
    </div>
  );
}

function Tree({ conversation, onOpen }: { conversation: Conversation; onOpen: (row: Row) => void }) {
  const { branches, startedAt, endedAt } = conversation;
  const unsettled = branches.filter(({ step }) => step.door === "courier" && step.outcome === undefined).length;
  return (
    <>
      <Figures>
        <Figure label="Envelopes" value={count(branches.length)} />
        <Figure label="Pending" value={count(unsettled)} tone={unsettled > 0 ? "warn" : "plain"} />
        <Figure label="Duration" value={span(endedAt - startedAt)} />
        <Figure label="Started" value={clock(startedAt).slice(0, 8)} />
      </Figures>
      <Panel title="Envelopes" isFlush note="light: waiting · solid: processing">
        <ol class="tree" aria-label="Envelopes, replies below requests">
          {branches.map((branch) => (
            <BranchLine key={branch.step.key} branch={branch} startedAt={startedAt} spanMs={Math.max(1, endedAt - startedAt)} onOpen={onOpen} />
          ))}
        </ol>
      </Panel>
    </>
  );
}

interface LineProps {
  readonly branch: Branch;
  readonly startedAt: number;
  readonly spanMs: number;
  readonly onOpen: (row: Row) => void;
}

function BranchLine({ branch: { step, depth }, startedAt, spanMs, onOpen }: LineProps) {
  const share = (ms: number): string => `${Math.min(100, Math.max(0, (ms / spanMs) * 100))}%`;
  const end = startedAt + spanMs;
  const firstAt = step.firstAt ?? step.settledAt ?? (step.door === "courier" ? end : step.sentAt);
  const settledAt = step.settledAt ?? firstAt;
  return (
    <li aria-level={depth + 1}>
      <button type="button" onClick={() => onOpen(step.row)}>
        <span class="tree-what" style={{ paddingLeft: `${Math.min(depth, 12) * 16}px` }}>
          {depth > 0 && (
            <span class="tree-elbow" aria-hidden="true">
              └
            </span>
          )}
          <b>{step.kind || step.id}</b>
          <span class="note">
            {step.sender || "unknown"} → {step.channel}
          </span>
        </span>
        <span class="tree-outcome">
          <Badge tone={toneOf(step)}>{outcomeOf(step)}</Badge>
        </span>
        <span class="tree-time note">{timesOf(step)}</span>
        <span class="tree-bar" aria-hidden="true">
          <span class="wait" style={{ left: share(step.sentAt - startedAt), width: share(firstAt - step.sentAt) }} />
          <span class="work" style={{ left: share(firstAt - startedAt), width: share(settledAt - firstAt) }} />
        </span>
      </button>
    </li>
  );
}

function toneOf(step: Step): Tone {
  if (step.outcome === "dead" || step.outcome === "drop") return "bad";
  if (step.outcome === "ack") return "good";
  return step.door === "courier" ? "accent" : "plain";
}

const OUTCOME_WORDS: Readonly<Record<string, string>> = { ack: "done", dead: "dead letter", drop: "dropped", purge: "purged", move: "moved" };

function outcomeOf(step: Step): string {
  if (step.outcome !== undefined) return OUTCOME_WORDS[step.outcome] ?? step.outcome;
  return step.door === "courier" ? "pending" : "sent";
}

function timesOf(step: Step): string {
  if (step.settledAt === undefined) return step.door === "courier" ? "" : clock(step.sentAt);
  if (step.firstAt === undefined) return `${span(step.settledAt - step.sentAt)} total`;
  const attempts = step.attempts > 1 ? `, ${step.attempts} attempts` : "";
  return `waited ${span(step.firstAt - step.sentAt)}, processed ${span(step.settledAt - step.firstAt)}${attempts}`;
}

function rowsOf(parts: readonly Follower[]): Row[] {
  const found = new Map<number, Row>();
  for (const { entries } of parts) {
    for (const entry of entries.slice(0, entries.length)) if (!isGap(entry)) found.set(entry.offset, entry);
  }
  return [...found.values()];
}
