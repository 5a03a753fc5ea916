// The colour theme: light, dark, or the system's. Stored in this browser.

import { effect, signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";

const KEY = "penstock-theme";
const ORDER: readonly Theme[] = ["auto", "light", "dark"];

export const theme = signal<Theme>("auto");
/** Whether the theme is dark now, for drawing on a canvas. */
export const isDark = signal(false);

export function watchTheme(): void {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const stored = window.localStorage.getItem(KEY);
  theme.value = ORDER.find((known) => known === stored) ?? "auto";
  const systemIsDark = signal(system.matches);
  system.addEventListener("change", () => {
    systemIsDark.value = system.matches;
  });
  effect(() => {
    document.documentElement.dataset["theme"] = theme.value;
    isDark.value = theme.value === "auto" ? systemIsDark.value : theme.value === "dark";
  });
}

export function nextTheme(): void {
  theme.value = ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length] ?? "auto";
  window.localStorage.setItem(KEY, theme.value);
}
