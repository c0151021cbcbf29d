/** Directories that the page proposes: those that it knows, and those that the endpoint lists for a typed path. */
import type { SessionBrief } from "./api";

/** Largest number of proposals. */
const MOST = 60;
/** Largest number of known directories before the listed ones. */
const MOST_KNOWN = 5;

/** Directories that the endpoint listed. */
export interface Listing {
  /** The path that was completed. */
  path: string;
  directories: readonly string[];
}

/** Returns whether the endpoint completes a text: a path from the root or the home, or nothing. */
export const isListed = (typed: string): boolean => /^([/~]|$)/.test(typed);

/** Returns the directories above one, nearest first, without `/`. */
export function above(directory: string): string[] {
  const names = directory.split("/").filter(Boolean);
  return names.map((_, index) => `/${names.slice(0, names.length - 1 - index).join("/")}`).slice(0, -1);
}

/** Returns the known directories without repetitions: those of sessions, then others, then those above them. */
export function known(sessions: Iterable<SessionBrief>, others: readonly string[]): string[] {
  const own = [...sessions].map(({ directory }) => directory).reverse();
  const direct = [...own, ...others].filter((directory) => directory.startsWith("/"));
  return [...new Set([...direct, ...direct.flatMap(above)])];
}

/** Returns the listed directories for a text. Those of a shorter path serve until the next answer. */
function fitting(listing: Listing | undefined, typed: string): readonly string[] {
  if (listing === undefined || listing.path === typed) return listing?.directories ?? [];
  return listing.directories.filter((directory) => typed !== "" && directory.startsWith(typed));
}

/**
 * Returns the proposals for typed text. Without a text the known directories come first, and after a part of a path
 * some of them. Other texts are words, and the proposals are the known directories that have all of them.
 */
export function proposals(candidates: readonly string[], typed: string, listing?: Listing): string[] {
  const begun = candidates.filter((directory) => directory.startsWith(typed));
  const listed = isListed(typed) ? fitting(listing, typed) : [];
  if (listed.length > 0) {
    const first = typed === "" ? begun : begun.filter((directory) => directory !== typed).slice(0, MOST_KNOWN);
    return [...new Set([...first, ...listed])].filter((directory) => directory !== typed).slice(0, MOST);
  }
  const words = typed
    .toLowerCase()
    .split(/[\s/]+/)
    .filter(Boolean);
  const having = () => candidates.filter((directory) => words.every((word) => directory.toLowerCase().includes(word)));
  return (begun.length > 0 ? begun : having()).filter((directory) => directory !== typed).slice(0, MOST);
}
