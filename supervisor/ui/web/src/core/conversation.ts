/**
 * The items of a conversation on the screen, folded from the records of a session's journal.
 *
 * Sequence numbers of records rise without gaps. A record that was folded before is ignored, so a repeated one changes
 * nothing. An item is changed in place, and its `rev` rises with each change.
 */
import type { PromptPart, Schemas } from "./api";
import * as records from "./records";
import { asked, kept, list, object, text, update, type Event, type Json, type Kept } from "./records";
import { updated, type Tool } from "./tools";

export type { Event } from "./records";

interface Common {
  /** Names the item in its conversation, also after records were dropped and read again. */
  key: string;
  /** Sequence number of the record that made the item. */
  seq: number;
  time: string;
  /** Rises with each change of the item. */
  rev: number;
}

export type Item = Common &
  (
    | { kind: "prompt"; turn: string; text: string; parts: PromptPart[]; by?: string; queued: boolean }
    | { kind: "note"; text: string }
    | { kind: "text" | "thought"; text: string; message?: string }
    | { kind: "image"; mime: string; data: string }
    | { kind: "tool"; tool: Tool }
    | { kind: "plan"; entries: PlanEntry[] }
    | { kind: "question"; request: Schemas["PermissionRequest"]; tool?: Tool; answer?: Answer }
    | { kind: "ended"; turn: string; reason?: string; synthetic?: Schemas["Synthetic"] }
    | { kind: "marker"; marker: Marker; values: Record<string, string> }
  );

export type Marker =
  | "recovered"
  | "launched"
  | "exited"
  | "failed"
  | "degraded"
  | "stopped"
  | "repaired"
  | "conversation"
  | "limited"
  | "silent"
  | "cancelling"
  | "dropped"
  | "unusable"
  | "gap";

export interface PlanEntry {
  content: string;
  priority: string;
  status: string;
}

/** The answer to a question, and who gave it. */
export interface Answer {
  by: Schemas["AnsweredBy"];
  /** Id of the chosen option. Absent for a cancelled question. */
  option?: string;
  requester?: Schemas["Requester"];
  form?: Json;
}

/** State beside the items: what the input shows. */
export interface Side {
  commands: { name: string; description: string; hint?: string }[];
  mode?: string;
}

/** A time without a connection, after the record `after`. Times are milliseconds of this machine's clock. */
export interface Gap {
  after: number;
  from: number;
  to: number;
}

type Of<Kind extends Item["kind"]> = Item & { kind: Kind };

/** Folds records into items. */
export class Conversation {
  /** The items, in the order in which they are shown. */
  items: Item[] = [];
  side: Side = { commands: [] };
  /** Sequence numbers of the first kept record and of the last folded one. */
  first: number | undefined;
  last = 0;
  /** Time of the last folded record. */
  time = "";
  /** Sum of the lengths of the kept records. */
  bytes = 0;
  private records: Kept[] = [];
  private gaps: Gap[] = [];
  private tools = new Map<string, Of<"tool">>();
  private questions = new Map<string, Of<"question">>();
  private prompts = new Map<string, Of<"prompt">>();
  /** The tool call for which the agent asks a permission, until the record of the question. */
  private asked: Tool | undefined;

  /** Creates a conversation that keeps about `most` records and `mostBytes` bytes. */
  constructor(
    private readonly most = 3_000,
    private readonly mostBytes = 16 << 20,
  ) {}

  /** The number of kept records. */
  get size(): number {
    return this.records.length;
  }

  isFull(): boolean {
    return this.records.length > 1 && (this.records.length > this.most * 1.25 || this.bytes > this.mostBytes * 1.25);
  }

  isOverfull(): boolean {
    return this.records.length > 1 && (this.records.length > this.most * 1.5 || this.bytes > this.mostBytes * 1.5);
  }

  /** Folds a newer record of this length. Returns whether it was new. */
  append(event: Event, length = 100): boolean {
    if (event.seq <= this.last) return false;
    this.first ??= event.seq;
    this.last = event.seq;
    this.time = event.time;
    const record = kept(event, length);
    if (record === undefined) return true;
    const before = this.records.at(-1);
    this.bytes += record.length;
    if (!this.join(before, record)) this.records.push(record);
    // The record before has the joined text now. The item gets this piece alone.
    this.fold(record);
    return true;
  }

