/**
 * Records as a conversation keeps them: only those that it shows, with neighbouring pieces of one text joined.
 *
 * An agent can write a text in thousands of pieces. Joined, they are one record that grows.
 */
import type { Schemas } from "./api";

export type Event = Schemas["Event"];
export type Json = Record<string, unknown>;

/** A record as it is kept. */
export interface Kept {
  seq: number;
  /** Sequence number of the last record that was joined to this one. */
  last: number;
  time: string;
  length: number;
  event: Event;
  /** The joined text of pieces, and what it is. */
  text?: string;
  /** The end of the joined text. */
  tail?: string;
  piece?: "text" | "thought";
  /** Whether the piece begins a new item, since the text before is long enough. */
  begins?: boolean;
  /** Id of the message that the piece belongs to, if the agent names it. */
  message?: string;
}

export const object = (value: unknown): Json => (typeof value === "object" && value !== null ? (value as Json) : {});
export const text = (value: unknown): string => (typeof value === "string" ? value : "");
export const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);

/** Kinds that a conversation shows. */
const SHOWN = new Set([
  "turn.queued",
  "turn.started",
  "turn.ended",
  "turn.limited",
  "turn.silent",
  "turn.cancelling",
  "permission.requested",
  "permission.resolved",
  "agent.out",
  "agent.dropped",
  "agent.unusable",
  "agent.exited",
  "launch.started",
  "launch.failed",
  "launch.degraded",
  "conversation.opened",
  "daemon.recovered",
  "journal.repaired",
  "stop.requested",
]);

/** Updates of the session that are shown. */
const UPDATES = new Set([
  "agent_message_chunk",
  "agent_thought_chunk",
  "tool_call",
  "tool_call_update",
  "plan",
  "available_commands_update",
  "current_mode_update",
]);

/** Returns the update in a message of the agent, if it is one. */
export function update(event: Event): Json | undefined {
  if (event.kind !== "agent.out") return undefined;
  const message = object(event.data);
  return message["method"] === "session/update" ? object(object(message["params"])["update"]) : undefined;
}

/** Returns the tool call for which the agent asks a permission in a message, if it does. */
export function asked(event: Event): Json | undefined {
  if (event.kind !== "agent.out") return undefined;
  const message = object(event.data);
  return message["method"] === "session/request_permission" ? object(object(message["params"])["toolCall"]) : undefined;
}

/** Returns a record as it is kept, or undefined if a conversation does not show it. */
export function kept(event: Event, length: number): Kept | undefined {
  if (!SHOWN.has(event.kind)) return undefined;
  const record: Kept = { seq: event.seq, last: event.seq, time: event.time, length, event };
  if (event.kind !== "agent.out") return record;
  if (asked(event) !== undefined) return record;
  const found = update(event);
  if (found === undefined || !UPDATES.has(text(found["sessionUpdate"]))) return undefined;
  const piece = found["sessionUpdate"];
  const content = object(found["content"]);
  if ((piece === "agent_message_chunk" || piece === "agent_thought_chunk") && content["type"] === "text") {
    record.text = text(content["text"]);
    record.tail = record.text.slice(-8);
    record.piece = piece === "agent_message_chunk" ? "text" : "thought";
    record.message = text(found["messageId"]) || undefined;
    record.length = record.text.length + 100;
  }
  return record;
}

/** Length from which a text goes on in a record of its own, where a paragraph ends. */
const LONG = 16_000;

/** Returns whether a text is long and ends where it may be divided: after a paragraph, not within a block of code. */
function isWhole(whole: string, tail: string): boolean {
  if (whole.length <= LONG || !/\n\s*\n$/.test(tail)) return false;
  return (whole.match(/^ {0,3}(```|~~~)/gm)?.length ?? 0) % 2 === 0;
}

/** Returns whether a piece continues a text: kind and message are the same. */
export function isSameText(before: Pick<Kept, "piece" | "message">, next: Kept): boolean {
  return next.piece !== undefined && before.piece === next.piece && before.message === next.message;
}

/** Joins a piece of a text to the record before, if both belong together. Returns whether it did. */
export function join(before: Kept | undefined, next: Kept): boolean {
  if (before === undefined || !isSameText(before, next)) return false;
  if (isWhole(before.text!, before.tail!)) {
    next.begins = true;
    return false;
  }
  before.text += next.text!;
  // Reading the end of a text that grows would copy all of it for each piece.
  before.tail = (before.tail! + next.text!).slice(-8);
  before.last = next.last;
  before.length += next.text!.length;
  return true;
}
