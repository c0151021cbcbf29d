/** A panel that loads its content when somebody opens it. */
import { signal } from "@preact/signals";
import type { ComponentChildren, VNode } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { Refused } from "../../core/api";
import type { Host } from "../../core/login";
import { why } from "../../texts";
import { ProblemView } from "../problem";

/** What every panel knows of its session. */
export interface Place {
  host: Host;
  id: string;
  readOnly: boolean;
}

const KEY = "why.open";
/** Names of the open panels, which stay open for the next session and over a reload. */
const opened = signal<ReadonlySet<string>>(new Set((sessionStorage.getItem(KEY) ?? "state prerequisites").split(" ")));

/** A panel. Its content exists only while it is open. */
export function Panel({ name, title, children }: { name: string; title: string; children: () => VNode }): VNode {
  const open = opened.value.has(name);
  const toggle = (now: boolean) => {
    if (now === opened.value.has(name)) return;
    const next = new Set(opened.value);
    if (now) next.add(name);
    else next.delete(name);
    opened.value = next;
    sessionStorage.setItem(KEY, [...next].join(" "));
  };
  return (
    <details class="panel" data-panel={name} open={open} onToggle={(event) => toggle(event.currentTarget.open)}>
      <summary>
        <h2>{title}</h2>
      </summary>
      {open && <div class="body">{children()}</div>}
    </details>
  );
}

/** A value that is loaded, was refused, or is on its way. */
export interface Loaded<T> {
  value: T | undefined;
  refused: Refused | undefined;
  busy: boolean;
  /** Loads again, or takes the result of another call, for example one that also changes something. */
  load: (from?: () => Promise<T>) => void;
}

/** Loads a value, and again when `key` changes. A late answer never replaces the answer to a later call. */
export function useLoad<T>(load: () => Promise<T>, key: string): Loaded<T> {
  const [state, setState] = useState<Pick<Loaded<T>, "value" | "refused" | "busy">>({
    value: undefined,
    refused: undefined,
    busy: true,
  });
  const calls = useRef(0);
  const latest = useRef(load);
  latest.current = load;
  const run = useCallback((from: () => Promise<T> = latest.current) => {
    const call = (calls.current += 1);
    const settle = (next: Pick<Loaded<T>, "value" | "refused" | "busy">) => {
      if (call === calls.current) setState(next);
    };
    setState((before) => ({ ...before, busy: true }));
    from().then(
      (value) => settle({ value, refused: undefined, busy: false }),
      (error: unknown) => settle({ value: undefined, refused: refusal(error), busy: false }),
    );
  }, []);
  useEffect(() => {
    run();
    return () => {
      calls.current += 1;
    };
  }, [key, run]);
  return { ...state, load: run };
}

/** Returns an error as a refusal. */
export function refusal(error: unknown): Refused {
  if (error instanceof Refused) return error;
  return new Refused({ code: "internal", status: 0, detail: error instanceof Error ? error.message : String(error) });
}

/** Content of a panel: the value, the reason why there is none, or a note that it is on its way. */
export function Content<T>({ of, children }: { of: Loaded<T>; children: (value: T) => ComponentChildren }): VNode {
  return (
    <div aria-busy={of.busy}>
      <ProblemView of={of.refused} />
      {of.value !== undefined && children(of.value)}
      {of.busy && of.value === undefined && <p role="status">{why.loading}</p>}
    </div>
  );
}

interface ActionProps {
  busy: boolean;
  /** Name of the button, if its text does not suffice. */
  label?: string;
  run: () => void;
  children: string;
}

/** A button that does nothing while its last action goes on. It keeps the focus, which a disabled one would lose. */
export function Action({ busy, label, run, children }: ActionProps): VNode {
  return (
    <button type="button" aria-disabled={busy} aria-label={label} onClick={() => busy || run()}>
      {children}
    </button>
  );
}

/** Milliseconds for which events are gathered before a panel loads again. */
const GATHER = 300;

/** Calls `run` after events of the session for which `wanted` holds, and after a connection was lost and is back. */
export function useEvents({ host, id }: Place, wanted: (kind: string) => boolean, run: () => void): void {
  const latest = useRef(run);
  latest.current = run;
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let wasLost = false;
    const soon = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        latest.current();
      }, GATHER);
    };
    const end = host.sessions.listen((event) => {
      if (event.session === id && wanted(event.kind)) soon();
    });
    const leave = host.sessions.connection.subscribe(({ state }) => {
      if (state === "live" && wasLost) soon();
      wasLost = state !== "live";
    });
    return () => {
      end();
      leave();
      clearTimeout(timer);
    };
  }, [host, id]);
}
