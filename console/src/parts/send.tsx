// The dialog that sends a message to a stream.

import { notify } from "../notices.ts";
import { fetchJson } from "../request.ts";
import { EnvelopeForm, type Typed } from "./form.tsx";

interface SendProps {
  readonly to?: string;
  readonly streams: readonly string[];
  readonly onClose: () => void;
}

interface Sent {
  readonly id: string;
  readonly to: string;
  readonly recipient?: { readonly known: boolean; readonly present: boolean };
}

export function SendDialog({ to = "", streams, onClose }: SendProps) {
  const send = async ({ to, kind, payload }: Typed): Promise<void> => {
    const sent = await fetchJson<Sent>("/v1/send", { method: "POST", body: { to, type: kind, payload } });
    const note = sent.recipient?.present === false ? " No subscribers at the moment." : "";
    notify(`Sent ${sent.id} to ${sent.to}.${note}`);
    onClose();
  };
  return (
    <EnvelopeForm
      title="Send a message"
      verb="Send"
      icon="send"
      to={to}
      kind="hello"
      payload={'{\n  "text": "Good morning"\n}'}
      streams={streams}
      toHint="A stream, or the name of an agent: sam stands for agents/sam/inbox."
      onSubmit={send}
      onClose={onClose}
    />
  );
}
