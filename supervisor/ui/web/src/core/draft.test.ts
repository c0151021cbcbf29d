import assert from "node:assert/strict";
import { test } from "node:test";

import { draft, send, write } from "./draft";

/** Puts the browser's storage and a server in place. `answers` are those of the next requests. */
function page(answers: (() => Response)[]): { keys: string[] } {
  const kept = new Map<string, string>();
  const localStorage = {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => void kept.set(key, value),
    removeItem: (key: string) => void kept.delete(key),
  };
  Object.assign(globalThis, { localStorage });
  const keys: string[] = [];
  globalThis.fetch = async (_path, init) => {
    keys.push((init!.headers as Record<string, string>)["idempotency-key"]!);
    return answers.shift()!();
  };
  return { keys };
}

const lost = (): Response => {
  throw new TypeError("network");
};
const accepted = () => new Response('{"turn":"t1","after_seq":1}', { status: 202 });

test("a text stays until it was accepted, and a repeated attempt has the same key", async () => {
  const { keys } = page([lost, lost, accepted]);
  write("", "s", "hello");
  await assert.rejects(send("", "s", "hello", []));
  assert.equal(draft("", "s"), "hello");
  await assert.rejects(send("", "s", "hello", []));
  await send("", "s", "hello", []);
  assert.equal(new Set(keys).size, 1);
  assert.equal(draft("", "s"), "");
});

test("another text and other attachments have another key", async () => {
  const { keys } = page([lost, lost, lost]);
  await assert.rejects(send("", "s", "one", []));
  await assert.rejects(send("", "s", "two", []));
  await assert.rejects(send("", "s", "two", [{ type: "resource", resource: { uri: "file:///a", text: "a" } }]));
  assert.equal(new Set(keys).size, 3);
});

test("what is typed while a message is on its way stays", async () => {
  page([accepted]);
  write("", "s", "one");
  const sending = send("", "s", "one", []);
  write("", "s", "two");
  await sending;
  assert.equal(draft("", "s"), "two");
});
