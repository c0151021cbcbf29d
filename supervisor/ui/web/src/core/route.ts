/** The place in the page that the fragment of its address names. */
import { signal } from "@preact/signals";

export type Route =
  | { view: "list" }
  | { view: "create"; host: string | undefined }
  | { view: "session" | "why"; host: string; id: string };

/** Returns the route of a fragment. An unknown one is the list. */
export function parse(fragment: string): Route {
  let parts: string[];
  try {
    parts = fragment
      .replace(/^#?\/?/, "")
      .split("/")
      .map(decodeURIComponent);
  } catch {
    return { view: "list" };
  }
  const [first, host, id, last] = parts;
  if (first === "create") return { view: "create", host: host || undefined };
  if (first !== "session" || !host || !id) return { view: "list" };
  return { view: last === "why" ? "why" : "session", host, id };
}

/** Returns the fragment of a route. */
export function fragment(route: Route): string {
  switch (route.view) {
    case "list":
      return "#/";
    case "create":
      return route.host === undefined ? "#/create" : `#/create/${encodeURIComponent(route.host)}`;
    default: {
      const place = `#/session/${encodeURIComponent(route.host)}/${encodeURIComponent(route.id)}`;
      return route.view === "why" ? `${place}/why` : place;
    }
  }
}

/** The present route. */
export const route = signal<Route>({ view: "list" });

/** Goes to a route. The browser's back button returns. */
export function go(to: Route): void {
  location.hash = fragment(to);
  // The event follows later, and the next key may come before it.
  read();
}

/** Fragment of the present route. */
let known: string | undefined;

/** Reads the route, if the fragment is another one. */
function read(): void {
  if (location.hash === known) return;
  known = location.hash;
  route.value = parse(known);
}

/** Follows the fragment from now on. */
export function follow(): void {
  addEventListener("hashchange", read);
  read();
}
