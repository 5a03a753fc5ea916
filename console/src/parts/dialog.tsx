// Modal dialogs: centred, as a drawer at the side, and the confirmation of an action that cannot be undone. The native `dialog` element
// traps and restores the focus, and closes on Escape.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { Button } from "./button.tsx";
import { Field } from "./field.tsx";

interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
  readonly side?: boolean;
  readonly actions?: ComponentChildren;
}

export function Dialog({ title, onClose, children, side = false, actions }: DialogProps) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const shown = box.current;
    shown?.showModal();
    // Focus the first field of a form instead of the close button.
    shown?.querySelector<HTMLElement>(".dialog-body :is(input, textarea, select)")?.focus();
    return () => shown?.close();
  }, []);
  return (
    <dialog
      ref={box}
      class={side ? "drawer" : "dialog"}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === box.current) onClose();
      }}
    >
      <div class="dialog-box">
        <header>
          <h2 id={id}>{title}</h2>
          <div class="actions">
            {actions}
            <Button icon="close" kind="quiet" label="Close" onPress={onClose} />
          </div>
        </header>
        <div class="dialog-body">{children}</div>
      </div>
    </dialog>
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
  const [isBusy, setBusy] = useState(false);
  const isSure = word === undefined || typed === word;
  const confirm = async (): Promise<void> => {
    setBusy(true);
    try {
      await onConfirm();
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
          if (isSure && !isBusy) void confirm();
        }}
      >
        {children}
        {word !== undefined && <Field label={`Type ${word} to confirm`} value={typed} onInput={type} />}
        <div class="actions end">
          <Button onPress={onClose}>Cancel</Button>
          <Button type="submit" kind="danger" isDisabled={!isSure || isBusy}>
            {verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
