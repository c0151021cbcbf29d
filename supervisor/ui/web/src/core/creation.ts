/** What a person has typed for a new session. It survives a reload of the page. */
import type { Schemas } from "./api";
import type { Terms } from "./requests";

/** The fields of the form. */
export interface Draft {
  host: string;
  directory: string;
  /** Whether the session gets a new directory of its own. */
  workspace: boolean;
  /** Name of the agent. Empty for the configured default. */
  agent: string;
  /** Name of the place. Empty for the configured place. */
  place: string;
  mode: string;
  model: string;
  /** Values of options that a running agent offers, by their ids. */
  offered: Record<string, string>;
  /** Further options as words `ID=VALUE`. */
  options: string;
  prompt: string;
  requires: string[];
  labels: string;
  tags: string;
  title: string;
  name: string;
  permissions: Schemas["PermissionPolicy"];
  terms: Terms;
}

/** A form in which nothing was typed. */
export const EMPTY: Draft = {
  host: "",
  directory: "",
  workspace: false,
  agent: "",
  place: "",
  mode: "",
  model: "",
  offered: {},
  options: "",
  prompt: "",
  requires: [],
  labels: "",
  tags: "",
  title: "",
  name: "",
  permissions: "ask",
  terms: "refuse",
};

const KEY = "create.draft";
const SENT = "create.sent";

/** Returns the stored draft. One that cannot be read is empty. */
export function stored(): Draft {
  try {
    const draft = JSON.parse(sessionStorage.getItem(KEY) ?? "{}") as Partial<Draft>;
    return { ...EMPTY, ...draft };
  } catch {
    return EMPTY;
  }
}

/** Stores a draft for a reload. */
export function store(draft: Draft): void {
  keep(KEY, JSON.stringify(draft));
}

/** Forgets the stored draft and the key of its request. */
export function forget(): void {
  sessionStorage.removeItem(KEY);
  sessionStorage.removeItem(SENT);
}

/** Returns the key of a request. The same request has the same key until `forget`, so that it creates one session. */
export function requestKey(request: string): string {
  const [before, key] = (sessionStorage.getItem(SENT) ?? "").split("\n", 2);
  if (key !== undefined && before === request) return key;
  const fresh = crypto.randomUUID();
  keep(SENT, `${request}\n${fresh}`);
  return fresh;
}

function keep(key: string, text: string): void {
  try {
    sessionStorage.setItem(key, text);
  } catch {
    // A full storage loses the text only at a reload.
  }
}

/** Splits words at spaces and commas. */
export const words = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

/** Splits words `KEY=VALUE`. Words without `=` are in `wrong`. */
export function pairs(text: string): { pairs: Record<string, string>; wrong: string[] } {
  const all = words(text).map((word) => [word, word.indexOf("=")] as const);
  const right = all.filter(([, at]) => at > 0).map(([word, at]) => [word.slice(0, at), word.slice(at + 1)] as const);
  return { pairs: Object.fromEntries(right), wrong: all.filter(([, at]) => at <= 0).map(([word]) => word) };
}

/** Returns the words without `=` of the fields that have words `KEY=VALUE`. */
export function mistakes(draft: Draft): Partial<Record<keyof Draft, string[]>> {
  const fields = (["labels", "options"] as const).map((field) => [field, pairs(draft[field]).wrong] as const);
  return Object.fromEntries(fields.filter(([, wrong]) => wrong.length > 0));
}

/** Returns the specification of a draft. Fields without a text are left out, and have their configured values. */
export function specification(draft: Draft): Schemas["SessionSpecInput"] {
  const given = (text: string): string | undefined => text.trim() || undefined;
  const filled = <T extends object>(value: T): T | undefined => (Object.keys(value).length > 0 ? value : undefined);
  const offered = Object.entries(draft.offered).filter(([, value]) => value !== "");
  return {
    agent: given(draft.agent),
    place: given(draft.place),
    directory: draft.workspace ? given(draft.directory) : draft.directory.trim(),
    workspace: draft.workspace ? "new" : undefined,
    name: given(draft.name),
    mode: given(draft.mode),
    model: given(draft.model),
    options: filled({ ...pairs(draft.options).pairs, ...Object.fromEntries(offered) }),
    initial_prompt: given(draft.prompt) && draft.prompt,
    requires: filled(draft.requires),
    labels: filled(pairs(draft.labels).pairs),
    tags: filled(words(draft.tags)),
    permissions: draft.permissions,
  };
}
