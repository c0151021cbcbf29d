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
  /** Length of the attachments of that attempt. Another prompt needs another key. */
  parts?: number;
}

const place = (base: Base, id: string): string => `draft ${base} ${id}`;

function read(base: Base, id: string): Draft {
  try {
    const kept = JSON.parse(localStorage.getItem(place(base, id)) ?? "") as Partial<Draft>;
    return { ...kept, text: typeof kept.text === "string" ? kept.text : "" };
  } catch {
    return { text: "" };
  }
}

function keep(base: Base, id: string, draft: Draft): void {
  try {
    localStorage.setItem(place(base, id), JSON.stringify(draft));
  } catch {
    // The browser's storage is full. The text is still in the page, and can be sent.
  }
}

/** Returns the text for a session. */
export const draft = (base: Base, id: string): string => read(base, id).text;

/** Keeps another text. */
export function write(base: Base, id: string, text: string): void {
  if (text === "") localStorage.removeItem(place(base, id));
  else keep(base, id, { text });
}

/** Sends the text with its parts. It stays until the session has accepted it. */
export async function send(base: Base, id: string, text: string, parts: PromptPart[]): Promise<void> {
  const before = read(base, id);
  const length = JSON.stringify(parts).length;
  const isSame = before.text === text && before.parts === length;
  const key = isSame && before.key !== undefined ? before.key : crypto.randomUUID();
  keep(base, id, { text, key, parts: length });
  const body = parts.length === 0 ? { prompt: text } : { prompt: text, parts };
  await call(base, "post", session(id, "/prompt"), body, { headers: { "idempotency-key": key } });
  if (read(base, id).text === text) localStorage.removeItem(place(base, id));
}
