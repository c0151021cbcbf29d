import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { HEADER, keepKey, LOGIN, send } from "./key";

/** Replaces the browser's storage and network. Returns the stored texts and the requests that were sent. */
function browser(context: TestContext, storage: Partial<Storage> = {}) {
  const stored = new Map<string, string>();
  const sent: { address: string; headers: Record<string, string> }[] = [];
  const localStorage = {
    getItem: (name: string) => stored.get(name) ?? null,
    setItem: (name: string, value: string) => stored.set(name, value),
    ...storage,
  };
  const before = { fetch: globalThis.fetch, localStorage: globalThis.localStorage };
  const fetch = (address: string, { headers }: RequestInit) => {
    sent.push({ address, headers: headers as Record<string, string> });
    return Promise.resolve(new Response());
  };
  Object.assign(globalThis, { localStorage, fetch });
  context.after(() => Object.assign(globalThis, before));
  return { stored, sent };
}

test("a request carries the key beside its own headers, and the sign-in does not", async (context) => {
  const { sent } = browser(context);
  keepKey("first");
  await send("/host/local/v1/sessions", { headers: { accept: "text/event-stream" } });
  await send(LOGIN);
  assert.deepEqual(sent[0]!.headers, { accept: "text/event-stream", [HEADER]: "first" });
  assert.deepEqual(sent[1]!.headers, {});
});

test("the sign-in of another page replaces the key", async (context) => {
  const { sent, stored } = browser(context);
  keepKey("first");
  const [place] = stored.keys();
  stored.set(place!, "second");
  await send("/ui/info");
  assert.equal(sent[0]!.headers[HEADER], "second");
});

test("a request that was refused during another sign-in is sent with the new key", async (context) => {
  const { sent, stored } = browser(context);
  keepKey("first");
  const [place] = stored.keys();
  const { fetch } = globalThis;
  globalThis.fetch = async (...request) => {
    await fetch(...request);
    const isOld = stored.get(place!) === "first";
    stored.set(place!, "second");
    return new Response(null, { status: isOld ? 401 : 200 });
  };
  const { status } = await send("/ui/info");
  assert.equal(status, 200);
  assert.deepEqual(
    sent.map(({ headers }) => headers[HEADER]),
    ["first", "second"],
  );
});

test("a browser without storage keeps the key in the page", async (context) => {
  const closed = () => {
    throw new Error("storage is closed");
  };
  const { sent } = browser(context, { getItem: closed, setItem: closed });
  keepKey("only");
  await send("/ui/info");
  assert.equal(sent[0]!.headers[HEADER], "only");
});
