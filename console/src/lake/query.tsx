// The box for questions: Ctrl and Enter runs it, earlier ones are a click away until the page is closed.

import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";

import { Button } from "../parts/button.tsx";
import { Choice } from "../parts/field.tsx";
import { Panel, Refused } from "../parts/panel.tsx";
import { asFailure, type Failure, isAbort } from "../request.ts";
import { type Answer, EXAMPLES, question, remembered, ROWS_MAX } from "./question.ts";
import { Result } from "./result.tsx";

/** What stands in the box; it stays while one looks at another page. */
export const draft = signal("");
const past = signal<readonly string[]>([]);
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
    past.value = remembered(past.value, query);
    try {
      setAnswer(await question(query, Number(limit), stop.signal));
    } catch (error) {
      if (!isAbort(error)) fail(asFailure(error));
    } finally {
      if (last.current === stop) setRunning(undefined);
    }
  };
  const examples = EXAMPLES.filter(({ table }) => tables.includes(table));
  return (
    <Panel title="Ask" note="SQL over the tables; it reads, and changes nothing">
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          void run(draft.value);
        }}
      >
        <textarea
          class="query"
          aria-label="Question in SQL"
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
          <Choice<Limit> label="at most" value={limit} options={LIMITS.map((each) => [each, `${each} rows`] as const)} onChange={setLimit} />
        </div>
        <Suggestions title="Examples" queries={examples.map(({ title, query }) => [title, query] as const)} onChoose={run} />
        {past.value.length > 0 && (
          <details class="past">
            <summary>Asked before ({past.value.length})</summary>
            <Suggestions title="Asked before" queries={past.value.map((query) => [query.replace(/\s+/g, " "), query] as const)} onChoose={run} />
          </details>
        )}
      </form>
      <div class="answer" aria-busy={running !== undefined}>
        <Refused failure={failure} />
        {failure === undefined && answer !== undefined && <Result answer={answer} title="Answer" />}
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
