/**
 * The part of a session's journal that the page shows: its last records first, older ones when somebody scrolls, and
 * new records as they come.
 *
 * The page holds a bounded part. While the person reads the end, the oldest records leave. While the person reads
 * further up, new records are no longer kept when the part is full: the window is then `detached` from the end, and
 * `newest` or scrolling down brings it back.
 */
import { signal } from "@preact/signals";

import { answer, call, session, type Base } from "./api";
import { Conversation, type Event, type Gap } from "./conversation";
import { send } from "./key";
import { Stream, type Connection } from "./stream";

/** Number of records of the first answer. It is small, since single records can have megabytes. Pages grow from it. */
const FIRST = 8;
/** Records that the beginning and each older page should have, and the bytes at which less is enough. */
const PAGE = 200;
const PAGE_BYTES = 256 << 10;
/** Milliseconds without a record after which a first answer with fewer records counts as whole. */
const SHORT = 200;
/** Number and length of missed records above which a reconnection begins anew with the last ones. */
const MISSED = 1_000;
const MISSED_BYTES = 1 << 20;
/** Milliseconds between two drawings while records stream. */
const FRAME = 80;

interface Line {
  event: Event;
  length: number;
}

export class Window {
  readonly connection = signal<Connection>({ state: "connecting" });
  readonly heard = signal(0);
  /** Rises with each change of the conversation. */
  readonly version = signal(0);
  /** Whether there are older records than the first one here. */
  readonly older = signal(true);
  readonly loading = signal(false);
  /** Whether newer records exist that are not here. */
  readonly detached = signal(false);
  readonly conversation: Conversation;
  /** Whether the person reads the end. The view sets this. */
  follows = true;
  private stream: Stream<Event> | undefined;
  private scheduled = false;
  private closed = false;
  /** Length of a record, as of the last ones. */
  private average = 1_000;
  private step = FIRST;
  /** Number of records of the first answer that have not come yet. */
  private awaited = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** Sum of the lengths of the records that were read at the beginning. */
  private bytes = 0;
  private gap: Gap | undefined;

  constructor(
    private readonly base: Base,
    private readonly id: string,
    conversation = new Conversation(),
  ) {
    this.conversation = conversation;
    this.attach(undefined);
  }

  close(): void {
    this.closed = true;
    this.stream?.close();
  }

  retry(): void {
    this.stream?.retry();
  }

  /** Follows new records, after the record `after` or with the last ones. */
  private attach(after: number | undefined): void {
    this.stream?.close();
    this.detached.value = false;
    const stream = new Stream<Event>(
      {
        base: this.base,
        kind: "conversation",
        path: (from, follow) =>
          session(
            this.id,
            `/events?${from === undefined ? `last=${FIRST}` : `after=${from}`}${follow ? "" : "&follow=false"}`,
          ),
        cursor: (event) => event.seq,
        item: (event, length) => {
          if (stream === this.stream) this.take(event, length);
        },
        changed: (connection) => this.changed(connection),
        heard: () => (this.heard.value = Date.now()),
        resume: (cursor) => this.resume(cursor),
        hidden: () => "pause",
      },
      after,
    );
    this.stream = stream;
  }

  /** Notes when the connection was lost, so that a marker can stand where it was. */
  private changed(connection: Connection): void {
    if (this.connection.value.state === "live" && connection.state === "waiting") {
      this.gap = { after: this.conversation.last, from: this.heard.value, to: 0 };
    }
    this.connection.value = connection;
  }

  private take(event: Event, length: number): void {
    const before = this.conversation.last;
    const isFirst = before === 0 || event.seq > before + 1;
    if (isFirst) {
      this.conversation.clear();
      this.older.value = true;
    }
    if (this.gap !== undefined && event.seq > this.gap.after) {
      this.conversation.missed({ ...this.gap, to: Date.now() });
      this.gap = undefined;
    }
    if (!this.conversation.append(event, length)) return;
    this.average += (length - this.average) / FIRST;
    if (this.conversation.isFull()) {
      if (this.follows) {
        this.conversation.shortenFront();
        this.older.value = true;
      } else if (this.conversation.isOverfull()) {
        this.detach();
      }
    }
    this.change();
    if (isFirst) [this.awaited, this.bytes, this.step] = [FIRST, 0, FIRST];
    if (this.awaited > 0) this.began(length);
  }

