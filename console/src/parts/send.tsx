// The dialog that sends a message to a stream.

import { useState } from "preact/hooks";

import { parseTyped } from "../json.ts";
import { notify } from "../notices.ts";
import { fetchJson, asFailure, type Failure } from "../request.ts";
import { Button } from "./button.tsx";
import { Dialog } from "./dialog.tsx";
import { Field } from "./field.tsx";
import { Refused } from "./panel.tsx";

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

export function SendDialog({ to: first = "", streams, onClose }: SendProps) {
  const [to, setTo] = useState(first);
  const [kind, setKind] = useState("hello");
  const [payload, setPayload] = useState('{\n  "text": "Good morning"\n}');
  const [failure, fail] = useState<Failure | undefined>(undefined);
  const [isBusy, setBusy] = useState(false);
  const typed = parseTyped(payload);
  const canSend = to.trim() !== "" && kind.trim() !== "" && typed.error === undefined && !isBusy;

  const send = async (): Promise<void> => {
    if (typed.error !== undefined) return;
    setBusy(true);
    try {
      const body = { to: to.trim(), type: kind.trim(), payload: typed.value };
      const sent = await fetchJson<Sent>("/v1/send", { method: "POST", body });
      const note = sent.recipient?.present === false ? " No subscribers at the moment." : "";
      notify(`Sent ${sent.id} to ${sent.to}.${note}`);
      onClose();
    } catch (error) {
      fail(asFailure(error));
    } finally {
      setBusy(false);
    }
  };

  return (
    <Dialog title="Send a message" onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (canSend) void send();
        }}
      >
        <Field label="To" value={to} onInput={setTo} options={streams} isRequired hint="A stream, or the name of an agent: sam stands for agents/sam/inbox." />
        <Field label="Type" value={kind} onInput={setKind} isRequired hint="The type of the message, for example hello." />
        <Field label="Payload" value={payload} onInput={setPayload} lines={7} error={typed.error} hint="Any JSON value." />
        <Refused failure={failure} />
        <div class="actions end">
          <Button onPress={onClose}>Cancel</Button>
          <Button type="submit" kind="main" icon="send" isDisabled={!canSend}>
            Send
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
