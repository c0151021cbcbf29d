/** Foreign texts and addresses, made safe to show. */

/** Control characters and their signs. Tabs and newlines stay. */
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
/** Characters that change the direction or the order of what follows, and characters without a width. */
const HIDDEN = /[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;

/**
 * Replaces what a person cannot see by what can be seen. Escape sequences of terminals that only colour are left out.
 *
 * Joiners between letters and emojis (U+200C, U+200D) stay: scripts need them, and they move nothing.
 */
export function visible(text: string): string {
  return text
    .replace(/\r\n/g, "\n")
    .replace(/\x1b\[[0-9;:]*m/g, "")
    .replace(CONTROL, picture)
    .replace(HIDDEN, (sign) =>
      sign === "\u200c" || sign === "\u200d" ? sign : `⟦U+${code(sign).toString(16).toUpperCase().padStart(4, "0")}⟧`,
    );
}

/** Returns a text for a place with little room: made visible, and without what is beyond its first signs. */
export function short(text: string, most = 300): string {
  return text.length > most ? `${visible(text.slice(0, most))}…` : visible(text);
}

/** Divides a text that is too long to be shown at once into pieces of about `size`, at ends of lines if possible. */
export function pieces(text: string, size: number): string[] {
  const found: string[] = [];
  for (let from = 0; from < text.length;) {
    let to = Math.min(text.length, from + size);
    if (to < text.length) {
      const half = from + Math.floor(size / 2);
      const line = text.slice(half, to).lastIndexOf("\n");
      if (line >= 0) to = half + line + 1;
      // Both halves of a sign stay together.
      else if (/[\udc00-\udfff]/.test(text[to]!)) to += 1;
    }
    found.push(text.slice(from, to));
    from = to;
  }
  return found;
}

const code = (sign: string): number => sign.codePointAt(0)!;

function picture(sign: string): string {
  const number = code(sign);
  if (number === 0x7f) return "\u2421";
  return number < 0x20
    ? String.fromCodePoint(0x2400 + number)
    : `⟦U+${number.toString(16).toUpperCase().padStart(4, "0")}⟧`;
}

/** Names under which a machine reaches itself. */
const OWN = new Set(["127.0.0.1", "localhost", "[::1]"]);

/**
 * Returns the address of a link, if the page may lead there.
 *
 * Browsers send the cookie of this page to each port of its host. A server of an agent on another port must not get it.
 * So a link to the page's own host leads to the other name of this machine, for which there is no cookie.
 */
export function safe(address: string, own = typeof location === "undefined" ? "" : location.host): string | undefined {
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    return undefined;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return undefined;
  const [host] = own.split(/:\d+$/);
  if (url.protocol !== "mailto:" && OWN.has(url.hostname) && url.hostname === host) {
    // Nothing of an agent leads back to this server.
    if (url.host === own) return undefined;
    url.hostname = host === "localhost" ? "127.0.0.1" : "localhost";
  }
  return url.href;
}

/**
 * Returns an address in the person's editor, or undefined without one. `template` has `{path}`, and can have `{line}`.
 */
export function editorAddress(template: string | null, path: string, line = 1): string | undefined {
  if (template === null || !template.includes("{path}")) return undefined;
  const scheme = /^([a-z][a-z0-9+.-]*):/i.exec(template)?.[1]?.toLowerCase();
  if (scheme === undefined || ["javascript", "data", "vbscript", "blob", "file"].includes(scheme)) return undefined;
  const encoded = path.split("/").map(encodeURIComponent).join("/");
  return template.replaceAll("{path}", encoded).replaceAll("{line}", String(line));
}
