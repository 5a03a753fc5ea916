// Buttons, and those that copy.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

import { Icon, type IconName } from "./icon.tsx";

interface ButtonProps {
  readonly children?: ComponentChildren;
  /** What a screen reader says where there are no words; also the tooltip. */
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

/** Puts a text on the clipboard and says so. */
export function CopyButton({ text, label = "Copy", isQuiet = true }: { text: string; label?: string; isQuiet?: boolean }) {
  const [said, say] = useState("");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("The browser did not allow it");
    }
    setTimeout(() => say(""), 1_500);
  };
  return (
    <span class="copy">
      <Button icon="copy" kind={isQuiet ? "quiet" : "plain"} label={label} onPress={() => void copy()} />
      <span class="said" role="status">
        {said}
      </span>
    </span>
  );
}

/** A command to type, with a button that copies it. */
export function Command({ text }: { text: string }) {
  return (
    <div class="command">
      <code tabIndex={0}>{text}</code>
      <CopyButton text={text} label="Copy the command" />
    </div>
  );
}
