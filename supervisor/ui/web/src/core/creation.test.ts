import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import { EMPTY, forget, mistakes, requestKey, specification, store, stored } from "./creation";

const kept = new Map<string, string>();

beforeEach(() => {
  kept.clear();
  globalThis.sessionStorage = {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, value: string) => void kept.set(key, value),
    removeItem: (key: string) => void kept.delete(key),
  } as Storage;
});

test("a field without a text is left out of the specification", () => {
  const spec = JSON.parse(JSON.stringify(specification({ ...EMPTY, directory: " /work/web " }))) as unknown;
  assert.deepEqual(spec, { directory: "/work/web", permissions: "ask" });
});

test("labels and options are words with a value, and a chosen option counts more than a typed one", () => {
  const draft = {
    ...EMPTY,
    labels: "team=web, note=a=b",
    options: "effort=low x=1",
    offered: { effort: "high", y: "" },
  };
  assert.deepEqual(specification(draft).labels, { team: "web", note: "a=b" });
  assert.deepEqual(specification(draft).options, { effort: "high", x: "1" });
  assert.deepEqual(mistakes(draft), {});
  assert.deepEqual(mistakes({ ...draft, labels: "team =web" }), { labels: ["team", "=web"] });
});

test("a chosen place is in the specification, also the machine of the daemon", () => {
  assert.equal(specification({ ...EMPTY, place: "farm" }).place, "farm");
  assert.equal(specification({ ...EMPTY, place: "here" }).place, "here");
  assert.equal(specification(EMPTY).place, undefined);
});

test("a directory of the session's own needs no directory, and its prompt keeps its spaces", () => {
  const spec = specification({ ...EMPTY, workspace: true, prompt: "  a\n" });
  assert.equal(spec.workspace, "new");
  assert.equal(spec.directory, undefined);
  assert.equal(spec.initial_prompt, "  a\n");
});

test("a draft survives a reload, and one that cannot be read is empty", () => {
  store({ ...EMPTY, prompt: "half a thought", requires: ["vpn"] });
  assert.deepEqual(stored(), { ...EMPTY, prompt: "half a thought", requires: ["vpn"] });
  forget();
  assert.deepEqual(stored(), EMPTY);
  kept.set("create.draft", "{");
  assert.deepEqual(stored(), EMPTY);
});

test("a repeated request has one key, also after a reload, and another request has another", () => {
  const first = requestKey("a");
  assert.equal(requestKey("a"), first);
  assert.notEqual(requestKey("b"), first);
  const second = requestKey("b");
  forget();
  assert.notEqual(requestKey("b"), second);
});
