/**
 * The items of a conversation, in a part of the page that scrolls by itself.
 *
 * Only some items are in the document: the last ones while the person reads the end, and else those around the view.
 * What is under the eye stays where it is when items come or go above it.
 */
import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import type { SessionView } from "../core/api";
import type { Item } from "../core/conversation";
import { keys } from "../core/keys";
import { short } from "../core/text";
import type { Window } from "../core/window";
import { texts } from "../texts";
import { ItemView } from "./items";
import type { Open, Reply } from "./question";

/** Distance from an end in pixels at which the view counts as being there. */
const NEAR = 60;
/** Number of items in the document at the end, and the step by which scrolling moves them. */
const STEP = 120;
/** Most items in the document. */
const MOST = 4 * STEP;

interface Props {
  part: Window;
  session: SessionView | undefined;
  reply: Reply | undefined;
  /** The last record that the person saw before. */
  since: number | undefined;
}

type Scroller = { current: HTMLDivElement | null };

export function Log({ part, session, reply, since }: Props): VNode {
  const scroller = useRef<HTMLDivElement>(null);
  const height = useRef(0);
  // The first item in the document. Undefined while the person reads the end.
  const [first, setFirst] = useState<string>();
  const version = part.version.value;
  const items = part.conversation.items;
  // The list grows in place, so its length is that of this drawing.
  const count = items.length;
  const start = first === undefined ? Math.max(0, count - STEP) : place(items, first, scroller);
  const end = first === undefined ? count : Math.min(count, start + MOST);
  useAnchor(scroller, part, `${version} ${first ?? ""} ${start} ${count} ${part.older.value}`);

  const older = async () => {
    if (start > 0) return setFirst(items[Math.max(0, start - STEP)]!.key);
    // The first item can be joined with a record before it, so the second one counts too.
    const known = items.slice(0, 2).map(({ key }) => key);
    if (!part.older.value || !(await part.load())) return;
    const now = part.conversation.items;
    const at = now.findIndex(({ key }) => known.includes(key));
    setFirst(now[Math.max(0, at - STEP)]?.key);
  };
  const toEnd = () => scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  const scrolled = () => {
    const element = scroller.current;
    // A part that is not shown has no size, and what it scrolls to means nothing.
    if (element === null || element.clientHeight === 0) return;
    // The footer or the options came, and made the part smaller. The person has not left the end.
    const isResized = element.clientHeight !== height.current;
    height.current = element.clientHeight;
    if (isResized && part.follows) return toEnd();
    const fromEnd = element.scrollHeight - element.scrollTop - element.clientHeight;
    part.follows = fromEnd < NEAR && end === count && !part.detached.value;
    if (part.follows) setFirst(undefined);
    else if (first === undefined) setFirst(items[start]?.key);
    if (element.scrollTop < NEAR * 5) void older();
    else if (fromEnd < NEAR * 5 && end < count) setFirst(items[start + STEP]!.key);
    else if (fromEnd < NEAR * 5 && part.detached.value) void part.loadNewer();
  };
  useEffect(() => {
    const element = scroller.current!;
    // Nobody can scroll further up than the top. So older records that arrive after the scrolling are shown here.
    if (element.clientHeight > 0 && !part.follows && element.scrollTop < NEAR * 5) void older();
  }, [version, start]);
  const newest = () => {
    part.newest();
    setFirst(undefined);
    requestAnimationFrame(toEnd);
  };
  useEffect(() => {
    const element = scroller.current!;
    const loaded = () => part.follows && toEnd();
    // These events do not bubble. Whoever unfolds something to read it no longer reads the end.
    element.addEventListener("toggle", scrolled, true);
    element.addEventListener("load", loaded, true);
    return () => {
      element.removeEventListener("toggle", scrolled, true);
      element.removeEventListener("load", loaded, true);
    };
  });
  useEffect(() => {
    const unbind = [keys.bind("G", newest), keys.bind("g", () => scroller.current?.scrollTo({ top: 0 }))];
    return () => unbind.forEach((each) => each());
  });
  return (
    <div class="frame">
      <div
        class="scroller"
        ref={scroller}
        onScroll={scrolled}
        tabIndex={0}
        role="log"
        aria-label={texts.conversation.region}
        aria-live="off"
      >
        {part.conversation.last === 0 && <p class="hint">{texts.conversation.loading}</p>}
        {(part.older.value || start > 0) && part.conversation.last > 0 && (
          <p class="hint">
            <button type="button" onClick={() => void older()}>
              {texts.conversation.older}
            </button>
          </p>
        )}
        {!part.older.value && start === 0 && <p class="hint">{texts.conversation.begin}</p>}
        <Items items={items.slice(start, end)} session={session} reply={reply} since={since} />
      </div>
      <p class="unseen" role="status">
        <bdi>{spoken(items.at(-1))}</bdi>
      </p>
      {part.loading.value && <p class="loading">{texts.conversation.loading}</p>}
      {(first !== undefined || part.detached.value) && (
        <button type="button" class="newest" onClick={newest}>
          {texts.conversation.newest}
        </button>
      )}
    </div>
  );
}

