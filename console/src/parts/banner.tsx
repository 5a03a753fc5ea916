// The connection banner, and the list of notifications.

import { useEffect, useState } from "preact/hooks";

import { connection } from "../connection.ts";
import { dismiss, notices } from "../notices.ts";
import { isOutdated } from "../session.ts";
import { plural, span } from "../format.ts";
import { Button } from "./button.tsx";
import { Icon } from "./icon.tsx";

/** The current time, updated at this interval while the component is mounted. */
export function useNow(everyMs: number = 1_000): number {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

export function ConnectionBanner() {
  const state = connection.value;
  return (
    <div class="link-banner" role="status" data-link={state.state}>
      {state.state === "down" && <Away sinceMs={state.sinceMs} nextAtMs={state.nextAtMs} />}
      {isOutdated.value && state.state !== "down" && (
        <p class="banner warn">
          The server was updated. <a href="/">Reload the page</a> to use the new version.
        </p>
      )}
      {state.state === "back" && (
        <p class="banner good">
          Reconnected after {span(state.awayMs)}.{state.missed > 0 && ` ${plural(state.missed, "row")} missed.`}
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
      <span>Server unreachable. Reconnecting…</span>
      {/* Hidden from screen readers, which would read out every second. */}
      <span aria-hidden="true">
        down for {span(Math.floor((now - sinceMs) / 1000) * 1000)}, {wait > 0 ? `next attempt in ${wait} s` : "connecting"}
      </span>
    </p>
  );
}

export function Notices() {
  return (
    <div class="notices" role="log" aria-live="polite" aria-label="Notifications">
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
