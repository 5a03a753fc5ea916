// Keyboard shortcuts: `g` and a letter opens a page, `/` focuses the filter, `?` lists the shortcuts. Keys typed into fields are ignored.

import { signal } from "@preact/signals";

import { pages } from "./pages.ts";
import { navigate } from "./router.ts";

export const isHelpShown = signal(false);

/** The time limit between `g` and the letter. */
const CHORD_MS = 1_500;

export function watchShortcuts(): void {
  let chordAt = -Infinity;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const isChord = event.timeStamp - chordAt < CHORD_MS;
    chordAt = -Infinity;
    const page = isChord ? pages.find(({ letter }) => letter === event.key) : undefined;
    if (page !== undefined) navigate(page.path === "" ? [] : [page.path]);
    else if (event.key === "g") chordAt = event.timeStamp;
    else if (event.key === "?") isHelpShown.value = !isHelpShown.value;
    else if (event.key === "/") focusFilter();
    else return;
    event.preventDefault();
  });
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

function focusFilter(): void {
  document.querySelector<HTMLInputElement>("[data-filter]")?.focus();
}
