/**
 * A stream of server-sent events that continues after an interruption.
 *
 * A connection counts as alive only while something arrives. The endpoint sends a heartbeat after each 15 s of silence,
 * so a connection that is silent for longer than two heartbeats is ended and begun again, also if it looks open. The
 * cursor makes each reconnection send exactly what was missed.
 *
 * A page that gets no place for a stream (`slots.ts`), or that is hidden, asks for new events from time to
 * time instead.
 */
import { texts } from "../texts";
import { answer, Refused, words, type Base } from "./api";
import { send } from "./key";
import { take } from "./slots";

export type Connection =
  | { state: "connecting" }
  | { state: "live"; since: number }
  | { state: "waiting"; attempt: number; until: number; why: string }
  | { state: "refused"; why: string; code: string }
  | { state: "paused" };

export interface Options<T> {
  base: Base;
  kind: "feed" | "conversation";
  /** Path with the query for a cursor, or for the first request. */
  path: (cursor: number | undefined, follow: boolean) => string;
  /** Position of an item, if it has one. */
  cursor: (item: T) => number | undefined;
  /** Takes an item and the length of its text. */
  item: (item: T, length: number) => void;
  changed: (connection: Connection) => void;
  /** Called with each sign of life, heartbeats among them. */
  heard?: () => void;
  /** Called before a reconnection. Returns the cursor from which to continue, or undefined to begin anew. */
  resume?: (cursor: number) => Promise<number | undefined>;
  /** Whether a hidden page pauses, asks from time to time, or goes on. */
  hidden?: () => "pause" | "poll" | "follow";
  /** Milliseconds without a sign of life after which a connection counts as dead. */
  silence?: number;
}

const SILENCE = 35_000;
const LONGEST_PAUSE = 10_000;
/** Pause between two questions of a page without a place, and of a hidden page. */
const POLL = 2_000;
const HIDDEN_POLL = 15_000;
/** Number of empty answers after which the next question begins anew, so that its cursor is a recent one. */
const EMPTY_ANSWERS = 20;

/** Pause before an attempt, in milliseconds: doubled each time, with up to a tenth of chance to each side. */
export function pause(attempt: number, chance = Math.random()): number {
  return Math.min(LONGEST_PAUSE, 250 * 2 ** Math.min(attempt, 10)) * (0.9 + chance / 5);
}

/** Splits text into lines. Keeps the part after the last newline for the next call. */
export class Lines {
  private rest: string[] = [];

  push(text: string, line: (text: string) => void): void {
    let start = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
      this.rest.push(text.slice(start, end));
      const whole = this.rest.length === 1 ? this.rest[0]! : this.rest.join("");
      this.rest = [];
      line(whole);
      start = end + 1;
    }
    if (start < text.length) this.rest.push(text.slice(start));
  }
}

const isHidden = (): boolean => typeof document !== "undefined" && document.visibilityState === "hidden";

/** Follows a stream until `close` is called. */
export class Stream<T> {
  private cursor: number | undefined;
  private closed = false;
  private abort = new AbortController();
  private wake: (() => void) | undefined;
  private following = false;
  /** Whether something may have been missed since the last item. */
  private interrupted = false;
  /** Whether the stream was ended because the page is hidden. */
  private hid = false;
  private empty = 0;
  private state: Connection["state"] | undefined;
  private readonly seen = () => this.visible();

  constructor(
    private readonly options: Options<T>,
    after?: number,
  ) {
    this.cursor = after;
    if (typeof document !== "undefined") document.addEventListener("visibilitychange", this.seen);
    void this.run();
  }

  /** Ends the stream. */
  close(): void {
    this.closed = true;
    if (typeof document !== "undefined") document.removeEventListener("visibilitychange", this.seen);
    this.abort.abort();
    this.wake?.();
  }

  /** Begins a waiting attempt at once. */
  retry(): void {
    this.wake?.();
  }

  /** Wakes the stream of a page that is seen again, and ends the one of a hidden page. */
  private visible(): void {
    if (!isHidden()) this.retry();
    else if (this.following && this.mode() !== "follow") {
      this.hid = true;
      this.abort.abort();
    }
  }

  private mode(): "pause" | "poll" | "follow" {
    return isHidden() ? (this.options.hidden?.() ?? "poll") : "follow";
  }