  /** Puts older records in front, in order. Records that are not older are ignored. */
  prepend(older: { event: Event; length: number }[]): void {
    const first = this.first ?? Infinity;
    const front: Kept[] = [];
    for (const { event, length } of older) {
      const record = event.seq < first ? kept(event, length) : undefined;
      if (record !== undefined && !this.join(front.at(-1), record)) front.push(record);
    }
    const begin = older[0]?.event.seq;
    const rest =
      this.records[0] !== undefined && this.join(front.at(-1), this.records[0]) ? this.records.slice(1) : this.records;
    this.refold([...front, ...rest]);
    if (begin !== undefined && begin < first) this.first = begin;
  }

  /** Adds a marker for a time without a connection. */
  missed(gap: Gap): void {
    this.gaps.push(gap);
    if (gap.after >= (this.first ?? 0)) this.mark("gap", gap.after, gapTime(gap), gapValues(gap));
  }

  /** Drops the oldest records. */
  shortenFront(): void {
    let [from, bytes] = [this.records.length, 0];
    while (
      from > 0 &&
      this.records.length - from < this.most &&
      (bytes += this.records[from - 1]!.length) <= this.mostBytes
    )
      from -= 1;
    this.refold(this.records.slice(Math.min(from, this.records.length - 1)));
  }

  /** Drops the newest records. */
  shortenBack(): void {
    let [upto, bytes] = [0, 0];
    while (upto < this.records.length && upto < this.most && (bytes += this.records[upto]!.length) <= this.mostBytes)
      upto += 1;
    const first = this.first;
    this.refold(this.records.slice(0, Math.max(upto, 1)));
    this.first = first;
    this.last = this.records.at(-1)!.last;
  }

  /** Joins a record to the one before, if they are pieces of one text without an interruption between them. */
  private join(before: Kept | undefined, next: Kept): boolean {
    if (before === undefined) return false;
    const isInterrupted = this.gaps.some(({ after }) => before.last <= after && after < next.seq);
    return !isInterrupted && records.join(before, next);
  }

  /** Drops everything. */
  clear(): void {
    this.refold([]);
    this.last = 0;
    this.first = undefined;
  }

  private refold(records: Kept[]): void {
    this.items = [];
    this.tools.clear();
    this.questions.clear();
    this.prompts.clear();
    this.asked = undefined;
    this.records = records;
    this.first = records[0]?.seq;
    this.bytes = records.reduce((sum, { length }) => sum + length, 0);
    const gaps = this.gaps.filter(({ after }) => after >= (this.first ?? Infinity));
    let next = 0;
    for (const record of records) {
      for (; next < gaps.length && gaps[next]!.after < record.seq; next += 1) {
        this.mark("gap", gaps[next]!.after, gapTime(gaps[next]!), gapValues(gaps[next]!));
      }
      this.fold(record);
    }
    for (const gap of gaps.slice(next)) this.mark("gap", gap.after, gapTime(gap), gapValues(gap));
  }

  /** Returns the index for a new item: before the prompts at the end that wait for their turns. */
  private end(): number {
    let at = this.items.length;
    for (let before; (before = this.items[at - 1]) !== undefined && before.kind === "prompt" && before.queued;) at -= 1;
    return at;
  }

  private add<Kind extends Item["kind"]>(
    item: Omit<Of<Kind>, "rev" | "key"> & { kind: Kind },
    at = this.end(),
  ): Of<Kind> {
    const key = `${item.kind} ${(item as unknown as Common).seq}`;
    // A record can have two notes.
    const isTaken = this.items.slice(Math.max(0, at - 3), at).some((before) => before.key === key);
    const added = { ...item, key: isTaken ? `${key} more` : key, rev: 0 } as unknown as Of<Kind>;
    this.items.splice(at, 0, added);
    return added;
  }

  private mark(marker: Marker, seq: number, time: string, values: Record<string, string> = {}): void {
    this.add<"marker">({ kind: "marker", seq, time, marker, values });
  }

  /** Adds a piece of a text to the text at the end, or begins one. */
  private piece(record: Kept): void {
    const { seq, time, message, piece, begins } = record;
    const item = this.items[this.end() - 1];
    const isText = item?.kind === "text" || item?.kind === "thought";
    if (!isText || begins || !records.isSameText({ piece: item.kind, message: item.message }, record)) {
      this.add<"text">({ kind: piece as "text", seq, time, message, text: record.text! });
      return;
    }
    item.text += record.text!;
    item.rev += 1;
  }

