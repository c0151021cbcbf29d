/**
 * The text that a person has typed and not sent, kept in the browser.
 *
 * The key of the request is kept with the text. So a prompt whose answer was lost, by a reload or a lost connection, is
 * sent again with the same key, and the session gets it once.
 */
import { call, session, type Base, type PromptPart } from "./api";

interface Draft {
  text: string;
  /** The key of the last attempt to send this text. */
  key?: string;
}

const place = (base: Base, id: string): string => `draft ${base} ${id}`;

function read(base: Base, id: string): Draft {
  try {
    const kept = JSON.parse(localStorage.getItem(place(base, id)) ?? "") as Partial<Draft>;
    return {
      text: typeof kept.text === "string" ? kept.text : "",
      key: typeof kept.key === "string" ? kept.key : undefined,
    };
  } catch {
    return { text: "" };
  }
}

/** Returns the text for a session. */
export const draft = (base: Base, id: string): string => read(base, id).text;

/** Keeps another text. */
export function write(base: Base, id: string, text: string): void {
  if (text === "") localStorage.removeItem(place(base, id));
  else localStorage.setItem(place(base, id), JSON.stringify({ text } satisfies Draft));
}

/** Sends the text with its parts. It stays until the session has accepted it. */
export async function send(base: Base, id: string, text: string, parts: PromptPart[]): Promise<void> {
  const before = read(base, id);
  const key = before.text === text && before.key !== undefined ? before.key : crypto.randomUUID();
  localStorage.setItem(place(base, id), JSON.stringify({ text, key } satisfies Draft));
  const body = parts.length === 0 ? { prompt: text } : { prompt: text, parts };
  await call(base, "post", session(id, "/prompt"), body, { headers: { "idempotency-key": key } });
  if (read(base, id).text === text) localStorage.removeItem(place(base, id));
}