/** Returns what a screen reader tells of the last item: a question or the end of a turn, and no text as it grows. */
function spoken(item: Item | undefined): string {
  if (item?.kind === "question" && item.answer === undefined) return texts.question.spoken(short(item.request.title));
  return item?.kind === "ended" ? texts.conversation.turnOver : "";
}

/** Returns the index of an item. If it has left the conversation, that of an item somewhat above the view. */
function place(items: Item[], key: string, scroller: Scroller): number {
  const found = items.findIndex((item) => item.key === key);
  if (found >= 0) return found;
  const seq = Number(topmost(scroller.current)?.getAttribute("data-seq"));
  return Math.max(0, items.findIndex((item) => item.seq === seq) - STEP);
}

interface ItemsProps {
  items: Item[];
  session: SessionView | undefined;
  reply: Reply | undefined;
  since: number | undefined;
}

function Items({ items, session, reply, since }: ItemsProps): VNode {
  const waiting = new Set(session?.status.permissions.map((request) => request.id) ?? []);
  // The document can be older than the conversation: then a question of the journal counts as open.
  const last = session?.status.last_seq ?? 0;
  const openOf = (item: Item): Open => {
    if (item.kind !== "question" || !(waiting.has(item.request.id) || item.seq > last)) return "no";
    return item.request.id === session?.status.permissions[0]?.id ? "first" : "later";
  };
  const divider = since === undefined ? -1 : items.findIndex((item) => item.seq > since && item.kind !== "marker");
  const drawn = items.map((item) => (
    <ItemView key={item.key} item={item} rev={item.rev} open={openOf(item)} reply={reply} />
  ));
  if (divider > 0)
    drawn.splice(
      divider,
      0,
      <p key="divider" class="divider">
        <span>{texts.conversation.unread}</span>
      </p>,
    );
  // One list with keys: what stays in the document when items come and go keeps its element.
  return <>{drawn}</>;
}

/** Returns the first item in view. */
function topmost(element: HTMLElement | null): Element | undefined {
  if (element === null) return undefined;
  const top = element.getBoundingClientRect().top;
  return [...element.children].find(
    (child) => child.hasAttribute("data-seq") && child.getBoundingClientRect().bottom > top,
  );
}

/** Keeps the end in view while the person reads it, and else the item under the eye. `change` names what is drawn. */
function useAnchor(scroller: Scroller, part: Window, change: string): void {
  const anchor = useRef<{ element: Element; top: number; height: number } | undefined>(undefined);
  const before = scroller.current;
  // Before the change is drawn: the first item in view and its place.
  if (before !== null && !part.follows) {
    const element = topmost(before);
    anchor.current = element && { element, top: element.getBoundingClientRect().top, height: before.scrollHeight };
  }
  useLayoutEffect(() => {
    const now = scroller.current;
    if (now === null) return;
    const { element, top, height } = anchor.current ?? {};
    if (part.follows) now.scrollTop = now.scrollHeight;
    else if (element?.isConnected) now.scrollTop += element.getBoundingClientRect().top - top!;
    // The text at the top was joined with its beginning, so only the height tells what was put in front.
    else if (height !== undefined && now.scrollTop < NEAR) now.scrollTop += now.scrollHeight - height;
  }, [change]);
  useEffect(() => {
    const now = scroller.current;
    if (now === null) return;
    // Another size of the window moves the end too.
    const observer = new ResizeObserver(() => {
      if (part.follows) now.scrollTop = now.scrollHeight;
    });
    observer.observe(now);
    return () => observer.disconnect();
  }, [part]);
}