  private detach(): void {
    this.stream?.close();
    this.stream = undefined;
    this.detached.value = true;
    this.connection.value = { state: "paused" };
  }

  /**
   * Decides how to continue after an interruption: with what was missed, or anew if that is too much. A person who
   * reads further up keeps the place, and the window leaves the end.
   */
  private async resume(cursor: number): Promise<number | undefined> {
    const { status } = await call<{ status: { last_seq: number } }>(this.base, "get", session(this.id));
    const most = Math.min(MISSED, Math.max(FIRST, MISSED_BYTES / this.average));
    if (status.last_seq - cursor <= most) return cursor;
    if (!this.follows) this.detach();
    return undefined;
  }

  /** Counts a record of the first answer, and reads older ones after the last. A short journal has fewer. */
  private began(length: number): void {
    this.bytes += length;
    this.awaited -= 1;
    clearTimeout(this.timer);
    const whole = () => {
      this.awaited = 0;
      void this.fill();
    };
    if (this.awaited === 0) whole();
    else this.timer = setTimeout(whole, SHORT);
  }

  /** Reads older records until the beginning has the length of a page, in records or in bytes. */
  private async fill(): Promise<void> {
    while (!this.closed && this.older.value && this.conversation.size < PAGE && this.bytes < PAGE_BYTES) {
      if (!(await this.load().catch(() => false))) return;
    }
  }

  /** Loads the page before the first record. Returns whether it had records. */
  async load(): Promise<boolean> {
    const first = this.conversation.first;
    if (first === undefined || this.loading.value) return false;
    if (first <= 1) {
      this.older.value = false;
      return false;
    }
    this.loading.value = true;
    try {
      const lines = await this.page(first, this.limit());
      if (this.conversation.first !== first) return false;
      this.conversation.prepend(lines);
      this.older.value = lines.length > 0 && (this.conversation.first ?? 1) > 1;
      this.change();
      if (!this.conversation.isOverfull()) return lines.length > 0;
      if (this.follows) {
        // Records of megabytes: the end stays, and these are read again when somebody scrolls up.
        this.conversation.shortenFront();
        this.older.value = true;
        return false;
      }
      this.conversation.shortenBack();
      this.detach();
      return true;
    } finally {
      this.loading.value = false;
    }
  }

  /** Loads the page after the last record of a detached window, and follows again at the end. */
  async loadNewer(): Promise<void> {
    if (!this.detached.value || this.loading.value) return;
    this.loading.value = true;
    try {
      const last = this.conversation.last;
      const limit = this.limit();
      const lines = await this.page(last + limit + 1, limit);
      for (const { event, length } of lines) this.conversation.append(event, length);
      if (this.conversation.isFull()) {
        this.conversation.shortenFront();
        this.older.value = true;
      }
      if (this.conversation.last < last + limit) this.attach(this.conversation.last);
      this.change();
    } finally {
      this.loading.value = false;
    }
  }

  /** Goes to the end of the journal. What was read so far is loaded again when somebody scrolls up. */
  newest(): void {
    this.follows = true;
    if (!this.detached.value) return;
    this.conversation.clear();
    this.older.value = true;
    this.attach(undefined);
    this.change();
  }

  /** Returns the number of records of the next page: twice that of the last one, and fewer if records are large. */
  private limit(): number {
    this.step = Math.max(FIRST / 2, Math.min(2 * this.step, 2 * PAGE, Math.round(PAGE_BYTES / this.average)));
    return this.step;
  }

  private async page(before: number, limit: number): Promise<Line[]> {
    const response = await send(this.base + session(this.id, `/events?before=${before}&limit=${limit}`));
    if (!response.ok) await answer(response);
    const lines = (await response.text()).split("\n").filter(Boolean);
    for (const { length } of lines) {
      this.average += (length - this.average) / (2 * FIRST);
      this.bytes += length;
    }
    return lines.map((line) => ({ event: JSON.parse(line) as Event, length: line.length }));
  }

  /** Lets the view draw, at most once in a frame. */
  private change(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    setTimeout(
      () => {
        this.scheduled = false;
        this.version.value += 1;
      },
      this.version.value === 0 ? 0 : FRAME,
    );
  }
}
