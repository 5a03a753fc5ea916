// What the page says about its line to the server, and the words about what was just done.

import { useEffect, useState } from "preact/hooks";

import { link } from "../link.ts";
import { dismiss, notices } from "../notices.ts";
import { isOutdated } from "../session.ts";
import { plural, span } from "../words.ts";
import { Button } from "./button.tsx";
import { Icon } from "./icon.tsx";

/** The time, renewed so often while the component is shown. */
export function useNow(everyMs: number = 1_000): number {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

export function LinkBanner() {
  const state = link.value;
  return (
    <div class="link-banner" role="status" data-link={state.state}>
      {state.state === "down" && <Away sinceMs={state.sinceMs} nextAtMs={state.nextAtMs} />}
      {isOutdated.value && state.state !== "down" && (
        <p class="banner warn">
          The server was updated. <a href="/">Load the page again</a> to see what is new.
        </p>
      )}
      {state.state === "back" && (
        <p class="banner good">
          Connected again after {span(state.awayMs)}.{state.missed > 0 && ` ${plural(state.missed, "row")} went by unseen.`}
        </p>
      )}
    </div>
  );
}

function Away({ sinceMs, nextAtMs }: { sinceMs: number; nextAtMs: number }) {
  const now = useNow();
  const wait = Math.max(0, Math.ceil((nextAtMs - now) / 1000));
  return (
    <p class="banner warn">
      <Icon name="retry" />
      <span>The server cannot be reached. Reconnecting…</span>
      {/* The seconds change all the time; a screen reader shall not read each of them. */}
      <span aria-hidden="true">
        away for {span(Math.floor((now - sinceMs) / 1000) * 1000)}, {wait > 0 ? `trying again in ${wait} s` : "trying now"}
      </span>
    </p>
  );
}

export function Notices() {
  return (
    <div class="notices" role="log" aria-live="polite" aria-label="What was done">
      {notices.value.map(({ key, text, hint, tone }) => (
        <div key={key} class={`notice ${tone}`}>
          <div>
            <p>{text}</p>
            {hint && <p class="note">{hint}</p>}
          </div>
          <Button icon="close" kind="quiet" label="Dismiss" onPress={() => dismiss(key)} />
        </div>
      ))}
    </div>
  );
}
