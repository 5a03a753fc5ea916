// The status of a stream for the user: a label, a sentence and a severity.

import type { Listener } from "./listener.ts";

export type Severity = "good" | "waiting" | "warning" | "bad";

export interface Verdict {
  readonly label: string;
  readonly text: string;
  readonly severity: Severity;
  /** The actions that the user can take. */
  readonly offers: readonly ("retry" | "skip" | "next")[];
}

export function verdict(listener: Listener): Verdict {
  if (listener.rejection !== undefined) {
    const { message, hint } = listener.rejection;
    return status("bad", "Rejected", hint === undefined ? message : `${message} ${hint}`, ["retry"]);
  }
  return listener.verifier.ending === undefined ? running(listener) : ended(listener);
}

function running({ verifier, link }: Listener): Verdict {
  if (link === "lost") {
    return status("warning", "Connection lost", "Reconnecting. The stream resumes after the last verified message.");
  }
  if (verifier.isTampered) {
    return verifier.mark === undefined
      ? status("bad", "Not verified", "The messages that arrive were not made with this key and are not shown. Requesting the beginning from the relay.")
      : status("bad", "Tampered with", "A message that the publisher did not make arrived in place of the next one. It is not shown. Requesting the original from the relay.");
  }
  if (verifier.isAsking) {
    return status("warning", "Retrying", "A message is missing. Requesting the messages after the last verified one from the relay.");
  }
  if (verifier.mark === undefined) {
    return status("waiting", "Waiting", verifier.counts.accepted === 0 ? "No messages on this topic yet." : "The next stream of this topic has not started.");
  }
  const dropped = verifier.tampered === 0 ? "" : ` ${count(verifier.tampered)} that the publisher did not make ${verifier.tampered === 1 ? "was" : "were"} dropped.`;
  return status("good", "Live", `Every message shown follows the previous one and has a valid MAC.${dropped}`);
}

function ended({ verifier }: Listener): Verdict {
  const ending = verifier.ending;
  switch (ending?.kind) {
    case "complete":
      return status("good", "Complete", `The publisher ended the stream${ending.finishReason === "" ? "" : ` (${ending.finishReason})`}.`, ["next"]);
    case "failure":
      return ending.code === "cancelled"
        ? status("warning", "Cancelled", ending.message === "" ? "A reader cancelled the stream." : sentence(ending.message), ["next"])
        : status("bad", "Failed", `The publisher reports an error${ending.code === "" ? "" : ` (${ending.code})`}: ${sentence(ending.message || "no message")} ${ending.details}`.trim(), ["next"]);
    case "gap":
      if (ending.isBeginning) {
        return status("bad", "Beginning missing", "The relay no longer has the first messages, or the key belongs to another stream. You can verify what the relay still has, from its oldest message on.", ["retry", "skip"]);
      }
      return status("bad", "Gap", `Messages are missing${ending.isGone ? " and the relay no longer has them" : ", and the relay did not deliver them"}. The text ends at the gap.`, ["retry", "skip"]);
    case "tampered":
      return ending.isBeginning
        ? status("bad", "Not verified", `${count(ending.count)} arrived that were not made with this key: the key or the suite belongs to another stream, or another publisher uses this topic.`, ["retry"])
        : status("bad", "Tampered with", `${count(ending.count)} that the publisher did not make arrived in place of the next one. None is shown.`, ["retry"]);
    case "truncated":
      return status("bad", "Truncated", "No messages for 30 seconds, and the publisher did not end the stream.", ["retry"]);
    case "unreadable":
      return status("bad", "Unreadable", `A message with a valid MAC cannot be decoded: ${ending.message}.`);
    default:
      return status("waiting", "Closed", "The connection is closed.", ["retry"]);
  }
}

function status(severity: Severity, label: string, text: string, offers: Verdict["offers"] = []): Verdict {
  return { severity, label, text, offers };
}

function sentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

function count(messages: number): string {
  return messages === 1 ? "1 message" : `${messages.toLocaleString("en-GB")} messages`;
}
