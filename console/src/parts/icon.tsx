// Icons. They always accompany a label, so they are hidden from screen readers.

const DRAWINGS = {
  overview: "M2.5 13.5v-4M6.2 13.5v-8M9.8 13.5v-6M13.5 13.5v-11",
  tail: "M2.5 4h11M2.5 8h11M2.5 12h6M12.5 10.5v4M10.8 12.8l1.7 1.7 1.7-1.7",
  queues: "M2.5 3.5h11v3h-11zM2.5 9.5h11v3h-11zM10.5 5h1M10.5 11h1",
  spaces: "M8 2.5a2 2 0 1 1 0 4 2 2 0 0 1 0-4zM3.5 9.5a2 2 0 1 1 0 4 2 2 0 0 1 0-4zM12.5 9.5a2 2 0 1 1 0 4 2 2 0 0 1 0-4zM6.9 6.2 4.6 9.7M9.1 6.2l2.3 3.5M5.5 11.5h5",
  streams: "M2 8c1.5-4 3-4 4.5 0s3 4 4.5 0 2-3.5 3-3.5M12.5 12.5h1M9.5 13.5h.5",
  pipeline: "M2.5 4.5h3v7h-3zM10.5 4.5h3v7h-3zM5.5 6.5h5M5.5 9.5h5",
  connections: "M2.5 4.5h4v7h-4zM6.5 8h3M9.5 5.5h4v5h-4z",
  access: "M5.5 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6zM8.5 8h5v2.5M11 8v2",
  settings: "M2.5 4.5h7M12.5 4.5h1M11 3v3M2.5 8h1M6.5 8h7M5 6.5v3M2.5 11.5h5M10.5 11.5h3M9 10v3",
  copy: "M5.5 5.5h8v8h-8zM3.5 10.5h-1v-8h8v1",
  close: "M4 4l8 8M12 4l-8 8",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9zM10.3 10.3l3.2 3.2",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.5l7 4.5-7 4.5z",
  down: "M8 2.5v9M4.5 8.5 8 12l3.5-3.5",
  export: "M8 9.5v-7M5 5l3-3 3 3M2.5 9.5v4h11v-4",
  send: "M2.5 8l11-5-4 11-2.5-4.5z",
  tree: "M3.5 2.5v9h4M3.5 6.5h4M9.5 5h4v3h-4zM9.5 10h4v3h-4z",
  back: "M9.5 3.5 5 8l4.5 4.5",
  light: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6zM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M3.4 12.6l.7-.7M11.9 4.1l.7-.7",
  dark: "M13 9.8A5.5 5.5 0 0 1 6.2 3a5.5 5.5 0 1 0 6.8 6.8z",
  auto: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11zM8 2.5v11M8 5h3.5M8 8h5M8 11h3.5",
  help: "M5.8 6a2.2 2.2 0 1 1 3 2.1c-.6.3-.8.6-.8 1.4M8 12v.4",
  exit: "M6.5 2.5h-4v11h4M6.5 8h7M10.5 5l3 3-3 3",
  warn: "M8 2.5l6 11H2zM8 6.5v3.5M8 11.8v.2",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
} as const;

export type IconName = keyof typeof DRAWINGS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={DRAWINGS[name]} fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}