  private change(connection: Connection): void {
    this.state = connection.state;
    this.options.changed(connection);
  }

  private async run(): Promise<void> {
    // Further attempts leave the reason of the last failure in view.
    this.change({ state: "connecting" });
    for (let attempt = 0; !this.closed;) {
      if (this.mode() === "pause") {
        this.interrupted = true;
        this.change({ state: "connecting" });
        await this.wait(undefined);
        continue;
      }
      this.hid = false;
      const failure = await this.attempt(() => (attempt = 0));
      if (this.closed) return;
      if (failure === undefined) {
        await this.wait(isHidden() ? HIDDEN_POLL : POLL);
        continue;
      }
      this.interrupted = true;
      // A hidden page ended its stream itself.
      if (this.hid) continue;
      await this.failed(failure, attempt);
      attempt += 1;
    }
  }

  /** Makes one connection and reads it. Returns why it broke, or undefined after a whole answer without a stream. */
  private async attempt(answered: () => void): Promise<unknown> {
    const free = this.mode() === "follow" ? await take(this.options.kind) : undefined;
    try {
      if (this.interrupted && this.cursor !== undefined && this.options.resume && !this.closed) {
        this.cursor = await this.options.resume(this.cursor);
      }
      if (this.closed) return undefined;
      this.interrupted = false;
      this.following = free !== undefined;
      await this.once(free !== undefined, answered);
      return free === undefined ? undefined : new Error("the connection ended");
    } catch (error) {
      // Browsers tell of a lost connection in words of their own, each in others.
      return error instanceof TypeError ? new Error(texts.connection.lost) : error;
    } finally {
      this.following = false;
      // Before the pause of the next attempt: a stream that only waits needs no place.
      free?.();
    }
  }

  /** Reports a failure, and waits for the time of the next attempt. */
  private async failed(error: unknown, attempt: number): Promise<void> {
    const problem = error instanceof Refused ? error.problem : undefined;
    if (problem?.code === "cursor-gone") {
      this.cursor = undefined;
      return;
    }
    if (problem !== undefined && problem.status >= 400 && problem.status < 500 && problem.status !== 429) {
      this.change({ state: "refused", why: words(error), code: problem.code });
      await this.wait(undefined);
      return;
    }
    const wait = pause(attempt);
    this.change({ state: "waiting", attempt: attempt + 1, until: Date.now() + wait, why: words(error) });
    await this.wait(wait);
  }

  /** Waits for a time, or without one until somebody wakes the stream. */
  private async wait(time: number | undefined): Promise<void> {
    if (this.closed) return;
    await new Promise<void>((resolve) => {
      const timer = time === undefined ? undefined : setTimeout(resolve, time);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.wake = undefined;
  }

  /** Reads one connection to its end. */
  private async once(follow: boolean, answered: () => void): Promise<void> {
    this.abort = new AbortController();
    const { signal } = this.abort;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let silent = false;
    const heard = () => {
      clearTimeout(timer);
      this.options.heard?.();
      timer = setTimeout(() => {
        silent = true;
        this.abort.abort();
      }, this.options.silence ?? SILENCE);
    };
    heard();
    try {
      const response = await send(this.options.base + this.options.path(this.cursor, follow), {
        signal,
        headers: { accept: "text/event-stream" },
        cache: "no-store",
      });
      if (!response.ok || response.body === null) await answer(response);
      if (follow || this.state !== "live") this.change({ state: "live", since: Date.now() });
      answered();
      await this.read(response.body!, heard);
    } catch (error) {
      if (silent) throw new Error("nothing arrived for too long, not even a heartbeat");
      throw error;
    } finally {
      clearTimeout(timer);
      this.abort.abort();
    }
  }

  private async read(body: ReadableStream<Uint8Array>, heard: () => void): Promise<void> {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    const lines = new Lines();
    let any = false;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      heard();
      lines.push(decoder.decode(value, { stream: true }), (line) => {
        if (!line.startsWith("data:")) return;
        any = true;
        const item = JSON.parse(line.slice(5)) as T;
        this.options.item(item, line.length);
        this.cursor = this.options.cursor(item) ?? this.cursor;
      });
    }
    this.empty = any ? 0 : this.empty + 1;
    if (this.options.kind === "feed" && this.empty >= EMPTY_ANSWERS) {
      this.empty = 0;
      this.cursor = undefined;
    }
  }
}