  private fold(record: Kept): void {
    const { seq, time, event } = record;
    if (record.piece !== undefined) return this.piece(record);
    if (this.turn(event)) return;
    switch (event.kind) {
      case "permission.requested":
        this.question(event.data.request, seq, time);
        break;
      case "permission.resolved": {
        const item = this.questions.get(event.data.permission);
        const { outcome, by, requester, form } = event.data;
        const option = typeof outcome === "string" ? undefined : outcome.selected;
        if (item === undefined) break;
        item.answer = { by, option, requester: requester ?? undefined, form: (form as Json | null) ?? undefined };
        item.rev += 1;
        this.waited(item.request.details?.tool_call, item.time, time);
        break;
      }
      case "agent.out": {
        const call = asked(event);
        if (call === undefined) this.message(update(event)!, seq, time);
        else this.asked = updated(this.tools.get(text(call["toolCallId"]))?.tool, call, text(call["toolCallId"]), time);
        break;
      }
      default:
        this.event(event);
    }
  }

  /** Adds a question, with the tool call as the agent sent it: in the request, or before under the same id. */
  private question(request: Schemas["PermissionRequest"], seq: number, time: string): void {
    const id = request.details?.tool_call ?? "";
    const isOfTool = request.origin !== "agentd" && request.elicitation == null;
    const tool = isOfTool && this.asked?.id === id ? this.asked : this.tools.get(id)?.tool;
    if (isOfTool) this.asked = undefined;
    this.questions.set(request.id, this.add<"question">({ kind: "question", seq, time, request, tool }));
  }

  /** Puts a prompt that no longer waits behind what came before, and before the prompts that wait. */
  private settle(prompt: Of<"prompt">): void {
    this.items.splice(this.end(), 0, prompt);
    prompt.queued = false;
    prompt.rev += 1;
  }

  /** Notes for a tool call that it waited for an answer. */
  private waited(call: string | null | undefined, from: string, to: string): void {
    const item = this.tools.get(call ?? "");
    if (item === undefined) return;
    // An agent may ask before it names the call.
    const asked = Math.max(Date.parse(from), Date.parse(item.tool.begun));
    item.tool = { ...item.tool, waited: item.tool.waited + Math.max(0, Date.parse(to) - asked) };
    item.rev += 1;
  }

  /** Folds a record of a turn. Returns whether it is one. */
  private turn(event: Event): boolean {
    const { seq, time } = event;
    switch (event.kind) {
      case "turn.queued": {
        const { turn, prompt, parts, requester } = event.data;
        const by = requester?.session ?? undefined;
        const found = { seq, time, turn, text: prompt, parts: (parts ?? []) as PromptPart[], by, queued: true };
        this.prompts.set(turn, this.add<"prompt">({ kind: "prompt", ...found }, this.items.length));
        return true;
      }
      case "turn.started": {
        const { turn, note, instructions } = event.data;
        const prompt = this.prompts.get(turn);
        // A prompt stands where its turn began, not where it was queued. What the agent got before it stands before it.
        if (prompt !== undefined) this.items.splice(this.items.indexOf(prompt), 1);
        for (const front of [instructions, note]) if (front) this.add<"note">({ kind: "note", seq, time, text: front });
        if (prompt !== undefined) this.settle(prompt);
        return true;
      }
      case "turn.limited":
        this.interrupt(event.data.interrupted_tool_calls, time);
        this.mark("limited", seq, time, { until: event.data.until, message: event.data.message });
        return true;
      case "turn.ended": {
        const { turn, stop_reason: reason, synthetic, interrupted_tool_calls: interrupted } = event.data;
        const prompt = this.prompts.get(turn);
        if (prompt?.queued) {
          this.items.splice(this.items.indexOf(prompt), 1);
          this.settle(prompt);
        }
        this.prompts.delete(turn);
        this.interrupt(interrupted, time);
        this.add<"ended">({
          kind: "ended",
          seq,
          time,
          turn,
          reason: reason ?? undefined,
          synthetic: synthetic ?? undefined,
        });
        return true;
      }
      default:
        return false;
    }
  }

