/** The list of sessions: for each host, the groups with their sessions. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";

import type { SessionBrief } from "../core/api";
import { attention, GROUPS, type Group } from "../core/groups";
import { login, type Host } from "../core/login";
import { fragment, go, route, type Route } from "../core/route";
import { grouped, type Filter } from "../core/store";
import { short, visible } from "../core/text";
import { texts } from "../texts";
import { ConnectionState } from "./connection";

/** Number of sessions of a group that are shown at first. */
const SHOWN = 100;

interface ListsProps {
  hosts: Host[];
  filter: Filter;
  open: Route;
}

/** The lists of all hosts side by side. */
export function Lists({ hosts, filter, open }: ListsProps): VNode {
  return (
    <nav class="lists" aria-label={texts.home}>
      {hosts.map((host) => (
        <List key={host.name} host={host} filter={filter} open={open} isNamed={hosts.length > 1} />
      ))}
    </nav>
  );
}

interface ListProps {
  host: Host;
  filter: Filter;
  open: Route;
  /** Whether the host is named: where there are several. */
  isNamed: boolean;
}

function List({ host, filter, open, isNamed }: ListProps): VNode {
  const { sessions } = host;
  const groups = groupsOf(host, filter);
  const isEmpty = [...groups.values()].every((briefs) => briefs.length === 0);
  const readOnly = login.value.state === "in" && login.value.info.read_only;
  const none = readOnly ? texts.noSessionsReadOnly : texts.noSessions;
  return (
    <section class="host" aria-label={host.label} data-host={host.name}>
      {isNamed && (
        <h2>
          <bdi>{visible(host.label)}</bdi>
        </h2>
      )}
      <ConnectionState of={sessions.connection} heard={sessions.heard} retry={() => sessions.retry()} />
      {sessions.complete.value && isEmpty && (
        <p class="empty">{sessions.all.value.size === 0 ? none : texts.noMatch}</p>
      )}
      {GROUPS.map((name) => (
        <Sessions key={name} host={host} name={name} briefs={groups.get(name)!} open={open} level={isNamed ? 3 : 2} />
      ))}
    </section>
  );
}

interface SessionsProps {
  host: Host;
  name: Group;
  briefs: SessionBrief[];
  open: Route;
  /** Level of the group's heading. */
  level: 2 | 3;
}

function Sessions({ host, name, briefs, open, level }: SessionsProps): VNode | null {
  const [all, setAll] = useState(false);
  if (briefs.length === 0) return null;
  const shown = all ? briefs : briefs.slice(0, SHOWN);
  const id = `group-${host.name}-${name}`;
  const isOpen = (brief: SessionBrief) => "id" in open && open.host === host.name && open.id === brief.id;
  return (
    <section class={`group ${name}`} aria-labelledby={id} data-group={name}>
      <p id={id} role="heading" aria-level={level} class="group-name">
        {texts.groups[name]} <span class="count">{briefs.length}</span>
      </p>
      <ul>
        {shown.map((brief) => (
          <Row key={brief.id} host={host} brief={brief} isOpen={isOpen(brief)} />
        ))}
      </ul>
      {shown.length < briefs.length && (
        <button type="button" onClick={() => setAll(true)}>
          {texts.more(briefs.length - shown.length)}
        </button>
      )}
    </section>
  );
}

function Row({ host, brief, isOpen }: { host: Host; brief: SessionBrief; isOpen: boolean }): VNode {
  const need = attention(brief);
  const isUnread = host.sessions.unread.value.has(brief.id) && !isOpen;
  const title = host.sessions.extras.value.get(brief.id)?.title;
  const labels = Object.entries(brief.labels ?? {});
  return (
    <li>
      <a
        href={fragment({ view: "session", host: host.name, id: brief.id })}
        class={`session ${isUnread ? "unread" : ""}`}
        aria-current={isOpen ? "page" : undefined}
        data-session={brief.id}
        data-phase={brief.phase}
      >
        <span class="name">
          <bdi>{short(host.sessions.name(brief))}</bdi>
        </span>
        <span class={`state ${brief.phase}`}>{need === undefined ? texts.phase(brief.phase) : texts.reason(need)}</span>
        {isUnread && <span class="new">{texts.unread}</span>}
        {brief.name && title && (
          <span class="more">
            <bdi>{short(title)}</bdi>
          </span>
        )}
        {brief.message && (
          <span class="more">
            <bdi>{short(brief.message)}</bdi>
          </span>
        )}
        <span class="where">
          {brief.agent && <span>{visible(brief.agent)}</span>}
          {brief.place && (
            <span class="place">
              <bdi>{short(texts.at(brief.place))}</bdi>
            </span>
          )}
          <span class="directory" title={visible(brief.directory)}>
            <bdi>{visible(brief.directory)}</bdi>
          </span>
        </span>
        {labels.length > 0 && (
          <span class="labels">
            {labels.map(([key, value]) => (
              <span key={key}>
                <bdi>{visible(value ? `${key}=${value}` : key)}</bdi>
              </span>
            ))}
          </span>
        )}
      </a>
    </li>
  );
}

function groupsOf(host: Host, filter: Filter): Map<Group, SessionBrief[]> {
  const extras = host.sessions.extras.value;
  const groups = grouped(host.sessions.all.value.values(), filter, (brief) => extras.get(brief.id)?.title ?? "");
  // Those with the latest news are first.
  const news = ({ id }: SessionBrief) => host.sessions.lastNews(id);
  const order = (one: SessionBrief, other: SessionBrief) => news(other) - news(one) || one.id.localeCompare(other.id);
  for (const briefs of groups.values()) briefs.sort(order);
  return groups;
}

/** Goes to the next session of the lists as they are shown, or with -1 to the previous one. */
export function step(hosts: Host[], filter: Filter, by: 1 | -1): void {
  const all = hosts.flatMap((host) =>
    [...groupsOf(host, filter).values()].flatMap((briefs) =>
      briefs.map(({ id }) => ({ view: "session", host: host.name, id }) as const),
    ),
  );
  if (all.length === 0) return;
  const now = route.value;
  const at = "id" in now ? all.findIndex(({ host, id }) => host === now.host && id === now.id) : -1;
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by));
  go(all[next]!);
}
