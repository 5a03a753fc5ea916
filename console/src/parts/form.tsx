// Dialogs with a form: a button that submits it, the error of the last attempt, the confirmation of an action that cannot be undone, and the
// token that an attempt has made.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { parseTyped } from "../json.ts";
import { asFailure, type Failure } from "../request.ts";
import { Button, CopyButton } from "./button.tsx";
import { Dialog } from "./dialog.tsx";
import { Field } from "./field.tsx";
import type { IconName } from "./icon.tsx";
import { Refused } from "./panel.tsx";

interface FormProps {
  readonly title: string;
  readonly verb: string;
  readonly icon?: IconName;
  readonly canSubmit: boolean;
  /** Throws if the server rejects it; the dialog shows why and stays open. */
  readonly onSubmit: () => Promise<void>;
  readonly onClose: () => void;
  readonly closeVerb?: string;
  readonly kind?: "main" | "danger";
  readonly children: ComponentChildren;
}

export function FormDialog({ title, verb, icon, canSubmit, onSubmit, onClose, closeVerb = "Cancel", kind = "main", children }: FormProps) {
  const [failure, fail] = useState<Failure | undefined>(undefined);
  const [isBusy, setBusy] = useState(false);
  const submit = async (): Promise<void> => {
    setBusy(true);
    fail(undefined);
    try {
      await onSubmit();
    } catch (error) {
      fail(asFailure(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (canSubmit && !isBusy) void submit();
        }}
      >
        {children}
        <Refused failure={failure} />
        <div class="actions end">
          <Button onPress={onClose}>{closeVerb}</Button>
          <Button type="submit" kind={kind} {...(icon && { icon })} isDisabled={!canSubmit || isBusy}>
            {verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

interface ConfirmProps {
  readonly title: string;
  readonly children: ComponentChildren;
  /** A word to type before the button is enabled; without it the button is always enabled. */
  readonly word?: string;
  readonly verb: string;
  readonly onConfirm: () => Promise<void>;
  readonly onClose: () => void;
}

export function Confirm({ title, children, word, verb, onConfirm, onClose }: ConfirmProps) {
  const [typed, type] = useState("");
  const isSure = word === undefined || typed === word;
  return (
    <FormDialog title={title} verb={verb} kind="danger" canSubmit={isSure} onSubmit={onConfirm} onClose={onClose}>
      {children}
      {word !== undefined && <Field label={`Type ${word} to confirm`} value={typed} onInput={type} />}
    </FormDialog>
  );
}

export interface Typed {
  readonly to: string;
  readonly kind: string;
  readonly payload: unknown;
}

interface EnvelopeFormProps extends Pick<FormProps, "title" | "verb" | "icon" | "onClose" | "closeVerb"> {
  readonly to?: string;
  readonly kind?: string;
  /** JSON text. */
  readonly payload?: string;
  /** Suggestions for the stream. */
  readonly streams?: readonly string[];
  readonly toHint?: string;
  readonly payloadHint?: string;
  readonly onSubmit: (typed: Typed) => Promise<void>;
  /** What follows the fields. */
  readonly children?: ComponentChildren;
}

/** A form with the stream, the type and the payload of an envelope. */
export function EnvelopeForm({ to: firstTo = "", kind: firstKind = "", payload: firstPayload = "{}", streams, toHint, payloadHint = "Any JSON value.", onSubmit, children, ...rest }: EnvelopeFormProps) {
  const [to, setTo] = useState(firstTo);
  const [kind, setKind] = useState(firstKind);
  const [payload, setPayload] = useState(firstPayload);
  const typed = parseTyped(payload);
  const canSubmit = to.trim() !== "" && kind.trim() !== "" && typed.error === undefined;
  return (
    <FormDialog {...rest} canSubmit={canSubmit} onSubmit={async () => void (typed.error === undefined && (await onSubmit({ to: to.trim(), kind: kind.trim(), payload: typed.value })))}>
      <Field label="To" value={to} onInput={setTo} {...(streams && { options: streams })} isRequired hint={toHint} />
      <Field label="Type" value={kind} onInput={setKind} isRequired hint="The type of the message, for example hello." />
      <Field label="Payload" value={payload} onInput={setPayload} lines={8} error={typed.error} hint={payloadHint} />
      {children}
    </FormDialog>
  );
}

/** Shows a token that was just made. */
export function TokenDialog({ name, token, onClose, children }: { name: string; token: string; onClose: () => void; children?: ComponentChildren }) {
  return (
    <Dialog title={`Token for ${name}`} onClose={onClose}>
      <div class="stack">
        <p>Copy the token now. It is shown only once: the server stores only a digest.</p>
        <div class="command">
          <code tabIndex={0} data-token>
            {token}
          </code>
          <CopyButton text={token} label="Copy token" />
        </div>
        {children}
        <div class="actions end">
          <Button kind="main" onPress={onClose}>
            Done
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
