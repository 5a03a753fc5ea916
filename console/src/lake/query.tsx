// The SQL query box. Ctrl+Enter runs the query; earlier queries are kept until the page is closed.

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";

import { Button } from "../parts/button.tsx";
import { Choice } from "../parts/field.tsx";
import { Panel, Refused } from "../parts/panel.tsx";
import { asFailure, type Failure, isAbort } from "../request.ts";
import { type Answer, EXAMPLES, runQuery, addRecent, ROWS_MAX } from "./sql.ts";
import { Result } from "./result.tsx";

/** The text of the query box, kept across pages. */
export const draft = signal("");
const recent = signal<readonly string[]>([]);
const LIMITS = ["50", "200", String(ROWS_MAX)] as const;
type Limit = (typeof LIMITS)[number];

export function QueryPanel({ tables }: { tables: readonly string[] }) {
  const [answer, setAnswer] = useState<Answer | undefined>(undefined);
  const [failure, fail] = useState<Failure | undefined>(undefined);
  const [limit, setLimit] = useState<Limit>("200");
  const [running, setRunning] = useState<AbortController | undefined>(undefined);
  const last = useRef<AbortController | undefined>(undefined);
  useEffect(() => () => last.current?.abort(), []);
  const run = async (query: string): Promise<void> => {
    if (query.trim() === "") return;
    last.current?.abort();
    const stop = new AbortController();
    last.current = stop;
    setRunning(stop);
    fail(undefined);
    recent.value = addRecent(recent.value, query);
    try {
      setAnswer(await runQuery(query, Number(limit), stop.signal));
    } catch (error) {
      if (!isAbort(error)) fail(asFailure(error));
    } finally {
      if (last.current === stop) setRunning(undefined);
    }
  };
  const examples = EXAMPLES.filter(({ table }) => tables.includes(table));
  return (
    <Panel title="Query" note="read-only SQL on the tables">
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void run(draft.value);
        }}
      >
        <textarea
          class="query"
          aria-label="SQL query"
          rows={5}
          spellcheck={false}
          data-filter
          placeholder={tables[0] === undefined ? "select 1" : `select * from ${tables[0]} limit 50`}
          value={draft.value}
          onInput={(event) => {
            draft.value = event.currentTarget.value;
          }}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
            event.preventDefault();
            void run(draft.value);
          }}
        />
        <div class="row">
          <Button type="submit" kind="main" icon="play" isDisabled={running !== undefined || draft.value.trim() === ""}>
            {running === undefined ? "Run" : "Running…"}
          </Button>
          {running !== undefined && (
            <Button
              onPress={() => {
                running.abort();
                setRunning(undefined);
              }}
            >
              Stop
            </Button>
          )}
          <span class="note">
            or <kbd>Ctrl</kbd> <kbd>Enter</kbd>
          </span>
          <Choice<Limit> label="Limit" value={limit} options={LIMITS.map((each) => [each, `${each} rows`] as const)} onChange={setLimit} />
        </div>
        <Suggestions title="Examples" queries={examples.map(({ title, query }) => [title, query] as const)} onChoose={run} />
        {recent.value.length > 0 && (
          <details class="past">
            <summary>Recent queries ({recent.value.length})</summary>
            <Suggestions title="Recent queries" queries={recent.value.map((query) => [query.replace(/\s+/g, " "), query] as const)} onChoose={run} />
          </details>
        )}
      </form>
      <div class="answer" aria-busy={running !== undefined}>
        <Refused failure={failure} />
        {failure === undefined && answer !== undefined && <Result answer={answer} title="Result" />}
      </div>
    </Panel>
  );
}

interface SuggestionsProps {
  readonly title: string;
  readonly queries: readonly (readonly [title: string, query: string])[];
  readonly onChoose: (query: string) => Promise<void>;
}

function Suggestions({ title, queries, onChoose }: SuggestionsProps) {
  if (queries.length === 0) return null;
  return (
    <ul class="suggestions" aria-label={title}>
      {queries.map(([name, query]) => (
        <li key={query}>
          <button
            type="button"
            title={query}
            onClick={() => {
              draft.value = query;
              void onChoose(query);
            }}
          >
            {name}
          </button>
        </li>
      ))}
    </ul>
  );
}