  private interrupt(calls: string[] | undefined, time: string): void {
    for (const id of calls ?? []) {
      const item = this.tools.get(id);
      if (item === undefined) continue;
      item.tool = { ...item.tool, status: "interrupted", ended: time };
      item.rev += 1;
    }
  }

  /** Folds a record about the session itself. */
  private event(event: Event): void {
    const { seq, time } = event;
    switch (event.kind) {
      case "daemon.recovered":
        this.mark("recovered", seq, time, { version: event.data.version, alive: String(event.data.agent_alive) });
        break;
      case "journal.repaired":
        this.mark("repaired", seq, time, { detail: event.data.detail });
        break;
      case "launch.started":
        this.mark("launched", seq, time, { reason: event.data.reason });
        break;
      case "launch.degraded":
        this.mark("degraded", seq, time, { missing: event.data.missing.map(({ name }) => name).join(", ") });
        break;
      case "launch.failed":
        this.mark("failed", seq, time, { detail: event.data.message });
        break;
      case "agent.exited": {
        const { status, signal, reason, requested } = event.data;
        const values = {
          status: String(status ?? ""),
          signal: String(signal ?? ""),
          reason: reason ?? "",
          requested: String(requested),
        };
        this.mark("exited", seq, time, values);
        break;
      }
      case "agent.unusable":
        this.mark("unusable", seq, time, {});
        break;
      case "agent.dropped":
        this.mark("dropped", seq, time, { lines: String(event.data.lines), reason: event.data.reason });
        break;
      case "stop.requested":
        this.mark("stopped", seq, time, { reason: event.data.reason });
        break;
      case "turn.cancelling":
        this.mark("cancelling", seq, time, { limit: event.data.limit ?? "" });
        break;
      case "turn.silent":
        this.mark("silent", seq, time, { seconds: String(event.data.seconds) });
        break;
      case "conversation.opened":
        this.mark("conversation", seq, time, { by: event.data.by });
        break;
      default:
    }
  }

  /** Folds an update of the agent that is no piece of a text. */
  private message(found: Json, seq: number, time: string): void {
    switch (found["sessionUpdate"]) {
      case "agent_message_chunk":
      case "agent_thought_chunk":
        this.block(object(found["content"]), seq, time);
        break;
      case "tool_call":
      case "tool_call_update": {
        const id = text(found["toolCallId"]);
        const known = this.tools.get(id);
        if (known !== undefined) {
          known.tool = updated(known.tool, found, id, time);
          known.rev += 1;
        } else {
          this.tools.set(id, this.add<"tool">({ kind: "tool", seq, time, tool: updated(undefined, found, id, time) }));
        }
        break;
      }
      case "plan": {
        const entries = list(found["entries"])
          .map(object)
          .map((entry) => ({
            content: text(entry["content"]),
            priority: text(entry["priority"]),
            status: text(entry["status"]),
          }));
        const before = this.items.findLast((item) => item.kind === "plan" || item.kind === "prompt");
        if (before?.kind === "plan") {
          before.entries = entries;
          before.rev += 1;
        } else {
          this.add<"plan">({ kind: "plan", seq, time, entries });
        }
        break;
      }
      case "available_commands_update": {
        const commands = list(found["availableCommands"])
          .map(object)
          .map((command) => ({
            name: text(command["name"]),
            description: text(command["description"]),
            hint: text(object(command["input"])["hint"]) || undefined,
          }));
        this.side = { ...this.side, commands };
        break;
      }
      case "current_mode_update":
        this.side = { ...this.side, mode: text(found["currentModeId"]) };
        break;
      default:
    }
  }

  /** Adds a block of the agent that is no text. */
  private block(content: Json, seq: number, time: string): void {
    if (content["type"] === "image") {
      this.add<"image">({ kind: "image", seq, time, mime: text(content["mimeType"]), data: text(content["data"]) });
      return;
    }
    const resource = object(content["resource"]);
    const words =
      text(resource["text"]) || text(content["uri"]) || text(resource["uri"]) || `[${text(content["type"])}]`;
    // No piece continues this text: the id of a message is never empty.
    this.add<"text">({ kind: "text", seq, time, message: "", text: words });
  }
}

const gapTime = (gap: Gap): string => new Date(gap.to).toISOString();
const gapValues = (gap: Gap): Record<string, string> => ({ from: new Date(gap.from).toISOString(), to: gapTime(gap) });
