// The viewer of a token stream: key form, verified text, status and counters.

import { useEffect, useRef, useState } from "preact/hooks";

import { Button, CopyButton } from "../parts/button.tsx";
import { Choice, Field } from "../parts/field.tsx";
import { Badge, Panel, type Tone } from "../parts/panel.tsx";
import { count, plural, rate, span } from "../format.ts";
import { browser, linked } from "./browser.ts";
import type { Suite } from "./chain.ts";
import { Listener, validate, type Wanted } from "./listener.ts";
import { type Severity, verdict } from "./verdict.ts";

const TONES: Readonly<Record<Severity, Tone>> = { good: "good", waiting: "plain", warning: "warn", bad: "bad" };
const NOTHING: Wanted = { topic: "", key: "", suite: "sha256" };

export function Viewer() {
  const [wanted, want] = useState<Wanted>(NOTHING);
  const [listener, listen] = useState<Listener | undefined>(undefined);
  const [, redraw] = useState(0);
  const frame = useRef(0);
  const open = useRef<Listener | undefined>(undefined);

  // Tokens arrive faster than the page is drawn, so redraw at most once per animation frame.
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
    if (validate(offer) === undefined) start(offer);
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
  const [isSubmitted, setSubmitted] = useState(false);
  const error = validate(wanted);
  return (
    <Panel title="Read a stream" note="Publisher and reader agree on topic and key. The key never leaves this page.">
      <form
        class="stack token-form"
        autocomplete="off"
        onSubmit={(event) => {
          event.preventDefault();
          setSubmitted(true);
          if (error === undefined) onListen();
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
            Start
          </Button>
        </div>
        <p class={isSubmitted && error !== undefined ? "note bad" : "note"} role={isSubmitted && error !== undefined ? "alert" : undefined}>
          {isSubmitted && error !== undefined ? (
            error.message
          ) : (
            <>
              Or open a link with <code>#/tokens?topic=…&amp;key=…</code>. The page removes both from the address at once.
            </>
          )}
        </p>
      </form>
    </Panel>
  );
}

function Shown({ listener, onStop }: { listener: Listener; onStop: () => void }) {
  const { verifier, transcript, wanted } = listener;
  const { counts, ending } = verifier;
  const status = verdict(listener);
  const total = counts.accepted + verifier.doubtful;
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
          <CopyButton text={transcript.plain()} label="Copy verified text" />
          <Button onPress={onStop}>{ending === undefined ? "Stop" : "Close"}</Button>
        </>
      }
    >
      <div class="stack">
        <div class="verdict">
          <Badge tone={TONES[status.severity]}>{status.label}</Badge>
          <span class={`proof ${verifier.doubtful > 0 ? "bad" : counts.accepted > 0 ? "good" : ""}`} data-verified={counts.accepted} data-total={total}>
            verified {count(counts.accepted)} of {count(total)} {total === 1 ? "message" : "messages"}
          </span>
          <p role="status">{status.text}</p>
          {status.offers.includes("retry") && <Button icon="retry" onPress={() => listener.reopen(false)}>Retry</Button>}
          {status.offers.includes("next") && <Button onPress={() => listener.continueWithNext()}>Continue with next stream</Button>}
          {status.offers.includes("skip") && <Button onPress={() => listener.reopen(true)}>Skip missing messages</Button>}
        </div>
        <Text listener={listener} />
        <dl class="facts">
          <Fact name="Tokens" value={count(transcript.tokens)} />
          <Fact name="Tokens/s" value={ending === undefined ? rate(listener.tokenRate) : "–"} />
          <Fact name="Format" value={verifier.format ?? "–"} />
          <Fact name="Duplicates" value={count(counts.duplicates)} />
          <Fact name="Forged" value={count(verifier.tampered)} isBad={verifier.tampered > 0} />
          <Fact name="After a gap" value={count(verifier.ahead)} />
          <Fact name="Foreign" value={count(counts.foreign)} />
          <Fact name="Retries" value={count(counts.asked)} />
          <Fact name="Disconnects" value={count(listener.disconnects)} />
        </dl>
        {ending?.kind === "complete" && (
          <p class="note">
            The publisher reports {plural(ending.tokens, "token")} in {span(ending.generationMs)}
            {ending.tokensPerSecond > 0 && `, ${rate(ending.tokensPerSecond)} tokens/s`}
            {ending.perplexity > 0 && `, perplexity ${rate(ending.perplexity)}`}.
          </p>
        )}
      </div>
    </Panel>
  );
}

/** The text scrolls with new tokens only while it is scrolled to the end. */
function Text({ listener }: { listener: Listener }) {
  const { transcript, verifier } = listener;
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
      {transcript.cut > 0 && <span class="hole">[{plural(transcript.cut, "character")} dropped]</span>}
      {transcript.runs.map((run, index) =>
        run.kind === "text" ? (
          <span key={index}>{run.text}</span>
        ) : (
          <span key={index} class={run.kind === "gap" ? "hole" : "stream-end"}>
            {run.kind === "gap" ? "[messages missing]" : run.text}
          </span>
        ),
      )}
      {verifier.ending === undefined && <span class="caret" aria-hidden="true" />}
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
