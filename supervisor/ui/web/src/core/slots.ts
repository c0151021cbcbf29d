/**
 * Places for streams, shared by all pages of this server.
 *
 * A browser opens at most six connections to a server over HTTP/1.1, of all its pages together. Each page holds a
 * stream for the list and one for a conversation, so a third page could call nothing any more. So only two pages stream
 * their lists, and two a conversation. The others ask again and again, which holds no connection. The browser frees the
 * places of a page that is closed or crashes.
 */

/** Number of places of each kind. */
const PLACES = 2;

/** Takes a place. Returns the function that frees it, or undefined if all are taken. */
export async function take(kind: "feed" | "conversation"): Promise<(() => void) | undefined> {
  // Without locks there is no second page to share with: node's tests, and pages that the browser does not trust.
  if (typeof navigator === "undefined" || !navigator.locks) return () => {};
  for (let place = 0; place < PLACES; place += 1) {
    const free = await lock(`agentd-${kind}-${place}`);
    if (free !== undefined) return free;
  }
  return undefined;
}

function lock(name: string): Promise<(() => void) | undefined> {
  return new Promise((resolve) => {
    navigator.locks
      .request(name, { ifAvailable: true }, (granted) => {
        if (granted === null) {
          resolve(undefined);
          return undefined;
        }
        return new Promise<void>((free) => resolve(() => free()));
      })
      // A browser that refuses locks cannot share places either.
      .catch(() => resolve(() => {}));
  });
}
