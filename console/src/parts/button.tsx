// Buttons, and a command with a copy button.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { Icon, type IconName } from "./icon.tsx";

interface ButtonProps {
  readonly children?: ComponentChildren;
  /** The accessible name of a button without text; also the tooltip. */
  readonly label?: string;
  readonly icon?: IconName;
  readonly kind?: "plain" | "main" | "danger" | "quiet";
  readonly type?: "button" | "submit";
  readonly isDisabled?: boolean;
  readonly isPressed?: boolean;
  readonly onPress?: () => void;
}

export function Button({ children, label, icon, kind = "plain", type = "button", isDisabled = false, isPressed, onPress }: ButtonProps) {
  return (
    <button class={`button ${kind}`} type={type} disabled={isDisabled} aria-pressed={isPressed} aria-label={label} title={label} onClick={onPress}>
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

/** Copies a text to the clipboard and reports the result. */
export function CopyButton({ text, label = "Copy", isQuiet = true }: { text: string; label?: string; isQuiet?: boolean }) {
  const [status, setStatus] = useState("");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      setStatus("Copied");
    } catch {
      setStatus("The browser denied access to the clipboard");
    }
    setTimeout(() => setStatus(""), 1_500);
  };
  return (
    <span class="copy">
      <Button icon="copy" kind={isQuiet ? "quiet" : "plain"} label={label} onPress={() => void copy()} />
      <span class="copy-status" role="status">
        {status}
      </span>
    </span>
  );
}

/** A command with a copy button. */
export function Command({ text }: { text: string }) {
  return (
    <div class="command">
      <code tabIndex={0}>{text}</code>
      <CopyButton text={text} label="Copy command" />
    </div>
  );
}
