// Modal dialogs: centred, or as a drawer at the side. The native `dialog` element traps and restores the focus, and closes on Escape.

import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";

import { Button } from "./button.tsx";

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
  // Before the next frame: an Escape that comes first would be lost, and the dialog would open after it.
  useLayoutEffect(() => {
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
