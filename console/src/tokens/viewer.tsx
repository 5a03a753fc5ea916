// The viewer of one token stream: who it listens to, what the chain proves so far, and how it ended.

import { useEffect, useRef, useState } from "preact/hooks";

import { Button, CopyButton } from "../parts/button.tsx";
import { Choice, Field } from "../parts/field.tsx";
import { Badge, Panel, type Tone } from "../parts/panel.tsx";
import { count, plural, rate, span } from "../words.ts";
import { browser, linked } from "./browser.ts";
import type { Suite } from "./chain.ts";
import { Listener, misfit, type Wanted } from "./listener.ts";
import { type Gravity, verdict } from "./verdict.ts";

const TONES: Readonly<Record<Gravity, Tone>> = { good: "good", waiting: "plain", warning: "warn", bad: "bad" };
const NOTHING: Wanted = { topic: "", key: "", suite: "sha256" };

export function Viewer() {
  const [wanted, want] = useState<Wanted>(NOTHING);
  const [listener, listen] = useState<Listener | undefined>(undefined);
  const [, redraw] = useState(0);
  const frame = useRef(0);
  const open = useRef<Listener | undefined>(undefined);

  // Tokens come faster than a page is drawn, so it is drawn once for all that came in between.
  const changed = (): void => {
    if (frame.current !== 0) return;
    frame.current = requestAnimationFrame(() => {
      frame.current = 0;
      redraw((number) => number + 1);
    });
  };
  const start = (stream: Wanted): void => {
    open.current?.close();
    open.current = new Listener(stream, browser, changed);
    listen(open.current);
  };
  const stop = (): void => {
    open.current?.close();
    open.current = undefined;
    listen(undefined);
    want({ ...NOTHING, topic: wanted.topic, suite: wanted.suite });
  };
  const offer = linked.value;
  useEffect(() => {
    if (offer === undefined) return;
    linked.value = undefined;
    want(offer);
    if (misfit(offer) === undefined) start(offer);
  }, [offer]);
  useEffect(
    () => () => {
      open.current?.close();
      cancelAnimationFrame(frame.current);
    },
    [],
  );
  return listener === undefined ? (
    <KeyForm wanted={wanted} onChange={want} onListen={() => start(wanted)} />
  ) : (
    <Shown listener={listener} onStop={stop} />
  );
}

interface FormProps {
  readonly wanted: Wanted;
  readonly onChange: (wanted: Wanted) => void;
  readonly onListen: () => void;
}

function KeyForm({ wanted, onChange, onListen }: FormProps) {
  const [isTold, tell] = useState(false);
  const trouble = misfit(wanted);
  return (
    <Panel title="Read a stream" note="Topic and key come from the two ends' agreement. The key never leaves this page.">
      <form
        class="stack token-form"
        autocomplete="off"
        onSubmit={(event) => {
          event.preventDefault();
          tell(true);
          if (trouble === undefined) onListen();
        }}
      >
        <Field
          label="Topic"
          value={wanted.topic}
          placeholder="64 hexadecimal digits"
          onInput={(topic) => onChange({ ...wanted, topic: topic.trim().toLowerCase() })}
        />
        <Field
          label="MAC key"
          type="password"
          value={wanted.key}
          placeholder="64 hexadecimal digits"
          onInput={(key) => onChange({ ...wanted, key: key.trim() })}
        />
        <div class="row">
          <Choice<Suite>
            label="Suite"
            value={wanted.suite}
            options={[
              ["sha256", "sha256 (HMAC)"],
              ["blake3", "blake3"],
            ]}
            onChange={(suite) => onChange({ ...wanted, suite })}
          />
          <Button type="submit" kind="main" icon="play">
            Listen
          </Button>
        </div>
        <p class={isTold && trouble !== undefined ? "note bad" : "note"} role={isTold && trouble !== undefined ? "alert" : undefined}>
          {isTold && trouble !== undefined ? (
            trouble.message
          ) : (
            <>
              A link does the same: <code>#/tokens?topic=…&amp;key=…</code>; both are taken out of the address at once.
            </>
          )}
        </p>
      </form>
    </Panel>
  );
}

