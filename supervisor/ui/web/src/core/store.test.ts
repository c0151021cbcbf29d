import assert from "node:assert/strict";
import { test } from "node:test";

import type { Schemas, SessionBrief } from "./api";
import { Sessions, type FeedEvent } from "./store";

/** The browser's storage, which node does not have. */
class Storage {
  private kept = new Map<string, string>();
  getItem = (key: string) => this.kept.get(key) ?? null;
  setItem = (key: string, value: string) => void this.kept.set(key, value);
  removeItem = (key: string) => void this.kept.delete(key);
}

let cursor = 0;
const event = (kind: string, data: unknown, session?: string, time = "2026-01-01T00:00:10Z"): FeedEvent =>
  ({ cursor: (cursor += 1), time, kind, data, session }) as FeedEvent;
const brief = (id: string, phase = "idle"): SessionBrief => ({ id, directory: "/", phase }) as SessionBrief;
const state = (...ids: string[]): Schemas["FeedState"] => ({ sessions: ids.map((id) => brief(id)), removed: [] });

/** Sessions whose list request is answered by `list`, when that is called. */
function sessions(): { of: Sessions; take: (event: FeedEvent) => void; list: (items: unknown[]) => Promise<void> } {
  Object.assign(globalThis, { localStorage: new Storage() });
  let answer: (items: unknown[]) => void = () => undefined;
  const listed = new Promise<Response>((done) => {
    answer = (items) => done(new Response(JSON.stringify({ sessions: items })));
  });
  globalThis.fetch = (path) =>
    String(path).includes("fields=")
      ? listed
      : Promise.resolve(new Response('{"code":"no-such-session","detail":"-","status":404}', { status: 404 }));
  const of = new Sessions("");
  const list = async (items: unknown[]) => {
    answer(items);
    await new Promise((done) => setTimeout(done, 10));
  };
  return { of, take: (given) => of.take(given), list };
}

test("a late list answer erases no new session, and brings no removed one back", async () => {
  const { of, take, list } = sessions();
  take(event("feed.state", state("old", "gone")));
  take(event("session.state", brief("new", "busy"), "new"));
  take(event("session.removed", brief("gone"), "gone"));
  await list([
    { id: "old", title: "Old" },
    { id: "gone", title: "Gone" },
  ]);
  assert.deepEqual([...of.all.value.keys()], ["old", "new"]);
  assert.equal(of.name(of.all.value.get("old")!), "Old");
  assert.equal(of.extras.value.has("gone"), false);
});

test("the state of all sessions replaces what was removed meanwhile", () => {
  const { of, take } = sessions();
  take(event("feed.state", state("a", "b")));
  take(event("feed.state", state("b", "c")));
  assert.deepEqual([...of.all.value.keys()], ["b", "c"]);
});

test("at the first opening nothing is unread, and then only what came after the last look", async () => {
  const { of, take, list } = sessions();
  take(event("feed.state", state("a", "b"), undefined, "2026-01-01T00:00:10Z"));
  await list([{ id: "a", status: { idle_since: "2026-01-01T00:00:05Z" } }]);
  assert.deepEqual([...of.unread.value], []);
  take(event("turn.ended", { turn: "t1" }, "a", "2026-01-01T00:00:20Z"));
  take(event("turn.ended", { turn: "t1" }, "b", "2026-01-01T00:00:21Z"));
  assert.deepEqual([...of.unread.value], ["a", "b"]);
  of.look("a", 7, "2026-01-01T00:00:20Z");
  assert.deepEqual([...of.unread.value], ["b"]);
  take(event("turn.ended", { turn: "t2" }, "a", "2026-01-01T00:00:30Z"));
  assert.deepEqual([...of.unread.value], ["b", "a"]);
});

test("a session without news has the time of its creation, and later ones only rise", async () => {
  const { of, take, list } = sessions();
  take(event("feed.state", state("a", "b")));
  await list([
    { id: "a", created: "2026-01-01T00:00:01Z" },
    { id: "b", created: "2026-01-01T00:00:02Z", status: { idle_since: "2026-01-01T00:00:05Z" } },
  ]);
  take(event("session.state", brief("c", "busy"), "c", "2026-01-01T00:00:20Z"));
  const seconds = (id: string) => new Date(of.lastNews(id)).getUTCSeconds();
  assert.deepEqual(["a", "b", "c"].map(seconds), [1, 5, 20]);
  take(event("turn.ended", { turn: "t" }, "a", "2026-01-01T00:00:30Z"));
  assert.deepEqual(["a", "b", "c"].map(seconds), [30, 5, 20]);
});

test("what another window showed is not new here", () => {
  const listeners: ((event: unknown) => void)[] = [];
  Object.assign(globalThis, {
    addEventListener: (_: string, listener: (event: unknown) => void) => listeners.push(listener),
    removeEventListener: (_: string, listener: (event: unknown) => void) =>
      listeners.splice(listeners.indexOf(listener), 1),
    document: { visibilityState: "visible", addEventListener: () => undefined, removeEventListener: () => undefined },
  });
  const { of, take } = sessions();
  of.open();
  take(event("feed.state", state("a")));
  take(event("turn.ended", { turn: "t1" }, "a", "2026-01-01T00:00:20Z"));
  assert.deepEqual([...of.unread.value], ["a"]);
  localStorage.setItem("look  a", "7 2026-01-01T00:00:20Z");
  listeners.forEach((listen) => listen({ key: "look  a", newValue: "7 2026-01-01T00:00:20Z" }));
  assert.deepEqual([...of.unread.value], []);
  of.close();
  assert.deepEqual(listeners, []);
});
