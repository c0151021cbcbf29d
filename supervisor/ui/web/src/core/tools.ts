/** Tool calls of agents, as far as agents name their parts alike. */
import { list, object, text, type Json } from "./records";

export interface Tool {
  id: string;
  title: string;
  kind: string;
  status: string;
  command?: string;
  content: ToolContent[];
  /** What the tool printed to a terminal so far. */
  printed?: string;
  begun: string;
  ended?: string;
  /** Milliseconds for which it waited for answers of people. */
  waited: number;
}

export type ToolContent =
  | { type: "text"; text: string }
  | { type: "diff"; path: string; before: string; after: string }
  | { type: "image"; mime: string; data: string };

/** Returns a tool call after an update, or a new one. */
export function updated(before: Tool | undefined, found: Json, id: string, time: string): Tool {
  const status = text(found["status"]) || before?.status || "pending";
  const isOver = status === "completed" || status === "failed";
  const given = Array.isArray(found["content"]) ? found["content"].flatMap(contentOf) : undefined;
  const raw = given === undefined || given.length === 0 ? rawOutput(found["rawOutput"]) : "";
  const output: ToolContent[] | undefined = raw === "" ? undefined : [{ type: "text", text: raw }];
  const more = terminalOutput(found);
  const printed = (before?.printed ?? "") + more;
  return {
    id,
    title: text(found["title"]) || before?.title || text(found["kind"]) || id,
    kind: text(found["kind"]) || before?.kind || "other",
    status,
    command: commandOf(found["rawInput"]) ?? before?.command,
    content: output ?? given ?? before?.content ?? [],
    printed: printed || undefined,
    begun: before?.begun ?? time,
    ended: isOver ? (before?.ended ?? time) : undefined,
    waited: before?.waited ?? 0,
  };
}

/** Returns the seconds of a tool call that has ended, without the time in which it waited for answers. */
export function secondsOf({ begun, ended, waited }: Tool): number | undefined {
  if (ended === undefined) return undefined;
  return Math.max(0, (Date.parse(ended) - Date.parse(begun) - waited) / 1000);
}

/** Returns the command of a tool's input: a text, a list of words, or a program with arguments. */
function commandOf(input: unknown): string | undefined {
  const { command, cmd, args } = object(input);
  const words = command ?? cmd;
  if (Array.isArray(words)) return words.map(text).join(" ");
  const first = text(words);
  return first === "" ? undefined : [first, ...list(args).map(text)].join(" ");
}

/** Returns the output where it is not in `content`: agents put it into `rawOutput` in several forms. */
function rawOutput(found: unknown): string {
  const result = object(found)["result"];
  const output = typeof result === "object" && result !== null ? result : found;
  const parts = object(output);
  const named = ["output", "formatted_output", "aggregated_output"].map((key) => text(parts[key]));
  const whole = text(output) || named.find((words) => words !== "");
  if (whole) return whole;
  const blocks = list(Array.isArray(output) ? output : parts["content"]).map(object);
  const texts = blocks.filter((block) => block["type"] === "text").map((block) => text(block["text"]));
  return [text(parts["stdout"]), text(parts["stderr"]), ...texts].join("");
}

/** Returns what a terminal printed since the update before. Some adapters send it only in the extension fields. */
function terminalOutput(found: Json): string {
  const meta = object(found["_meta"]);
  return ["terminal_output", "terminal_output_delta"].map((key) => text(object(meta[key])["data"])).join("");
}

function contentOf(value: unknown): ToolContent[] {
  const part = object(value);
  switch (part["type"]) {
    case "content": {
      const inner = object(part["content"]);
      if (inner["type"] === "image")
        return [{ type: "image", mime: text(inner["mimeType"]), data: text(inner["data"]) }];
      const words = text(inner["text"]) || text(object(inner["resource"])["text"]) || text(inner["uri"]);
      return words === "" ? [] : [{ type: "text", text: words }];
    }
    case "diff":
      return [{ type: "diff", path: text(part["path"]), before: text(part["oldText"]), after: text(part["newText"]) }];
    default:
      return [];
  }
}