function Shown({ listener, onStop }: { listener: Listener; onStop: () => void }) {
  const { follower, transcript, wanted } = listener;
  const { counts, ending } = follower;
  const said = verdict(listener);
  const total = counts.accepted + follower.doubtful;
  return (
    <Panel
      title="Stream"
      note={
        <span class="mono" title={wanted.topic}>
          {wanted.topic.slice(0, 16)}…
        </span>
      }
      actions={
        <>
          <CopyButton text={transcript.plain()} label="Copy the verified text" />
          <Button onPress={onStop}>{ending === undefined ? "Stop" : "Close"}</Button>
        </>
      }
    >
      <div class="stack">
        <div class="verdict">
          <Badge tone={TONES[said.gravity]}>{said.label}</Badge>
          <span class={`proof ${follower.doubtful > 0 ? "bad" : counts.accepted > 0 ? "good" : ""}`} data-verified={counts.accepted} data-total={total}>
            verified {count(counts.accepted)} of {count(total)} {total === 1 ? "message" : "messages"}
          </span>
          <p role="status">{said.text}</p>
          {said.offers.includes("retry") && <Button icon="retry" onPress={() => listener.reopen(false)}>Try again</Button>}
          {said.offers.includes("next") && <Button onPress={() => listener.keepOn()}>Keep listening</Button>}
          {said.offers.includes("skip") && <Button onPress={() => listener.reopen(true)}>Go on behind what is missing</Button>}
        </div>
        <Text listener={listener} />
        <dl class="facts">
          <Fact name="Tokens" value={count(transcript.tokens)} />
          <Fact name="Per second" value={ending === undefined ? rate(listener.pace) : "–"} />
          <Fact name="Format" value={follower.format ?? "–"} />
          <Fact name="Repeats dropped" value={count(counts.duplicates)} />
          <Fact name="Not the publisher's" value={count(follower.tampered)} isBad={follower.tampered > 0} />
          <Fact name="Behind a gap" value={count(follower.ahead)} />
          <Fact name="Of no stream" value={count(counts.foreign)} />
          <Fact name="Asked again" value={count(counts.asked)} />
          <Fact name="Connections lost" value={count(listener.losses)} />
        </dl>
        {ending?.kind === "complete" && (
          <p class="note">
            The publisher counts {plural(ending.tokens, "token")} in {span(ending.generationMs)}
            {ending.tokensPerSecond > 0 && `, ${rate(ending.tokensPerSecond)} a second`}
            {ending.perplexity > 0 && `, perplexity ${rate(ending.perplexity)}`}.
          </p>
        )}
      </div>
    </Panel>
  );
}

/** The text keeps to its end while one looks at the end, and stays where one has scrolled to otherwise. */
function Text({ listener }: { listener: Listener }) {
  const { transcript, follower } = listener;
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    if (isAtEnd.current && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [transcript.runs]);
  return (
    <div
      ref={box}
      class="transcript"
      role="log"
      aria-label="Verified text"
      aria-live="off"
      tabIndex={0}
      onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
        isAtEnd.current = scrollHeight - scrollTop - clientHeight < 24;
      }}
    >
      {transcript.cut > 0 && <span class="hole">[{plural(transcript.cut, "character")} before this not kept]</span>}
      {transcript.runs.map((run, index) =>
        run.kind === "text" ? (
          <span key={index}>{run.text}</span>
        ) : (
          <span key={index} class={run.kind === "gap" ? "hole" : "stream-end"}>
            {run.kind === "gap" ? "[messages missing here]" : run.text}
          </span>
        ),
      )}
      {follower.ending === undefined && <span class="caret" aria-hidden="true" />}
    </div>
  );
}

function Fact({ name, value, isBad = false }: { name: string; value: string; isBad?: boolean }) {
  return (
    <div class={isBad ? "bad" : undefined}>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}
