/** One session: its conversation, the input and the footer. */
import type { Signal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { call, session as path, type SessionView } from "../core/api";
import type { Item } from "../core/conversation";
import { keys } from "../core/keys";
import type { Host } from "../core/login";
import { look } from "../core/looks";
import { Window } from "../core/window";
import { texts } from "../texts";
import { AppletPane, useApplet } from "./applet";
import { ConnectionState } from "./connection";
import { Footer } from "./footer";
import { Input } from "./input";
import { ItemView } from "./items";
import type { Reply } from "./question";

/** Distance from an end in pixels at which the view counts as being there. */
const NEAR = 60;
/** Number of items on the screen at first, and added by scrolling. */
const SHOWN = 120;

interface Props {
  host: Host;
  id: string;
  session: SessionView | undefined;
  readOnly: boolean;
  problem: Signal<unknown>;
}

export function ConversationView({ host, id, session, readOnly, problem }: Props): VNode {
  const part = useMemo(() => new Window(host.base, id), [host, id]);
  useEffect(() => () => part.close(), [part]);
  useObserved(host, id, part, readOnly);
  const applet = useApplet(host, id, session, readOnly);
  const reply = readOnly ? undefined : replyTo(host, id, problem);
  const open = session?.status.permissions.at(0);
  useEffect(() => {
    if (reply === undefined || open === undefined || open.elicitation?.mode === "form") return;
    const unbind = open.options.slice(0, 9).map((option, index) => keys.bind(String(index + 1), () => reply(open.id, { option: option.id })));
    return () => unbind.forEach((each) => each());
  }, [open?.id, readOnly]);
  return (
    <div class={`conversation ${applet.shown === undefined ? "" : "beside"}`}>
      <section class="talk" aria-label={texts.conversation.region}>
        <Log part={part} session={session} reply={reply} since={useMemo(() => look(host.base, id)?.seq, [host, id])} />
        <ConnectionState of={part.connection} heard={part.heard} retry={() => part.retry()} />
        {!readOnly && <Input host={host} id={id} session={session} problem={problem} commands={part.conversation.side.commands} sent={() => part.newest()} />}
        <Footer session={session} show={applet.show} />
      </section>
      {applet.shown !== undefined && <AppletPane applet={applet} />}
    </div>
  );
}

function replyTo(host: Host, id: string, problem: Signal<unknown>): Reply {
  return (permission, answer) => {
    problem.value = undefined;
    call(host.base, "post", path(id, `/permissions/${encodeURIComponent(permission)}`), answer).catch((error: unknown) => (problem.value = error));
  };
}

/** Notes what the person sees: in the browser for what is unread, and at the daemon that somebody looked. */
function useObserved(host: Host, id: string, part: Window, readOnly: boolean): void {
  const version = part.version.value;
  const said = useRef(0);
  useEffect(() => {
    const seen = () => {
      const last = part.conversation.items.at(-1);
      if (document.visibilityState !== "visible" || last === undefined || !part.follows) return;
      host.sessions.look(id, part.conversation.last, part.conversation.time);
      if (readOnly || Date.now() - said.current < 60_000) return;
      said.current = Date.now();
      // Only for `agentctl`'s last look. A failure changes nothing for the person here.
      call(host.base, "post", path(id, "/observed")).catch(() => undefined);
    };
    seen();
    document.addEventListener("visibilitychange", seen);
    return () => document.removeEventListener("visibilitychange", seen);
  }, [version, part]);
}

interface LogProps {
  part: Window;
  session: SessionView | undefined;
  reply: Reply | undefined;
  /** The last record that the person saw before. */
  since: number | undefined;
}

/** The items, in a part of the page that scrolls by itself. */
function Log({ part, session, reply, since }: LogProps): VNode {
  const scroller = useRef<HTMLDivElement>(null);
  const [shown, setShown] = useState(SHOWN);
  const [away, setAway] = useState(false);
  const version = part.version.value;
  const items = part.conversation.items;
  useScroll(scroller, part, version, shown);
  const waiting = new Set(session?.status.permissions.map((request) => request.id) ?? []);
  const last = session?.status.last_seq ?? 0;
  // The document can be older than the conversation: then a question of the journal counts as open.
  const isOpen = (item: Item) => item.kind === "question" && (waiting.has(item.request.id) || item.seq > last);
  const scrolled = () => {
    const element = scroller.current!;
    const fromEnd = element.scrollHeight - element.scrollTop - element.clientHeight;
    part.follows = fromEnd < NEAR && !part.detached.value;
    setAway(fromEnd >= NEAR);
    if (element.scrollTop < NEAR * 5) {
      if (shown < items.length) setShown(shown + SHOWN);
      else if (part.older.value) void part.load().then((any) => any && setShown((before) => before + SHOWN));
    }
    if (fromEnd < NEAR * 5 && part.detached.value) void part.loadNewer();
    if (part.follows && shown > SHOWN) setShown(SHOWN);
  };
  const newest = () => {
    part.newest();
    setShown(SHOWN);
    setAway(false);
    scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  };
  useEffect(() => {
    const unbind = [keys.bind("G", newest), keys.bind("g", () => scroller.current?.scrollTo({ top: 0 }))];
    return () => unbind.forEach((each) => each());
  });
  const drawn = items.slice(-shown);
  const divider = since === undefined ? -1 : drawn.findIndex((item) => item.seq > since && item.kind !== "marker");
  return (
    <div class="frame">
      <div class="scroller" ref={scroller} onScroll={scrolled} tabIndex={0} role="log" aria-label={texts.conversation.region} aria-live="off">
        {part.loading.value && <p class="hint">{texts.conversation.loading}</p>}
        {!part.older.value && shown >= items.length && <p class="hint">{texts.conversation.begin}</p>}
        {drawn.map((item, index) => [
          index === divider && index > 0 && <p key="divider" class="divider"><span>{texts.conversation.unread}</span></p>,
          <ItemView key={item.key} item={item} rev={item.rev} isOpen={isOpen(item)} reply={reply} />,
        ])}
      </div>
      {(away || part.detached.value) && <button type="button" class="newest" onClick={newest}>{texts.conversation.newest}</button>}
    </div>
  );
}

/** Keeps the end in view while the person reads it, and else the item under the eye. */
function useScroll(scroller: { current: HTMLDivElement | null }, part: Window, version: number, shown: number): void {
  const anchor = useRef<{ element: Element; top: number; height: number } | undefined>(undefined);
  const element = scroller.current;
  // Before the change is drawn: the first item in view and its place.
  if (element !== null && !part.follows) {
    const top = element.getBoundingClientRect().top;
    const first = [...element.children].find((child) => child.getBoundingClientRect().bottom > top && child.hasAttribute("data-seq"));
    anchor.current = first === undefined ? undefined : { element: first, top: first.getBoundingClientRect().top, height: element.scrollHeight };
  }
  useLayoutEffect(() => {
    const now = scroller.current;
    if (now === null) return;
    if (part.follows) {
      now.scrollTop = now.scrollHeight;
    } else if (anchor.current?.element.isConnected) {
      now.scrollTop += anchor.current.element.getBoundingClientRect().top - anchor.current.top;
    } else if (anchor.current !== undefined && now.scrollTop < NEAR) {
      // The text at the top was joined with its beginning, so only the height tells what was put in front.
      now.scrollTop += now.scrollHeight - anchor.current.height;
    }
  }, [version, shown]);
  useEffect(() => {
    const now = scroller.current;
    if (now === null) return;
    // Another size of the window, or an image that arrives, moves the end too.
    const observer = new ResizeObserver(() => {
      if (part.follows) now.scrollTop = now.scrollHeight;
    });
    observer.observe(now);
    return () => observer.disconnect();
  }, [part]);
}
