/** Directories that the page can propose. The endpoint lists no directories, so they come from what it knows. */
import type { SessionBrief } from "./api";

/** Largest number of proposals. */
const MOST = 12;

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

/** Returns the proposals for typed text: directories that begin with it, or else those that have all its words. */
export function proposals(candidates: readonly string[], typed: string): string[] {
  const begun = candidates.filter((directory) => directory.startsWith(typed));
  const words = typed
    .toLowerCase()
    .split(/[\s/]+/)
    .filter(Boolean);
  const having = () => candidates.filter((directory) => words.every((word) => directory.toLowerCase().includes(word)));
  return (begun.length > 0 ? begun : having()).filter((directory) => directory !== typed).slice(0, MOST);
}
