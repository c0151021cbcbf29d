/**
 * The second secret of a signed-in page, beside the cookie.
 *
 * A browser sends the cookie to every port of its host, so a server of an agent there can get it. The key stays in the
 * storage of the page's own origin, which no other port can read, and goes only into requests that the page makes.
 */

/** Place of the key in the browser's storage, where each page of this origin finds it. */
const PLACE = "key";

/** Header of a request that carries the key. */
export const HEADER = "Agentd-Ui-Key";

/** Address of the sign-in, whose answer has the key. */
export const LOGIN = "/ui/login";

/** The key of this page's own sign-in, for a browser that stores nothing. */
let own: string | undefined;

/** Keeps the key of a sign-in. */
export function keepKey(key: string): void {
  own = key;
  try {
    localStorage.setItem(PLACE, key);
  } catch {
    // Other pages of this browser must sign in themselves, and so must this one after a reload.
  }
}

/** Returns the key. A later sign-in of another page counts here too. */
function key(): string | undefined {
  try {
    return localStorage.getItem(PLACE) ?? own;
  } catch {
    return own;
  }
}

/** Sends a request to the page's server or to a daemon behind it, with the key. */
export async function send(address: string, init: RequestInit = {}): Promise<Response> {
  const used = address === LOGIN ? undefined : key();
  const headers = { ...(init.headers as Record<string, string>), ...(used !== undefined && { [HEADER]: used }) };
  const response = await fetch(address, { ...init, headers });
  // Another page has signed in meanwhile: its cookie went with the former key, and nothing was done.
  return response.status === 401 && address !== LOGIN && key() !== used ? send(address, init) : response;
}

/** Calls `run` each time another page of this browser has signed in. */
export function watchKey(run: () => void): void {
  addEventListener("storage", (event) => {
    if (event.key === PLACE && event.newValue !== null) run();
  });
}
