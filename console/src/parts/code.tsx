// A code block: JSON indented, any other text unchanged.

import { pretty } from "../json.ts";
import { CopyButton } from "./button.tsx";

export function Code({ value, label }: { value: unknown; label: string }) {
  const text = pretty(value);
  return (
    <div class="code">
      <CopyButton text={text} label={`Copy ${label}`} />
      <pre tabIndex={0} aria-label={label}>
        {text}
      </pre>
    </div>
  );
}
