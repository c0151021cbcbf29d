import assert from "node:assert/strict";
import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";

import { Lines, pause, Stream, type Connection } from "./stream";

type Handler = (query: URLSearchParams, response: ServerResponse, attempt: number) => void;

/** Serves streams, and follows one until `enough` items have come. */
async function follow(context: TestContext, handler: Handler, enough: number, options: { silence?: number } = {}) {
  let attempts = 0;
  const server: Server = createServer((request, response) => {
    handler(new URL(request.url!, "http://x").searchParams, response, (attempts += 1));
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const items: number[] = [];
  const states: Connection["state"][] = [];
  await new Promise<void>((done) => {
    const stream = new Stream<{ n: number }>({
      base: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
      kind: "conversation",
      path: (cursor) => `/events?after=${cursor ?? 0}`,
      cursor: (item) => item.n,
      item: ({ n }) => {
        items.push(n);
        if (items.length >= enough) {
          stream.close();
          done();
        }
      },
      changed: ({ state }) => states.push(state),
      ...options,
    });
    context.after(() => stream.close());
  });
  server.closeAllConnections();
  await new Promise((done) => server.close(done));
  return { items, states, attempts };
}

const send = (response: ServerResponse, ...numbers: number[]) => {
  for (const n of numbers) response.write(`id: ${n}\nevent: x\ndata: {"n":${n}}\n\n`);
};

test("after a broken connection the stream continues with exactly what was missed", async (context) => {
  const { items, states } = await follow(
    context,
    (query, response, attempt) => {
      const after = Number(query.get("after"));
      send(response, after + 1, after + 2);
      if (attempt < 3) setTimeout(() => response.destroy(), 20);
    },
    6,
  );
  assert.deepEqual(items, [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(states, ["connecting", "live", "waiting", "live", "waiting", "live"]);
});

test("a connection that is open and silent is ended and begun again", async (context) => {
  const { items, states, attempts } = await follow(
    context,
    (query, response) => {
      const after = Number(query.get("after"));
      // After its item this connection stays open, and nothing comes any more.
      send(response, after + 1);
    },
    2,
    { silence: 300 },
  );
  assert.deepEqual(items, [1, 2]);
  assert.ok(attempts >= 2);
  assert.ok(states.includes("waiting"));
});

test("heartbeats keep a silent connection", async (context) => {
  const { attempts, states } = await follow(
    context,
    (_query, response) => {
      response.write(": alive\n\n");
      const beats = setInterval(() => response.write(": alive\n\n"), 50);
      setTimeout(() => send(response, 1), 1_500);
      response.on("close", () => clearInterval(beats));
    },
    1,
    { silence: 700 },
  );
  assert.equal(attempts, 1);
  assert.deepEqual(states, ["connecting", "live"]);
});

test("a cursor that is gone begins anew, and other refusals wait for a person", async (context) => {
  const { items } = await follow(
    context,
    (query, response, attempt) => {
      if (attempt === 1) {
        send(response, 5);
        setTimeout(() => response.destroy(), 20);
      } else if (query.get("after") === "5") {
        response.writeHead(410, { "content-type": "application/problem+json" });
        response.end('{"status":410,"code":"cursor-gone","detail":"gone"}');
      } else {
        send(response, 9);
      }
    },
    2,
  );
  assert.deepEqual(items, [5, 9]);
});

test("a refusal is shown, and the stream does not hammer the server", async () => {
  let attempts = 0;
  const server = createServer((_request, response) => {
    attempts += 1;
    response.writeHead(404);
    response.end('{"status":404,"code":"no-such-session","detail":"there is no session"}');
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const refused = await new Promise<Connection>((done) => {
    const stream: Stream<unknown> = new Stream<unknown>({
      base: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
      kind: "conversation",
      path: () => "/",
      cursor: () => undefined,
      item: () => undefined,
      changed: (connection) => {
        if (connection.state !== "refused") return;
        done(connection);
        setTimeout(() => stream.close(), 50);
      },
    });
  });
  assert.ok(refused.state === "refused" && refused.code === "no-such-session");
  await new Promise((done) => server.close(done));
  assert.equal(attempts, 1);
});

test("pauses grow to ten seconds", () => {
  assert.equal(pause(0, 0.5), 250);
  assert.equal(pause(3, 0.5), 2_000);
  assert.ok(pause(50, 1) <= 11_000);
});

test("lines are whole however the text is divided", () => {
  const text = "one\ntwo\n\nthree\n";
  for (let size = 1; size < text.length; size += 1) {
    const [lines, found] = [new Lines(), [] as string[]];
    for (let at = 0; at < text.length; at += size) lines.push(text.slice(at, at + size), (line) => found.push(line));
    assert.deepEqual(found, ["one", "two", "", "three"]);
  }
});

test("a hidden page ends its stream, and seen again continues from where it was", async (context) => {
  const page = Object.assign(new EventTarget(), { visibilityState: "visible" });
  Object.assign(globalThis, { document: page });
  context.after(() => Reflect.deleteProperty(globalThis, "document"));
  const see = (state: string) => {
    page.visibilityState = state;
    page.dispatchEvent(new Event("visibilitychange"));
  };
  const asked: string[] = [];
  const resumed: number[] = [];
  const server = createServer((request, response) => {
    const after = Number(new URL(request.url!, "http://x").searchParams.get("after"));
    asked.push(request.url!);
    send(response, after + 1);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const items: number[] = [];
  const states: Connection["state"][] = [];
  const stream = new Stream<{ n: number }>({
    base: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    kind: "conversation",
    path: (cursor) => `/events?after=${cursor ?? 0}`,
    cursor: ({ n }) => n,
    item: ({ n }) => items.push(n),
    changed: ({ state }) => states.push(state),
    resume: async (cursor) => (resumed.push(cursor), cursor),
    hidden: () => "pause",
  });
  const until = async (holds: () => boolean) => {
    for (let tries = 0; !holds(); tries += 1) {
      assert.ok(tries < 500, `${asked} ${items} ${states}`);
      await new Promise((done) => setTimeout(done, 10));
    }
  };
  await until(() => items.length === 1);
  see("hidden");
  await until(() => states.at(-1) === "connecting");
  assert.deepEqual([asked.length, resumed.length], [1, 0]);
  see("visible");
  await until(() => items.length === 2);
  assert.deepEqual([items, resumed, asked.length], [[1, 2], [1], 2]);
  assert.ok(!states.includes("waiting"));
  stream.close();
  server.closeAllConnections();
  await new Promise((done) => server.close(done));
});

test("a stream that is closed while it asks how to continue opens no connection", async () => {
  let attempts = 0;
  const server = createServer((_request, response) => {
    attempts += 1;
    send(response, 1);
    setTimeout(() => response.destroy(), 20);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  await new Promise<void>((done) => {
    const stream: Stream<{ n: number }> = new Stream<{ n: number }>({
      base: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
      kind: "conversation",
      path: () => "/",
      cursor: ({ n }) => n,
      item: () => undefined,
      changed: () => undefined,
      resume: async (cursor) => {
        stream.close();
        setTimeout(done, 100);
        return cursor;
      },
    });
  });
  server.closeAllConnections();
  await new Promise((done) => server.close(done));
  assert.equal(attempts, 1);
});
