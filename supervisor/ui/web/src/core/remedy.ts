/** Remedies for variables that an agent does not have, with the rules of `agentctl env S --diff terminal`. */
import type { Schemas } from "./api";

/** Providers that keep the variables in the setting `allow`. */
const KEEPERS = ["whitelist", "snapshot"];

/** A remedy: a name that the whitelist can keep, a file to edit, or a provider to configure. */
export type Remedy = { kind: "keep"; command: string } | { kind: "edit"; file: string } | { kind: "settings" };

/** Returns how a person gets back a variable that a provider dropped. */
export function remedy(dropped: Schemas["DroppedView"]): Remedy {
  if (dropped.origin) return { kind: "edit", file: dropped.origin };
  const bySetting = dropped.reason?.includes("allow") ?? false;
  if (!bySetting && !KEEPERS.includes(dropped.provider)) return { kind: "settings" };
  return { kind: "keep", command: `agentctl env keep ${shellWord(dropped.name)}` };
}

/** Returns a word that a POSIX shell reads as `word`. */
export function shellWord(word: string): string {
  if (/^[\w@%+=:,./-]+$/.test(word)) return word;
  return `'${word.replaceAll("'", `'\\''`)}'`;
}
