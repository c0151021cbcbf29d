/**
 * The sessions of one machine, from the stream of all events.
 *
 * The stream begins with the state of all sessions and continues with each change, in one order. So no answer of an
 * earlier request can replace a later state. Titles and times come from the list of sessions. They only add to
 * sessions that the stream has named, and a late answer removes nothing.
 */
import { computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";

import { call, session, type Base, type Schemas, type SessionBrief, type SessionView } from "./api";
import { write } from "./draft";
import { attention, group, GROUPS, type Group } from "./groups";
import { forget, isNew, looked, lookedElsewhere, since } from "./looks";
import { notices } from "./notices";
import { Stream, type Connection } from "./stream";

export type FeedEvent = Schemas["FeedEvent"];

/** What the compact state of a session does not have. */
export interface Extra {
  title?: string | null;
  /** Time of the last thing that a person may want to see. */
  news?: string | null;
  created?: string | null;
}

/** Kinds that the page needs of all sessions. The rest stays at the daemon, above all the output of agents. */
const KINDS = [
  "session.state",
  "session.removed",
  "title.changed",
  "turn.started",
  "turn.ended",
  "permission.requested",
  "agent.exited",
  "context.changed",
  "turn.queued",
  "prerequisites.*",
  "environment.*",
  "daemon.*",
  "configuration.*",
  "plugin.*",
  "plugins.failed",
  "drain.*",
].join(",");

/** Kinds after which a session has something to see. */
const NEWS = new Set(["turn.ended", "permission.requested", "agent.exited"]);

export class Sessions {
  readonly connection = signal<Connection>({ state: "connecting" });
  /** Time of the last sign of life, heartbeats among them. */
  readonly heard = signal(0);
  /** The sessions by id. Every change is a new map. */
  readonly all = signal<ReadonlyMap<string, SessionBrief>>(new Map());
  readonly extras = signal<ReadonlyMap<string, Extra>>(new Map());
  /** Whether the list has arrived. */
  readonly complete = signal(false);
  /** The number of sessions that need a person. */
  readonly needing: ReadonlySignal<number>;
  /** Sessions with something that happened after the last look. */
  readonly unread = signal<ReadonlySet<string>>(new Set());
  private stream: Stream<FeedEvent> | undefined;
  private listeners = new Set<(event: FeedEvent) => void>();
  private counts = new Map<string, Signal<number>>();
  private begun = "";
  private unwatch: (() => void) | undefined;

  constructor(readonly base: Base) {
    this.needing = computed(
      () => [...this.all.value.values()].filter((brief) => attention(brief) !== undefined).length,
    );
  }

  open(): void {
    this.unwatch ??= lookedElsewhere(this.base, (id) => this.review(id));
    this.stream?.retry();
    this.stream ??= new Stream<FeedEvent>({
      base: this.base,
      kind: "feed",
      path: (cursor, follow) =>
        `/v1/events?kind=${KINDS}${cursor === undefined ? "" : `&after=${cursor}`}${follow ? "" : "&follow=false"}`,
      cursor: (event) => event.cursor,
      item: (event) => this.take(event),
      changed: (connection) => (this.connection.value = connection),
      heard: () => (this.heard.value = Date.now()),
      hidden: () => (notices.peek() === "on" ? "follow" : "poll"),
    });
  }

  close(): void {
    this.stream?.close();
    this.stream = undefined;
    this.unwatch?.();
    this.unwatch = undefined;
  }

  retry(): void {
    this.stream?.retry();
  }

  /** Calls `listener` with each event. Returns a function that ends this. */
  listen(listener: (event: FeedEvent) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** A number that rises with each event of a session that changes its document but not its compact state. */
  changes(id: string): Signal<number> {
    const known = this.counts.get(id) ?? signal(0);
    this.counts.set(id, known);
    return known;
  }

  /** Returns the words by which the list names a session: its name, else its title, else its id. */
  name(brief: SessionBrief): string {
    return brief.name ?? this.extras.value.get(brief.id)?.title ?? brief.id;
  }

  /** Returns the time of a session's last news, or of its creation, in milliseconds. */
  lastNews(id: string): number {
    const { news, created } = this.extras.value.get(id) ?? {};
    return Date.parse(news ?? created ?? "") || 0;
  }

  /** Notes that the person sees a session's record now. */
  look(id: string, seq: number, time: string): void {
    looked(this.base, id, { seq, time });
    this.review(id);
  }

  /** Ends the mark of a session whose last news were seen, here or in another window. */
  private review(id: string): void {
    if (!this.unread.peek().has(id)) return;
    const news = this.extras.peek().get(id)?.news;
    if (news && isNew(this.base, id, news, this.begun)) return;
    const unread = new Set(this.unread.peek());
    unread.delete(id);
    this.unread.value = unread;
  }

  /** Takes an event of the stream. */
  take(event: FeedEvent): void {
    const id = event.session ?? undefined;
    switch (event.kind) {
      case "feed.state": {
        const { sessions, removed } = event.data as Schemas["FeedState"];
        this.begun = since(this.base, event.time);
        this.all.value = new Map(sessions.map((brief) => [brief.id, brief]));
        for (const gone of removed) forget(this.base, gone);
        this.complete.value = true;
        void this.load();
        break;
      }
      case "session.state": {
        const brief = event.data as SessionBrief;
        const isFirst = !this.all.value.has(brief.id);
        this.all.value = new Map(this.all.value).set(brief.id, brief);
        if (isFirst) {
          this.add([[brief.id, { created: event.time }]]);
          void this.loadOne(brief.id);
        }
        break;
      }
      case "session.removed": {
        if (id !== undefined) this.remove(id);
        break;
      }
      case "title.changed":
      case "turn.started":
        if (id !== undefined && (event.kind === "title.changed" || !this.extras.value.get(id)?.title))
          void this.loadOne(id);
        break;
      default:
    }
    if (id !== undefined && NEWS.has(event.kind)) this.add([[id, { news: event.time }]]);
    const count = id === undefined ? undefined : this.counts.get(id);
    if (count !== undefined && event.kind !== "session.state") count.value += 1;
    for (const listener of this.listeners) listener(event);
  }

  private remove(id: string): void {
    const next = new Map(this.all.value);
    next.delete(id);
    this.all.value = next;
    this.counts.delete(id);
    forget(this.base, id);
    write(this.base, id, "");
    const unread = new Set(this.unread.value);
    if (unread.delete(id)) this.unread.value = unread;
    const extras = new Map(this.extras.value);
    if (extras.delete(id)) this.extras.value = extras;
  }

  /** Reads the titles and times of all sessions. */
  private async load(): Promise<void> {
    type Item = { id: string; created?: string; title?: string; status?: { idle_since?: string; ended_at?: string } };
    try {
      const path = "/v1/sessions?fields=id,created,title,status.idle_since,status.ended_at";
      const { sessions } = await call<{ sessions: Item[] }>(this.base, "get", path);
      const known = ({ id, created, title, status }: Item) =>
        [id, { title, created, news: later(status?.idle_since, status?.ended_at) }] as const;
      this.add(sessions.map(known));
    } catch {
      // The list is complete without titles. The next beginning of the stream reads them again.
    }
  }

  private async loadOne(id: string): Promise<void> {
    try {
      const { created, status } = await call<SessionView>(this.base, "get", session(id));
      this.add([[id, { title: status.title, created }]]);
    } catch {
      // The session was removed meanwhile, or its name must do.
    }
  }

  /** Adds to what is known of sessions that the stream has named. A later time stays. */
  private add(given: Iterable<readonly [string, Extra]>): void {
    const extras = new Map(this.extras.value);
    const unread = new Set(this.unread.value);
    for (const [id, extra] of given) {
      if (!this.all.value.has(id)) continue;
      const before = extras.get(id);
      const news = later(before?.news, extra.news);
      extras.set(id, { title: extra.title ?? before?.title, news, created: extra.created ?? before?.created });
      if (news && isNew(this.base, id, news, this.begun)) unread.add(id);
    }
    this.extras.value = extras;
    if (unread.size > this.unread.value.size) this.unread.value = unread;
  }
}

function later(one: string | null | undefined, other: string | null | undefined): string | undefined {
  if (!one || !other) return one ?? other ?? undefined;
  return Date.parse(one) > Date.parse(other) ? one : other;
}

export interface Filter {
  text: string;
  label: string;
}

/** Returns the sessions of each group that match a filter, in the order of the list. */
export function grouped(
  all: Iterable<SessionBrief>,
  filter: Filter,
  title: (brief: SessionBrief) => string = () => "",
): Map<Group, SessionBrief[]> {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = new Map<Group, SessionBrief[]>(GROUPS.map((name) => [name, []]));
  for (const brief of all) {
    const { id, name, directory, agent, place, phase, labels } = brief;
    const pairs = Object.entries(labels ?? {}).map(([key, value]) => `${key}=${value}`);
    const where = [id, name, directory, agent, place, phase, title(brief), ...pairs].join("\n").toLowerCase();
    if (!words.every((word) => where.includes(word))) continue;
    if (filter.label !== "" && !matches(labels ?? {}, filter.label)) continue;
    groups.get(group(brief))!.push(brief);
  }
  return groups;
}

/** Returns whether labels satisfy a selector: `a=b,c!=d,e,!f`, as the endpoint's key `label` has it. */
export function matches(labels: Record<string, string>, selector: string): boolean {
  const parts = selector
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);
  return parts.every((part) => {
    const unequal = part.indexOf("!=");
    if (unequal > 0) return labels[part.slice(0, unequal).trim()] !== part.slice(unequal + 2).trim();
    const equal = part.indexOf("=");
    if (equal > 0)
      return (
        labels[part.slice(0, equal).trim()] ===
        part
          .slice(equal + 1)
          .replace(/^=/, "")
          .trim()
      );
    return part.startsWith("!") ? !(part.slice(1).trim() in labels) : part in labels;
  });
}
