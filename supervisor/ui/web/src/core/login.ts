/** The page's own session with `agentctl ui`: its login, the hosts, and what the page may do. */
import { signal } from "@preact/signals";

import { call, Refused, signedOut } from "./api";
import { keepKey, LOGIN } from "./key";
import { Sessions } from "./store";

/** The answer of `GET /ui/info`. */
export interface Info {
  version: string;
  read_only: boolean;
  hosts: { name: string; label: string; options: string[]; editor: string | null }[];
  expires: string;
}

/** A daemon that the page shows. */
export interface Host {
  name: string;
  label: string;
  /** Words after `agentctl` with which a command reaches it. */
  options: string[];
  /** Beginning of the paths of its calls. */
  base: string;
  /** URL with `{path}` and `{line}` of the person's editor for files of this machine. */
  editor: string | null;
  sessions: Sessions;
}

export type Login =
  | { state: "pending" }
  | { state: "in"; info: Info }
  | { state: "out"; why: string; hint?: string }
  | { state: "unreachable"; why: string };

export const login = signal<Login>({ state: "pending" });
export const hosts = signal<Host[]>([]);

/** Exchanges the token of the address for a cookie and a key, if there is one, and opens the hosts. */
export async function enter(): Promise<void> {
  const token = /^#token=([^&]+)/.exec(location.hash)?.[1];
  if (token !== undefined) {
    // The token leaves the address before anything else, so that it is in no history and no screenshot.
    history.replaceState(null, "", "#/");
    try {
      const { key } = await call<{ key: string }>("", "post", LOGIN, { token: decodeURIComponent(token) });
      keepKey(key);
    } catch (error) {
      // A page that is signed in already can be opened again by an old address.
      if (!(await open())) refused(error);
      return;
    }
  }
  await open();
}

/** Reads the hosts and what is permitted. Returns whether that succeeded. */
export async function open(): Promise<boolean> {
  try {
    const info = await call<Info>("", "get", "/ui/info");
    const before = new Map(hosts.value.map((host) => [host.name, host]));
    hosts.value = info.hosts.map(({ name, label, options, editor }) => {
      const base = `/host/${name}`;
      return { name, label, options, base, editor, sessions: before.get(name)?.sessions ?? new Sessions(base) };
    });
    for (const { name, sessions } of before.values())
      if (!info.hosts.some((host) => host.name === name)) sessions.close();
    signedOut.value = undefined;
    login.value = { state: "in", info };
    for (const { sessions } of hosts.value) sessions.open();
    return true;
  } catch (error) {
    refused(error);
    return false;
  }
}

/** Notes why the page cannot be opened: it is signed out, or its server does not answer. */
function refused(error: unknown): void {
  if (error instanceof Refused && (error.problem.status === 401 || error.problem.status === 403)) {
    login.value = { state: "out", why: error.problem.detail, hint: error.problem.hint ?? undefined };
  } else {
    login.value = { state: "unreachable", why: error instanceof Error ? error.message : String(error) };
  }
}
