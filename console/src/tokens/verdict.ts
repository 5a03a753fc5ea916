// What is said about a stream in words: one short label, one sentence, and how grave it is.

import type { Listener } from "./listener.ts";

export type Gravity = "good" | "waiting" | "warning" | "bad";

export interface Verdict {
  readonly label: string;
  readonly text: string;
  readonly gravity: Gravity;
  /** What a person may choose to do about it. */
  readonly offers: readonly ("retry" | "skip" | "next")[];
}

export function verdict(listener: Listener): Verdict {
  if (listener.trouble !== undefined) {
    const { message, hint } = listener.trouble;
    return say("bad", "Refused", hint === undefined ? message : `${message} ${hint}`, ["retry"]);
  }
  return listener.follower.ending === undefined ? underWay(listener) : ended(listener);
}

function underWay({ follower, link }: Listener): Verdict {
  if (link === "lost") {
    return say("warning", "Connection lost", "Connecting again; the stream goes on from the last verified message.");
  }
  if (follower.isTampered) {
    return follower.mark === undefined
      ? say("bad", "Not verified", "What arrives was not made with this key. It is not shown; asking the relay for the beginning.")
      : say("bad", "Tampered with", "In place of the next message there is one that the publisher did not make. It is not shown; asking the relay for the real one.");
  }
  if (follower.isAsking) {
    return say("warning", "Asking again", "A message is missing. Asking the relay for what followed the last verified one.");
  }
  if (follower.mark === undefined) {
    return say("waiting", "Waiting", follower.counts.accepted === 0 ? "Nothing has arrived on this topic yet." : "The next stream of this topic has not begun.");
  }
  const dropped = follower.tampered === 0 ? "" : ` ${count(follower.tampered)} that the publisher did not make ${follower.tampered === 1 ? "was" : "were"} dropped.`;
  return say("good", "Live", `Every message that is shown follows the one before it and bears a good MAC.${dropped}`);
}

function ended({ follower }: Listener): Verdict {
  const ending = follower.ending;
  switch (ending?.kind) {
    case "complete":
      return say("good", "Complete", `The publisher ended the stream${ending.finishReason === "" ? "" : ` (${ending.finishReason})`}.`, ["next"]);
    case "failure":
      return ending.code === "cancelled"
        ? say("warning", "Cancelled", ending.message === "" ? "A reader wanted no more." : sentence(ending.message), ["next"])
        : say("bad", "Failed", `The publisher reports an error${ending.code === "" ? "" : ` (${ending.code})`}: ${sentence(ending.message || "no message")} ${ending.details}`.trim(), ["next"]);
    case "gap":
      if (ending.isBeginning) {
        return say("bad", "Beginning missing", "The relay no longer has the first messages, or the key is another stream's. What it still has can be verified from its oldest message on.", ["retry", "skip"]);
      }
      return say("bad", "Gap", `Messages are missing${ending.isGone ? " and the relay no longer has them" : ", and asking for them brought nothing"}. The text ends where the chain breaks.`, ["retry", "skip"]);
    case "tampered":
      return ending.isBeginning
        ? say("bad", "Not verified", `${count(ending.count)} arrived that this key did not make: the key or the suite is another stream's, or somebody else is publishing on this topic.`, ["retry"])
        : say("bad", "Tampered with", `${count(ending.count)} arrived in place of the next one that the publisher did not make. None of them is shown.`, ["retry"]);
    case "truncated":
      return say("bad", "Cut off", "Half a minute of silence, and the publisher never said that the stream is over.", ["retry"]);
    case "unreadable":
      return say("bad", "Unreadable", `A good MAC on a message that cannot be read: ${ending.message}.`);
    default:
      return say("waiting", "Closed", "Nobody listens any more.", ["retry"]);
  }
}

function say(gravity: Gravity, label: string, text: string, offers: Verdict["offers"] = []): Verdict {
  return { gravity, label, text, offers };
}

function sentence(text: string): string {
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

function count(messages: number): string {
  return messages === 1 ? "1 message" : `${messages.toLocaleString("en-GB")} messages`;
}
