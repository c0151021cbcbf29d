import assert from "node:assert/strict";
import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";

import { Conversation } from "./conversation";
import { Window } from "./window";

/** A session's journal behind HTTP, with tool calls as records. */
class Journal {
  last = 0;
  sent = 0;
  requests: string[] = [];
  private streams = new Set<ServerResponse>();
  private server: Server;

  constructor(private readonly size = 100) {
    this.server = createServer((request, response) => {
      const url = new URL(request.url!, "http://x");
      this.requests.push(url.pathname.split("/").at(-1)! + url.search);
      if (!url.pathname.endsWith("/events")) return response.end(JSON.stringify({ status: { last_seq: this.last } }));
      const number = (key: string) => (url.searchParams.has(key) ? Number(url.searchParams.get(key)) : undefined);
      const before = number("before");
      if (before !== undefined) {
        const end = Math.min(this.last, before - 1);
        for (let seq = Math.max(1, end - number("limit")! + 1); seq <= end; seq += 1)
          response.write(`${this.line(seq)}\n`);
        return response.end();
      }
      const from = number("after") ?? Math.max(0, this.last - number("last")!);
      this.streams.add(response);
      response.on("close", () => this.streams.delete(response));
      response.write(": alive\n\n");
      for (let seq = from + 1; seq <= this.last; seq += 1) response.write(`data: ${this.line(seq)}\n\n`);
    });
  }

  async open(context: TestContext): Promise<string> {
    await new Promise<void>((done) => this.server.listen(0, "127.0.0.1", done));
    context.after(() => {
      this.server.closeAllConnections();
      this.server.close();
    });
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  /** Appends records, and sends them to the open streams. */
  grow(count: number): void {
    for (let at = 0; at < count; at += 1) {
      this.last += 1;
      for (const stream of this.streams) stream.write(`data: ${this.line(this.last)}\n\n`);
    }
  }

  /** Breaks the open streams. */
  cut(): void {
    for (const stream of this.streams) stream.destroy();
  }

  private line(seq: number): string {
    this.sent += 1;
    const update = { sessionUpdate: "tool_call", toolCallId: `t${seq}`, title: "x".repeat(this.size) };
    const data = { method: "session/update", params: { update } };
    return JSON.stringify({ seq, time: new Date(seq).toISOString(), kind: "agent.out", data });
  }
}

/** Waits until a condition holds. */
async function until(what: string, holds: () => boolean): Promise<void> {
  for (let tries = 0; !holds(); tries += 1) {
    assert.ok(tries < 1_000, `waited in vain until ${what}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

const sequence = (of: Window): number[] => of.conversation.items.map(({ seq }) => seq);
const from = (first: number, last: number): number[] => Array.from({ length: last - first + 1 }, (_, at) => first + at);

async function begin(context: TestContext, journal: Journal, conversation?: Conversation): Promise<Window> {
  const part = new Window(await journal.open(context), "s", conversation);
  context.after(() => part.close());
  return part;
}

test("the beginning reads the last records in growing pages, and no more", async (context) => {
  const journal = new Journal();
  journal.grow(100_000);
  const part = await begin(context, journal);
  await until("a page is there", () => part.conversation.size >= 200 && !part.loading.value);
  assert.ok(journal.sent < 1_000, `${journal.sent}`);
  assert.deepEqual(sequence(part), from(100_000 - part.conversation.size + 1, 100_000));
});

test("after an interruption exactly the missed records come, behind a marker", async (context) => {
  const journal = new Journal();
  journal.grow(50);
  const part = await begin(context, journal);
  await until("all is there", () => part.conversation.first === 1 && part.conversation.last === 50);
  journal.cut();
  await until("the loss is seen", () => part.connection.value.state === "waiting");
  const sent = journal.sent;
  journal.grow(500);
  await until("all is there", () => part.conversation.last === 550);
  assert.equal(journal.sent - sent, 500);
  const items = part.conversation.items;
  assert.deepEqual(
    items.filter(({ kind }) => kind === "tool").map(({ seq }) => seq),
    from(1, 550),
  );
  assert.equal(items[50]?.kind, "marker");
});

test("after an interruption with many missed records the page begins anew", async (context) => {
  const journal = new Journal();
  journal.grow(50);
  const part = await begin(context, journal);
  await until("all is there", () => part.conversation.first === 1);
  journal.cut();
  await until("the loss is seen", () => part.connection.value.state === "waiting");
  const sent = journal.sent;
  journal.grow(50_000);
  await until("the end is there", () => part.conversation.last === 50_050 && part.conversation.size >= 200);
  assert.ok(journal.sent - sent < 1_000, `${journal.sent - sent}`);
  assert.ok(await part.load());
  assert.ok(part.conversation.first! > 50);
});

test("whoever reads further up keeps the place after many missed records", async (context) => {
  const journal = new Journal();
  journal.grow(50);
  const part = await begin(context, journal);
  await until("all is there", () => part.conversation.first === 1);
  part.follows = false;
  journal.cut();
  journal.grow(50_000);
  await until("it has left the end", () => part.detached.value);
  assert.deepEqual(sequence(part), from(1, 50));
  assert.equal(part.connection.value.state, "paused");
  await part.loadNewer();
  assert.deepEqual(sequence(part).slice(0, 60), from(1, 60));
});

test("large records make small pages", async (context) => {
  const journal = new Journal(100_000);
  journal.grow(320);
  const part = await begin(context, journal);
  await until("the end is there", () => part.conversation.last === 320 && part.conversation.size >= 8);
  await new Promise((done) => setTimeout(done, 300));
  assert.ok(journal.sent <= 10, `${journal.sent}`);
});

test("a person who reads further up stays there, and memory is bounded", async (context) => {
  const journal = new Journal();
  journal.grow(300);
  const part = await begin(context, journal, new Conversation(1_000));
  await until("a page is there", () => part.conversation.size >= 200 && !part.loading.value);
  part.follows = false;
  const first = part.conversation.first;
  journal.grow(5_000);
  await until("it has left the end", () => part.detached.value);
  assert.equal(part.conversation.first, first);
  assert.ok(part.conversation.size <= 1_501, `${part.conversation.size}`);
  const last = part.conversation.last;
  await part.loadNewer();
  assert.ok(part.conversation.last > last);
  part.newest();
  await until("the end is there", () => part.conversation.last === 5_300);
  assert.equal(part.detached.value, false);
});

test("a person who reads the end sees each record once, and old ones leave", async (context) => {
  const journal = new Journal();
  const part = await begin(context, journal, new Conversation(200));
  await until("it is live", () => part.connection.value.state === "live");
  journal.grow(2_000);
  await until("the end is there", () => part.conversation.last === 2_000);
  const shown = sequence(part);
  assert.deepEqual(shown, from(shown[0]!, 2_000));
  assert.ok(shown.length <= 251, `${shown.length}`);
  assert.equal(part.older.value, true);
});
